"""Runs inside the sandbox as ``APEX_PYTHON``: starts a Python program as a fork.

A program that imports large libraries starts in milliseconds when the sandbox's supervisor has
them imported already (environment option ``preload``). This file is executed by path with a bare
interpreter, so it uses the standard library only and imports little. Whatever a fork
cannot do (``-c``, interpreter options) goes to a real interpreter instead.
"""

import array
import json
import os
import signal
import socket
import struct
import sys

SOCKET = "/run/apex/python.sock"


def main() -> None:
    real, argv = sys.argv[1], sys.argv[2:]
    startable = bool(argv) and (argv[0] == "-m" or not argv[0].startswith("-"))
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if startable:
        try:
            conn.connect(SOCKET)
        except OSError:
            startable = False
    if not startable:
        os.execv(real, [real, *argv])
    request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
    body = json.dumps(request).encode("utf-8", "surrogatepass")
    data = struct.pack("!I", len(body)) + body
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
    conn.sendall(data[conn.sendmsg([data], [rights]) :])
    # Closing the connection kills the program and everything it started.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reply = b""
    while chunk := conn.recv(4096):
        reply += chunk
    sys.exit(json.loads(reply[4:])["exit"] if reply else 137)


main()
