"""What a sandbox's program made unreadable, seen by a host user who is not root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyrl_apex_local.disk import used_bytes
from skyrl_apex_local.state import SandboxState

NOBODY = 65534


def as_ordinary_user(action: Callable[[], bool]) -> bool:
    """``action`` in a child that is not root; false when it raises."""
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            good = action()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def closed() -> Iterator[SandboxState]:
    """A sandbox's directory with unreadable directories in each other; of nobody, if we may."""
    root = Path(tempfile.mkdtemp())  # the directories of pytest are closed to other users
    state = SandboxState(root / "sandbox-x")
    inner = state.backing / "closed" / "closed"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(bytes(100_000))
    (state.backing / "open").write_bytes(bytes(200_000))
    if os.getuid() == 0:
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    for path in (inner, inner.parent):
        path.chmod(0)
    yield state
    state.remove()
    root.rmdir()


def test_it_is_removed_all_the_same(closed: SandboxState) -> None:
    def remove() -> bool:
        closed.remove()
        return not closed.directory.exists()

    assert as_ordinary_user(remove)


def test_the_disk_watch_goes_on_with_what_it_can_see(closed: SandboxState) -> None:
    assert as_ordinary_user(lambda: used_bytes(closed.backing) >= 200_000)
