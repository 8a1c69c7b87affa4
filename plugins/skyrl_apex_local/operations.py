"""The requests that a fork of the supervisor serves, one process for each."""

from __future__ import annotations

import os
import resource
import signal
import socket
import tarfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from . import wire
from .privileges import Identity, become, enter_user_namespace, find_user
from .processes import run

if TYPE_CHECKING:
    from .supervisor import Setup


def serve(conn: socket.socket, setup: Setup) -> None:
    """Read one request of the host and answer it. Whatever fails is the answer's ``error``."""
    message, fds = wire.receive(conn)
    try:
        if message["op"] == "exec":
            code = run(conn, lambda: _execute(message, fds, setup))
            wire.send(conn, {"exit": code})
            return
        _take_identity(message.get("user"), setup)
        _OPERATIONS[message["op"]](conn, message, fds)
    except (OSError, LookupError, tarfile.TarError) as error:
        _answer_error(conn, error)


def _answer_error(conn: socket.socket, error: Exception) -> None:
    try:
        wire.send(conn, {"error": str(error), "errno": getattr(error, "errno", None)})
    except BrokenPipeError:
        return  # the host gave this request up


def _take_identity(user: str | int | None, setup: Setup) -> Identity:
    enter_user_namespace(setup.user_namespace)
    with open("/etc/passwd") as file:
        identity = find_user(user, file.readlines())
    become(identity, single_user=setup.user_namespace is None)
    return identity


def _leave_supervisor_state(setup: Setup) -> None:
    """Signals and limits as a fresh process of the sandbox has them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.setsid()
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if setup.file_size_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (setup.file_size_limit,) * 2)


def _execute(message: dict[str, Any], fds: list[int], setup: Setup) -> NoReturn:
    """Become the command. Failures go to its stderr with the exit codes that shells use."""
    output, errors = fds
    code = 126
    try:
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
        _leave_supervisor_state(setup)
        identity = _take_identity(message["user"], setup)
        os.chdir(message["cwd"] or "/")
        env = {"HOME": identity.home, **message["env"]}
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        os.execve(shell, [shell, "-c", message["command"]], env)
    except Exception as error:
        os.write(2, f"sandbox: cannot start the command: {error}\n".encode())
        code = 127 if isinstance(error, FileNotFoundError) else 126
    finally:
        os._exit(code)


def _open(conn: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    """Open a file as the sandbox's user and hand over the descriptor: no link leads outside."""
    path, writing = message["path"], message["write"]
    if writing:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    # O_NONBLOCK: opening a FIFO must not wait for its other end.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if writing else os.O_RDONLY
    descriptor = os.open(path, flags | os.O_NONBLOCK, message.get("mode", 0o644))
    if writing:
        os.fchmod(descriptor, message.get("mode", 0o644))
    wire.send(conn, {}, [descriptor])


def _pack(conn: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    """Write the given paths as a tar stream into the descriptor."""
    base = message["base"]
    mode = message["mode"]
    with os.fdopen(fds[0], "wb") as stream, tarfile.open(fileobj=stream, mode=mode) as archive:
        for name in message["names"]:
            path = os.path.join(base, name)
            if os.path.lexists(path) or not message["missing_ok"]:
                archive.add(path, arcname=name)
    wire.send(conn, {})


def _unpack(conn: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    """Extract the tar stream of the descriptor into a directory, as the sandbox's user."""
    os.makedirs(message["base"], exist_ok=True)
    with os.fdopen(fds[0], "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(message["base"], filter="tar")
    wire.send(conn, {})


_OPERATIONS: dict[str, Callable[[socket.socket, dict[str, Any], list[int]], None]] = {
    "open": _open,
    "pack": _pack,
    "unpack": _unpack,
}
