"""Run one command inside the sandbox and kill everything it started, when asked to."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from .privileges import become_subreaper

KILLED = 128 + signal.SIGKILL


def run(conn: socket.socket, main: Callable[[], NoReturn]) -> int:
    """Fork ``main`` and wait for it; returns its exit code (128 + signal for a killed one).

    When ``conn`` gets a byte or is closed before that, the whole tree below this process is
    killed, daemons included. Processes that outlive ``main`` otherwise stay and go to init.
    """
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        conn.close()
        main()
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(conn.fileno(), select.POLLIN)
    if pidfd not in {descriptor for descriptor, _ in poll.poll()}:
        kill_descendants()
        return KILLED
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def kill_descendants() -> None:
    """Kill every process below this one, which must be a subreaper, and reap them.

    They are stopped first until no new one appears, so that a tree that keeps forking is
    caught; a daemon that left its session and parent is still a descendant of the subreaper.
    """
    stopped: set[int] = set()
    while new := descendants(os.getpid()) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    while True:
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended between being listed and being signalled


def descendants(ancestor: int) -> set[int]:
    """PIDs of all processes below ``ancestor``, from /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = [ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending.extend(below)
    return found


def _parents() -> list[tuple[int, int]]:
    pairs = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                after_name = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        pairs.append((int(name), int(after_name[1])))
    return pairs
