"""What serves a sandbox from the inside: one small process in its namespaces.

It is a fork of the template process, so it needs no file of the sandbox: any root file system
will do, and the modules that the template has imported cost nothing here. With a host root
it stays outside the sandbox's user namespace: nothing that runs inside can touch it.

Over its control channel the host hands it sockets, each with one byte that says what for:
``S`` a new TCP socket and ``L`` a listening one of the sandbox's network, sent back at once;
``R`` a request that a fork of this process reads and serves (:mod:`.operations`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from . import operations, wire

PYTHON_SOCKET = "/run/apex/python.sock"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a supervisor knows of its sandbox."""

    user_namespace: int | None
    """Descriptor of the sandbox's user namespace; ``None`` when this process is in it."""
    first_uid: int
    """The host's uid of the sandbox's root."""
    file_size_limit: int | None
    """Bytes that a single file may have."""
    python_path: tuple[str, ...]
    """Import path of Python programs that are started as forks."""
    warm_python: bool


def serve(control: socket.socket, setup: Setup) -> NoReturn:
    """Serve until the host closes the control channel or kills the sandbox."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # From here on a lazy import would load code that the sandbox's user may have written.
    sys.path.clear()
    poll = select.poll()
    listener = _python_listener() if setup.warm_python else None
    sockets = [control] if listener is None else [control, listener]
    for each in sockets:
        poll.register(each.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if listener is not None and descriptor == listener.fileno():
                conn, _ = listener.accept()
                _fork(conn, operations.serve_python, setup, sockets)
            else:
                _serve_control(control, setup, sockets)


def _python_listener() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(PYTHON_SOCKET)
    os.chmod(PYTHON_SOCKET, 0o666)
    listener.listen(16)
    return listener


def _serve_control(control: socket.socket, setup: Setup, sockets: list[socket.socket]) -> None:
    kind, fds, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not kind:
        os._exit(0)
    conn = socket.socket(fileno=fds[0])
    if kind == b"R":
        _fork(conn, operations.serve, setup, sockets)
        return
    with conn, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fresh:
        if kind == b"L":
            fresh.bind(("127.0.0.1", 0))
            fresh.listen(64)
        wire.send(conn, {"port": fresh.getsockname()[1]}, [fresh.fileno()])


def _fork(
    conn: socket.socket,
    serve_request: Callable[[socket.socket, Setup], None],
    setup: Setup,
    inherited: list[socket.socket],
) -> None:
    if os.fork() == 0:
        try:
            for each in inherited:
                each.close()
            serve_request(conn, setup)
        finally:
            os._exit(0)
    conn.close()
