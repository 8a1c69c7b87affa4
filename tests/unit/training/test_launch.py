"""The child process of a run, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from skyrl_apex_plugin.training.launch import interruptible, run_child

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    print(child.pid, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_output_goes_to_the_log_and_the_status_comes_back(tmp_path: Path) -> None:
    seen: list[int] = []
    status = run_child(
        [sys.executable, "-c", "print('hello'); raise SystemExit(3)"],
        env=dict(os.environ),
        log=tmp_path / "run" / "log.txt",
        watch=lambda: seen.append(1),
    )
    assert status == 3
    assert seen
    assert (tmp_path / "run" / "log.txt").read_text() == "hello\n"


PARENT = """
import os, sys
from pathlib import Path
from skyrl_apex_plugin.training.launch import interruptible, run_child
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
run_child(
    [sys.executable, "-c", code], env=dict(os.environ), log=Path(sys.argv[1]), watch=lambda: None
)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_a_killed_parent_takes_the_child_along(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)])
    while not log.exists() or not log.read_text().endswith("\n"):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not _runs(int(log.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_whole_group_in_order(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log.txt"

    def interrupt_when_running() -> None:
        while not log.exists() or not log.read_text().strip():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt_when_running, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, "-c", FAMILY],
            env=dict(os.environ),
            log=log,
            watch=lambda: None,
            poll_seconds=0.05,
        )
    lines = log.read_text().split()
    assert lines[1] == "interrupted", "the child gets the chance to end its trials"
    grandchild = int(lines[0])
    deadline = time.monotonic() + 5
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(grandchild)


def test_a_child_started_where_interrupts_are_ignored_can_be_interrupted(tmp_path: Path) -> None:
    """As under ``nohup``, or in the background of a shell script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_an_interrupt_ends_the_whole_group_in_order(tmp_path, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


SLOW = """
import sys, time
from pathlib import Path
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("ending", flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    print("ended its trials", flush=True)
"""


def test_a_second_interrupt_does_not_end_the_clean_up(tmp_path: Path) -> None:
    """``make`` passes on a signal that its whole group got already."""
    log = tmp_path / "log.txt"

    def interrupt_twice() -> None:
        for number, said in ((signal.SIGTERM, "ready"), (signal.SIGINT, "ending")):
            while not log.exists() or said not in log.read_text().split("\n"):
                time.sleep(0.05)
            os.kill(os.getpid(), number)
        time.sleep(0.5)
        (tmp_path / "told").touch()

    threading.Thread(target=interrupt_twice, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, "-c", SLOW, str(tmp_path / "told")],
            env=dict(os.environ),
            log=log,
            watch=lambda: None,
            poll_seconds=0.05,
        )
    assert log.read_text().splitlines() == ["ready", "ending", "ended its trials"]


def test_what_a_child_left_of_its_group_ends_with_it(tmp_path: Path) -> None:
    code = FAMILY.replace("time.sleep(600)\nexcept", "raise SystemExit(0)\nexcept")
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", code]
    assert run_child(command, env=dict(os.environ), log=log, watch=lambda: None) == 0
    grandchild = int(log.read_text())
    deadline = time.monotonic() + 5
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(grandchild)


def test_only_the_first_signal_interrupts() -> None:
    cleaned = []
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("not interrupted")
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
                cleaned.append(number)
    assert len(cleaned) == 2


def _runs(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")
