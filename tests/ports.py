"""Ports for servers that bind them only after they have started."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on.

    It is below those that Linux hands out by itself (32768 and up), so that no other process of
    the tests gets it by chance before the server has bound it.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
