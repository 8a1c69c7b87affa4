"""Copying bytes between two connections, both ways, half-closes included."""

from __future__ import annotations

import asyncio
import socket

_CHUNK = 65536


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, remote: socket.socket
) -> None:
    """Copy until both sides have finished. Closes ``remote``."""
    far_reader, far_writer = await asyncio.open_connection(sock=remote)
    try:
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    finally:
        far_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
    except OSError:  # one side vanished: the other learns it by its connection closing
        target.close()
