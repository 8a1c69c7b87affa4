"""A proxy in front of a gateway that breaks chosen requests over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable

FAULTS = (
    "kill_before",
    "kill_after",
    "stall_before",
    "stall_after",
    "truncate",
    "error_before",
    "error_after",
    "session_gone",
    "garbage",
    "idle_close",
)
"""``before``: the gateway never sees the request. ``after``: it ran, the answer is lost."""

RAN = frozenset({"kill_after", "stall_after", "truncate", "error_after", "garbage", "idle_close"})
"""Faults after which the action has run."""


class FaultProxy:
    """Forwards HTTP to ``upstream``; ``choose(tool)`` names the fault of each ``tools/call``.

    Every request gets a connection of its own to the gateway, so answers end with it.

    :param most: how often one call, told by its arguments, is broken at the most.
    """

    def __init__(
        self, upstream: int, choose: Callable[[str], str | None], most: int | None = None
    ) -> None:
        self._most = most
        self._broken: Counter[str] = Counter()
        self._upstream = upstream
        self.choose = choose
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.injected: list[tuple[str, str]] = []

    async def start(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close the port and cut every connection; :meth:`start` opens the same port again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while await self._one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        length = next(
            (
                int(line.split(":")[1])
                for line in lines
                if line.lower().startswith("content-length")
            ),
            0,
        )
        body = await reader.readexactly(length)
        fault = self._fault_of(lines[0], body)
        if fault == "kill_before":
            return False
        if fault == "stall_before":
            await asyncio.sleep(3600)
        if fault in ("error_before", "session_gone"):
            return await _reply(writer, 500 if fault == "error_before" else 404)
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        kept.insert(-2, "Connection: close")
        return await self._forward("\r\n".join(kept).encode("latin-1") + body, writer, fault)

    def _fault_of(self, request_line: str, body: bytes) -> str | None:
        if not request_line.startswith("POST") or not body:
            return None
        message = json.loads(body)
        if message.get("method") != "tools/call":
            return None
        tool, arguments = message["params"]["name"], message["params"].get("arguments")
        call = json.dumps([tool, arguments], sort_keys=True)
        fault = self.choose(tool)
        if fault is None or self._broken[call] == self._most:
            return None
        self._broken[call] += 1
        self.injected.append((tool, fault))
        return fault

    async def _forward(
        self, request: bytes, writer: asyncio.StreamWriter, fault: str | None
    ) -> bool:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            upstream.write(request)
            if fault is None:
                while chunk := await upstream_reader.read(65536):
                    writer.write(chunk)
                    await writer.drain()
                return False
            answer = await upstream_reader.read()
        finally:
            upstream.close()
        return await self._spoil(answer, writer, fault)

    async def _spoil(self, answer: bytes, writer: asyncio.StreamWriter, fault: str) -> bool:
        head, _, body = answer.partition(b"\r\n\r\n")
        if fault == "stall_after":
            await asyncio.sleep(3600)
        if fault == "error_after":
            return await _reply(writer, 500)
        if fault == "truncate":
            writer.write(head + b"\r\n\r\n" + body[: len(body) // 2])
        if fault == "garbage":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: 9\r\n\r\n\xff\xfe{nonsen")
        if fault == "idle_close":
            writer.write(answer.replace(b"connection: close\r\n", b"", 1))
        await writer.drain()
        if fault == "idle_close":
            await asyncio.sleep(0.01)
        return False


async def _reply(writer: asyncio.StreamWriter, status: int) -> bool:
    writer.write(f"HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    return True
