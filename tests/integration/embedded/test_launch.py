"""An engine process starts or says why not, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from skyrl_apex_plugin.embedded.launch import (
    EngineOptions,
    EngineStartError,
    start_engine,
)

PARENT = """
import sys, time
from skyrl_apex_plugin.embedded.launch import start_engine
engine = start_engine(sys.argv[1])
print(engine.pid, engine.url, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_engine_outlives_its_parent(checkpoint: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().decode().split()
        assert httpx.get(f"{url}/health", timeout=10).status_code == 200
        parent.send_signal(ending)
        parent.wait(30)
    assert wait_gone(int(pid))


def test_a_model_that_cannot_be_served_is_told_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(EngineStartError, match="model_type='llama'"):
        start_engine(tmp_path)


def test_a_window_beyond_the_models_is_refused(checkpoint: Path) -> None:
    with pytest.raises(EngineStartError, match=r"--max-model-len 4096 exceeds .* 1024"):
        start_engine(checkpoint, EngineOptions(max_model_len=4096))


def test_a_start_that_takes_too_long_leaves_no_process(checkpoint: Path) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()
    with pytest.raises(EngineStartError, match="not ready after 0 s"):
        start_engine(checkpoint, EngineOptions(startup_seconds=0.2))
    assert children.read_text().split() == before


def test_stopping_twice_is_fine_and_the_port_is_free_again(checkpoint: Path) -> None:
    engine = start_engine(checkpoint)
    assert engine.running
    engine.stop()
    engine.stop()
    assert not engine.running
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{engine.url}/health", timeout=5)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"\['max_length'\]; known are .*max_model_len"):
        EngineOptions.from_mapping({"max_length": 3})
