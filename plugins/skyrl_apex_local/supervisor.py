"""What serves a sandbox from the inside: one small process in its namespaces.

It is a fork of the template process, so it needs no file of the sandbox: any root file system
will do. With a host root it stays outside the sandbox's user namespace: nothing that runs
inside can touch it.

Over its control channel the host hands it sockets, each with one byte that says what for:
``S`` a new TCP socket and ``L`` a listening one of the sandbox's network, sent back at once;
``R`` a request that a fork of this process reads and serves (:mod:`.operations`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from typing import NoReturn

from . import operations, wire


@dataclass(frozen=True, slots=True)
class Setup:
    """What a supervisor knows of its sandbox."""

    user_namespace: int | None
    """Descriptor of the sandbox's user namespace; ``None`` when this process is in it."""
    file_size_limit: int | None
    """Bytes that a single file may have."""


def serve(control: socket.socket, setup: Setup) -> None:
    """Serve until the host closes the control channel or kills the sandbox."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # From here on a lazy import would load code that the sandbox's user may have written.
    sys.path.clear()
    while True:
        kind, fds, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not kind:
            return
        with socket.socket(fileno=fds[0]) as conn:
            if kind == b"R":
                if fork_for(conn):
                    control.close()
                    _serve_request(conn, setup)
            else:
                with contextlib.suppress(BrokenPipeError):  # the host gave the request up
                    _send_socket(conn, listening=kind == b"L")


def fork_for(conn: socket.socket) -> bool:
    """Fork; whether this is the child. When there can be no further process, that is the answer to
    the request on ``conn``: there may be one again later."""
    try:
        return os.fork() == 0
    except OSError as error:
        with contextlib.suppress(OSError, wire.ConnectionLost):
            for descriptor in wire.receive(conn)[1]:
                os.close(descriptor)
            wire.send(conn, {"error": str(error), "errno": error.errno})
        return False


def _serve_request(conn: socket.socket, setup: Setup) -> NoReturn:
    try:
        operations.serve(conn, setup)
    except BrokenPipeError:
        os._exit(0)  # the host gave the request up
    finally:
        os._exit(1)


def _send_socket(conn: socket.socket, *, listening: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fresh:
        if listening:
            fresh.bind(("127.0.0.1", 0))
            fresh.listen(64)
        wire.send(conn, {"port": fresh.getsockname()[1]}, [fresh.fileno()])
