"""Collecting what a command writes."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self

LIMIT_BYTES = 16 * 2**20
"""Kept of each stream; the rest is read and dropped, so that no command can fill the host."""
_IDLE_SEC = 0.05


class OutputPipe:
    """A pipe whose write end goes to the command."""

    def __init__(
        self,
        name: Literal["stdout", "stderr"],
        callback: Callable[[str, Literal["stdout", "stderr"]], Awaitable[None]] | None,
    ) -> None:
        self._name = name
        self._callback = callback
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._kept = bytearray()
        self._dropped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Nothing is awaited: whoever cancelled the command may cancel this as well.
        descriptor, self._read_end = self._read_end, -1
        if self._task is not None:
            self._task.cancel()
            asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._close_write_end()

    def start(self) -> None:
        """Close our copy of the write end and begin to read."""
        self._close_write_end()
        self._task = asyncio.create_task(self._read())

    def _close_write_end(self) -> None:
        if self.write_end != -1:
            os.close(self.write_end)
            self.write_end = -1

    async def _read(self) -> None:
        while chunk := await self._next_chunk():
            room = LIMIT_BYTES - len(self._kept)
            self._kept += chunk[:room]
            self._dropped += max(0, len(chunk) - room)
            if self._callback is not None:
                await self._callback(self._decoder.decode(chunk), self._name)

    async def _next_chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self._read_end, 65536)
            except BlockingIOError:
                ready = asyncio.Event()
                loop.add_reader(self._read_end, ready.set)
                try:
                    await ready.wait()
                finally:
                    if self._read_end != -1:  # else its number may be somebody else's by now
                        loop.remove_reader(self._read_end)

    async def finish(self) -> str:
        """The text, once the command has ended.

        A background process may hold the pipe open: then reading ends when nothing more comes.
        """
        assert self._task is not None
        seen = -1
        while not self._task.done() and seen != len(self._kept) + self._dropped:
            seen = len(self._kept) + self._dropped
            await asyncio.wait([self._task], timeout=_IDLE_SEC)
        if self._task.done():
            self._task.result()
        text = self._kept.decode("utf-8", "replace")
        return text if not self._dropped else f"{text}\n[{self._dropped} more bytes dropped]\n"
