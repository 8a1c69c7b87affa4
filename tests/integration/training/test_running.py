"""Ending a run: the experiment cleans up first, however impatient the user is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)

RUN = """
import sys, time
from pathlib import Path

import ray

from skyrl_apex_plugin.training.running import run_to_the_end

folder = Path(sys.argv[1])

@ray.remote
def experiment():
    try:
        (folder / "running").touch()
        while True:  # Ray interrupts between two bytecodes, not a system call
            time.sleep(0.05)
    finally:
        time.sleep(6)
        (folder / "cleaned").touch()

ray.init(address="local", num_cpus=1, include_dashboard=False)
run_to_the_end(experiment)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_cut_the_clean_up_off(
    tmp_path: Path, number: signal.Signals
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        while not (tmp_path / "running").exists():
            assert child.poll() is None, child.communicate()[0]
            time.sleep(0.1)
        for _ in range(5):
            child.send_signal(number)
            time.sleep(0.5)
        shown, _ = child.communicate()
    finally:
        child.kill()
    assert child.returncode == 130, shown
    assert (tmp_path / "cleaned").exists(), shown
