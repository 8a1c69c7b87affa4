"""Messages between the host and the processes that serve a sandbox.

A message is a JSON object behind a four-byte length, over a Unix stream socket; open file
descriptors may travel with it. Standard library only: the serving side imports it as well.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
MAX_FDS = 8


class ConnectionLost(Exception):
    """The other side closed the connection before a whole message arrived."""


def _encode(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(body.decode("utf-8", "surrogatepass"))
    return message


def send(conn: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message over a blocking socket; ``fds`` are duplicated into the receiver."""
    data = _encode(message)
    sent = socket.send_fds(conn, [data], list(fds)) if fds else 0
    if sent < len(data):  # the peer may be gone once it has everything
        conn.sendall(data[sent:])


def receive(conn: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors over a blocking socket.

    :raises ConnectionLost: when the peer closed the connection.
    """
    header, fds, _, _ = socket.recv_fds(conn, _LENGTH.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    header += _read(conn, _LENGTH.size - len(header))
    return _decode(_read(conn, _LENGTH.unpack(header)[0])), fds


def _read(conn: socket.socket, count: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < count:
        chunk = conn.recv(count - len(chunks))
        if not chunk:
            raise ConnectionLost
        chunks += chunk
    return bytes(chunks)


async def send_async(conn: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """:func:`send` for a non-blocking socket. Descriptors go with the first bytes, which
    always fit an empty buffer: send them with the first message of a connection only."""
    data = _encode(message)
    sent = socket.send_fds(conn, [data], list(fds)) if fds else 0
    if sent < len(data):
        await asyncio.get_running_loop().sock_sendall(conn, data[sent:])


async def receive_async(conn: socket.socket) -> dict[str, Any]:
    """Receive one message without descriptors over a non-blocking socket.

    :raises ConnectionLost: when the peer closed the connection.
    """
    header = await _read_async(conn, _LENGTH.size)
    return _decode(await _read_async(conn, _LENGTH.unpack(header)[0]))


async def receive_fds_async(conn: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message with descriptors over a non-blocking socket."""
    await _readable(conn)
    header, fds, _, _ = socket.recv_fds(conn, _LENGTH.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if len(header) < _LENGTH.size:
        header += await _read_async(conn, _LENGTH.size - len(header))
    return _decode(await _read_async(conn, _LENGTH.unpack(header)[0])), fds


async def _read_async(conn: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    chunks = bytearray()
    while len(chunks) < count:
        chunk = await loop.sock_recv(conn, count - len(chunks))
        if not chunk:
            raise ConnectionLost
        chunks += chunk
    return bytes(chunks)


async def _readable(conn: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(conn.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(conn.fileno())
