"""A stock SkyRL command line as a child process, ended with everything that it began."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS = (45.0, 10.0)
"""How long the child may take to end after SIGINT, then after SIGTERM; then it is killed."""


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    watch: Callable[[], None],
    poll_seconds: float = 0.5,
) -> int:
    """Run ``command`` in a process group of its own with its output in ``log``.

    :param watch: called about every ``poll_seconds`` while it runs, and once when it ended.
    :returns: the exit status. Ctrl-C or SIGTERM here ends the whole group in order, then raises.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with interruptible(), log.open("ab") as output:
        child = subprocess.Popen(
            [*_ended_with_parent(), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C reaches this process alone
        )
        try:
            while True:
                try:
                    return child.wait(poll_seconds)
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            with undisturbed():
                stop_group(child)
            watch()


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise ``KeyboardInterrupt`` inside the block: all ends take one way.

    The first one only, so that no second one cuts off what its ``except`` and ``finally`` do.

    Also where a shell started this process in the background with SIGINT ignored: a child would
    inherit that, and could not be asked to end its trials.
    """

    interrupted = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing inside the block. A second one comes often (from an impatient
    user, or because ``make`` passes on what its whole group got) and must not end the clean-up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended_with_parent() -> list[str]:
    """Command prefix: SIGTERM when this process dies, also of a SIGKILL, which it cannot see."""
    setpriv = shutil.which("setpriv")  # util-linux; elsewhere a killed parent leaves the child
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def stop_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever is left of its group. Returns when the child is gone."""
    for number, seconds in zip((signal.SIGINT, signal.SIGTERM), STOP_SECONDS, strict=True):
        if child.poll() is not None:
            break
        child.send_signal(number)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):  # nothing of the group is left, which is the aim
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
