"""A TCP port of this machine's loopback that leads to a port inside a sandbox."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from .relay import relay

OpenSocket = Callable[[], Awaitable[tuple[socket.socket, int]]]


class Tunnel:
    """Listens on a free port; each connection is made again from inside the sandbox's network.

    Uses the event loop it was started in and no thread.
    """

    def __init__(self, port: int, open_socket: OpenSocket) -> None:
        self._port = port
        self._open_socket = open_socket
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Start to listen; returns the URL."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            remote, _ = await self._open_socket()
            try:
                loop = asyncio.get_running_loop()
                await loop.sock_connect(remote, ("127.0.0.1", self._port))
            except OSError:
                remote.close()  # nothing listens inside: the client sees its connection close
                return
            await relay(reader, writer, remote)
        except asyncio.CancelledError:
            return  # the tunnel was closed
        finally:
            self._relays.discard(task)
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._relays:
                task.cancel()
            if self._relays:
                await asyncio.wait(self._relays)
            self._server = None
