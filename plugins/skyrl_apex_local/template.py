"""The template process: a small Python that forks a supervisor for each sandbox.

Started as ``python -P -m skyrl_apex_local.template CONTROL_FD`` with an empty environment, so
that a fork carries no secret of the host process into a sandbox. A byte on the
control channel brings a socket; a fork reads the request from it, joins the sandbox's control
groups and namespaces, and becomes the supervisor.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from . import supervisor, wire
from .privileges import create_user_namespace, hide_from_debuggers


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    wire.send(control, {"path": sys.path})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host process's to handle
    gc.freeze()
    while True:
        kind, fds, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not kind:
            return
        with socket.socket(fileno=fds[0]) as conn:
            if supervisor.fork_for(conn):
                control.close()
                _become_supervisor(conn)


def _become_supervisor(conn: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        request, (sandbox, control) = wire.receive(conn)
        for path in request["cgroups"]:
            with open(os.path.join(path, "cgroup.procs"), "w") as file:
                file.write("0")
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        setup = _enter(sandbox, request)
        os.close(sandbox)
        if os.fork() != 0:  # only a child is in the new PID namespace
            os._exit(0)
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):  # the start was given up: nobody asks any more
            wire.send(conn, {"error": f"cannot enter the sandbox: {type(error).__name__}: {error}"})
        os._exit(1)
    try:
        with contextlib.suppress(BrokenPipeError):  # given up: the control channel is closed, too
            wire.send(conn, {"ready": True})
        conn.close()
        supervisor.serve(socket.socket(fileno=control), setup)
    except Exception:
        traceback.print_exc()  # to the host process's stderr: a fault of this package
    finally:
        os._exit(1)


def _enter(sandbox: int, request: dict[str, Any]) -> supervisor.Setup:
    """Join the namespaces of the process behind the descriptor ``sandbox`` (a pidfd)."""
    first_uid, count = request["uids"]
    kinds = os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS
    host_root = os.stat("/")
    namespace = None
    if request["single_user"]:
        kinds |= os.CLONE_NEWUSER
    else:
        namespace = create_user_namespace(first_uid, count)
    os.setns(sandbox, kinds)
    os.chdir("/")
    if os.path.samestat(host_root, os.stat("/")):
        raise RuntimeError("the sandbox has no root of its own yet")
    if request["single_user"]:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        hide_from_debuggers()
    return supervisor.Setup(
        user_namespace=namespace,
        file_size_limit=request["file_size_limit"],
    )


if __name__ == "__main__":
    main()
