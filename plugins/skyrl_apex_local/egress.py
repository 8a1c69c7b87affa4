"""The only way out of a sandbox: an HTTP proxy on its loopback, served by this process.

The sandbox's network namespace has no other interface, so what the proxy refuses cannot be
reached at all. Names are resolved here; an address of the host or of a private network is
refused whatever the policy, and the connection is made to the address that was checked.
"""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import logging
import socket
from urllib.parse import urlsplit

from harbor.models.task.config import NetworkMode, NetworkPolicy

from .relay import relay

_HEAD_LIMIT = 65536
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """The policy, or the protocol, does not allow the request."""


def check_host(host: str, policy: NetworkPolicy) -> None:
    """:raises Refused: when the policy does not list the host."""
    if policy.network_mode == NetworkMode.PUBLIC:
        return
    if policy.network_mode == NetworkMode.ALLOWLIST:
        if any(_matches(host, entry) for entry in policy.allowed_hosts):
            return
        raise Refused(f"{host} is not on the task's allow-list")
    raise Refused("the task allows no network")


def _matches(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        if entry.startswith("*."):
            return fnmatch.fnmatchcase(host.lower(), entry.lower())
        return host.lower().rstrip(".") == entry.lower()


async def resolve_public(host: str, port: int) -> list[tuple[str, int]]:
    """Addresses of a host that are neither this machine's nor a private network's.

    :raises Refused: when there is none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(f"{host} cannot be resolved: {error}") from error
    addresses = [
        (str(info[4][0]), port) for info in found if ipaddress.ip_address(info[4][0]).is_global
    ]
    if not addresses:
        raise Refused(f"{host} is an address of the host or of a private network")
    return addresses


class EgressProxy:
    """Serves one sandbox. ``policy`` may be replaced while it runs."""

    def __init__(self, listener: socket.socket, policy: NetworkPolicy, log: logging.Logger) -> None:
        self.policy = policy
        self._listener = listener
        self._log = log
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, sock=self._listener, limit=_HEAD_LIMIT
        )

    def drop_connections(self) -> None:
        """Close what an earlier policy had allowed."""
        for task in self._connections:
            task.cancel()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.drop_connections()
            if self._connections:
                await asyncio.wait(self._connections)
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except Refused as refusal:
            self._log.info("sandbox network: %s", refusal)
            writer.write(_response("403 Forbidden", f"{refusal}\n"))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self._log.info("sandbox network: %s", error)
            writer.write(_response("502 Bad Gateway", f"{error}\n"))
        except asyncio.CancelledError:
            return  # the proxy was closed, or the policy changed
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, headers = head.partition(b"\r\n")
        try:
            method, target, version = first.decode("latin-1").split(" ")
        except ValueError:
            raise Refused(f"not an HTTP request: {first[:80]!r}") from None
        tunnelled = method == "CONNECT"
        url = urlsplit(f"//{target}" if tunnelled else target)
        if not url.hostname or (not tunnelled and url.scheme != "http"):
            raise Refused(f"{target[:200]!r} names no host: use the proxy as an HTTP proxy")
        check_host(url.hostname, self.policy)
        remote = await self._connect(url.hostname, url.port or (443 if tunnelled else 80))
        if tunnelled:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await relay(reader, writer, remote)
            return
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        # One request for each connection: a second one could name another host.
        kept = [line for line in headers.split(b"\r\n") if not _is_connection_header(line)]
        request = [f"{method} {path} {version}".encode("latin-1"), b"Connection: close", *kept]
        await asyncio.get_running_loop().sock_sendall(remote, b"\r\n".join(request))
        await relay(reader, writer, remote)

    async def _connect(self, host: str, port: int) -> socket.socket:
        addresses = await resolve_public(host, port)
        failure: OSError | None = None
        for address in addresses:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            remote = socket.socket(family, socket.SOCK_STREAM)
            remote.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(remote, address)
                return remote
            except OSError as error:
                remote.close()
                failure = error
        raise failure or OSError(f"{host} has no address")


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _is_connection_header(line: bytes) -> bool:
    return line.partition(b":")[0].strip().lower() in (b"connection", b"proxy-connection")
