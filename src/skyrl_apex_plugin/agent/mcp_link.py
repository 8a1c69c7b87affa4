"""One live MCP connection over streamable HTTP, for the 1.x and 2.x lines of ``mcp``.

The library says that a request failed, not whether it can have reached the server. That decides
whether a tool call may be sent again, so the HTTP transport is watched for each ``tools/call``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio

from .tls import shared_tls

logger = logging.getLogger(__name__)

INITIALIZE_TIMEOUT_SEC = 60.0
"""Worlds that respawn their servers on every request take 20 to 44 s for this one too."""
PING_TIMEOUT_SEC = 5.0
ANSWER_GRACE_SEC = 5.0
"""How long an answer may still come after its response stream ended: the library resumes
streams that carry event IDs, with a second between its two attempts."""
CONNECTION_CLOSED = -32000
PARSE_ERROR = -32700
"""Error codes that ``mcp`` 2.x gives to connection faults of its own."""


class CallLost(Exception):
    """A request got no answer.

    :param may_have_run: whether the server can have received it.
    """

    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_have_run = may_have_run


class CallTimedOut(Exception):
    """No answer within the tool's time limit, on a connection that still lives."""


class RemoteError(Exception):
    """The server answered with a JSON-RPC error."""


class UnreadableAnswer(Exception):
    """The server answered, but not in the protocol."""


@dataclass(eq=False, slots=True)
class Exchange:
    """What is known of one request that waits for its answer."""

    method: str
    params: Mapping[str, Any]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    posted: bool = False
    lost: CallLost | None = None
    settled: bool = False
    grace: asyncio.TimerHandle | None = None

    def matches(self, body: Mapping[str, Any]) -> bool:
        if self.posted or body.get("method") != self.method:
            return False
        sent = body.get("params") or {}
        return all(sent.get(name) == value for name, value in self.params.items())

    def lose(self, lost: CallLost) -> None:
        """Give up waiting. The first reason stands: later ones are its consequences."""
        if self.lost is None and not self.settled:
            self.lost = lost
            self.scope.cancel()

    def lose_later(self, lost: CallLost) -> None:
        """The response stream ended: the answer is being delivered, will be resumed, or is lost."""
        if self.grace is None and not self.settled:
            loop = asyncio.get_running_loop()
            self.grace = loop.call_later(ANSWER_GRACE_SEC, self.lose, lost)

    def settle(self) -> None:
        """Nobody waits any more."""
        self.settled = True
        if self.grace is not None:
            self.grace.cancel()


@functools.cache
def library() -> SimpleNamespace:
    """The parts of ``mcp`` whose names or modules differ between 1.x and 2.x."""
    import mcp.types as types
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared import exceptions

    modern = hasattr(exceptions, "MCPError")
    return SimpleNamespace(
        modern=modern,
        types=types,
        ClientSession=ClientSession,
        connect=functools.partial(streamable_http_client, max_sse_event_size=None)
        if modern
        else streamable_http_client,
        error=getattr(exceptions, "MCPError" if modern else "McpError"),
        http=importlib.import_module("httpx2" if modern else "httpx"),
    )


class McpLink:
    """A connection that one task of its own opens, holds and closes.

    The library's context managers must be left by the task that entered them; requests may come
    from any task. Once dead a link stays dead: open another one.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._exchanges: list[Exchange] = []
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._session: Any = None
        self._death: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._session is not None and self._death is None

    async def open(self) -> None:
        """Connect and initialize the session.

        :raises CallLost: the server did not answer as an MCP server within a minute.
        """
        self._task = asyncio.create_task(self._hold(), name=f"mcp {self._url}")
        try:
            with anyio.move_on_after(INITIALIZE_TIMEOUT_SEC):
                await self._ready.wait()
        except BaseException:
            await self.close()
            raise
        if not self.alive:
            reason = self._death or f"no answer to initialize in {INITIALIZE_TIMEOUT_SEC:g} s"
            await self.close()
            raise CallLost(reason, may_have_run=False)

    async def close(self) -> None:
        """End the connection; never raises, takes at most two seconds."""
        if self._task is None:
            return
        self._closing.set()
        with anyio.CancelScope(shield=True):
            if not self._ready.is_set():
                self._task.cancel()
            done, _ = await asyncio.wait({self._task}, timeout=2.0)
            if not done:
                self._task.cancel()
                await asyncio.wait({self._task})

    def cut(self) -> None:
        """End the connection without a goodbye, from outside of any task."""
        if self._task is not None:
            self._closing.set()
            self._task.cancel()

    async def list_tools(self, timeout: float) -> list[dict[str, Any]]:
        """Every tool, in wire form, all pages.

        :raises CallLost: no answer. :raises RemoteError: the server refuses to list.
        """
        types = library().types
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            found = await self._request(
                types.ListToolsRequest(params=params), types.ListToolsResult, {}, timeout
            )
            tools += found.get("tools", [])
            cursor = found.get("nextCursor")
            if not cursor:
                return tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], timeout: float
    ) -> dict[str, Any]:
        """Call a tool and return its ``CallToolResult`` in wire form.

        The library's own check against output schemas is left out: worlds return nulls that their
        schemas forbid, and the tool has run by then.

        :raises CallLost: the connection failed. :raises CallTimedOut: the tool is slow.
        :raises RemoteError: the server answered with an error.
        :raises UnreadableAnswer: what came is no tool result.
        """
        types = library().types
        params = types.CallToolRequestParams(name=name, arguments=dict(arguments))
        return await self._request(
            types.CallToolRequest(params=params),
            types.CallToolResult,
            {"name": name, "arguments": dict(arguments)},
            timeout,
        )

    async def _request(
        self, request: Any, result_type: Any, params: Mapping[str, Any], timeout: float
    ) -> dict[str, Any]:
        if not self.alive:
            raise CallLost(self._death or "the session is closed", may_have_run=False)
        exchange = Exchange(request.method, params)
        self._exchanges.append(exchange)
        try:
            with exchange.scope:
                exchange.scope.deadline = anyio.current_time() + timeout
                result = await self._send(exchange, request, result_type)
                found: dict[str, Any] = result.model_dump(
                    by_alias=True, mode="json", exclude_none=True
                )
                return found
        finally:
            self._exchanges.remove(exchange)
            exchange.settle()
        if exchange.lost is None:
            await self._blame_timeout(exchange, timeout)
        assert exchange.lost is not None
        raise exchange.lost

    async def _send(self, exchange: Exchange, request: Any, result_type: Any) -> Any:
        lib = library()
        wrapped = request if lib.modern else lib.types.ClientRequest(request)
        try:
            return await self._session.send_request(wrapped, result_type)
        except lib.error as error:
            if exchange.lost is not None:
                raise exchange.lost from error
            if error.error.code == PARSE_ERROR:
                raise UnreadableAnswer(str(error)) from error
            if error.error.code == CONNECTION_CLOSED and (exchange.grace or not self.alive):
                raise CallLost(str(error), may_have_run=exchange.posted) from error
            raise RemoteError(str(error)) from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise exchange.lost or CallLost(
                f"the session ended: {type(error).__name__}", may_have_run=exchange.posted
            ) from error
        except ValueError as error:  # pydantic's ValidationError is one
            raise UnreadableAnswer(f"{type(error).__name__}: {error}") from error

    async def _blame_timeout(self, exchange: Exchange, timeout: float) -> None:
        """A slow tool or a dead connection? Only an answered ping tells them apart."""
        types = library().types
        ping = types.PingRequest(method="ping")
        wrapped = ping if library().modern else types.ClientRequest(ping)
        answered = False
        with anyio.move_on_after(PING_TIMEOUT_SEC), contextlib.suppress(Exception):
            await self._session.send_request(wrapped, types.EmptyResult)
            answered = True
        if answered:
            raise CallTimedOut(f"no answer within {timeout:g} s")
        exchange.lost = CallLost(
            f"no answer within {timeout:g} s, nor to a ping", may_have_run=exchange.posted
        )

    async def _hold(self) -> None:
        """The owner task: enter the library's contexts, wait, leave them."""
        lib = library()
        client = lib.http.AsyncClient(
            transport=_watched_transport(lib.http)(self._exchange_of),
            # Tools set their own limits; a slow one must not break the connection for the others.
            timeout=lib.http.Timeout(10.0, read=None),
        )
        try:
            async with (
                client,
                lib.connect(self._url, http_client=client) as streams,
                lib.ClientSession(streams[0], streams[1]) as session,
            ):
                await session.initialize()
                self._session = session
                self._ready.set()
                await self._closing.wait()
                self._death = "the session was closed"
        except Exception as error:
            self._death = _describe(error)
            logger.debug("mcp session to %s ended", self._url, exc_info=error)
        except asyncio.CancelledError:
            self._death = self._death or "the session was closed"
            if not self._closing.is_set():
                raise
        finally:
            self._death = self._death or "the session ended"
            self._ready.set()
            for exchange in list(self._exchanges):
                exchange.lose(CallLost(self._death, may_have_run=exchange.posted))

    def _exchange_of(self, content: bytes) -> Exchange | None:
        """The waiting exchange whose request an HTTP body is; equal ones are interchangeable."""
        try:
            body = json.loads(content)
        except ValueError:
            return None
        if not isinstance(body, dict):
            return None
        for exchange in self._exchanges:
            if exchange.matches(body):
                exchange.posted = True
                return exchange
        return None


@functools.cache
def _watched_transport(http: ModuleType) -> Any:
    """An HTTP transport class that tells exchanges what became of their request."""

    class WatchedStream(http.AsyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, inner: Any, exchange: Exchange) -> None:
            self._inner, self._exchange = inner, exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            reason = "the response ended without an answer"
            try:
                async for chunk in self._inner:
                    yield chunk
            except http.HTTPError as error:
                reason = f"the response broke off: {_describe(error)}"
                raise
            finally:
                self._exchange.lose_later(CallLost(reason, may_have_run=True))

        async def aclose(self) -> None:
            await self._inner.aclose()

    class WatchedTransport(http.AsyncHTTPTransport):  # type: ignore[name-defined,misc]
        def __init__(self, exchange_of: Callable[[bytes], Exchange | None]) -> None:
            super().__init__(verify=shared_tls())
            self._exchange_of = exchange_of

        async def handle_async_request(self, request: Any) -> Any:
            exchange = self._exchange_of(request.content) if request.method == "POST" else None
            if exchange is None:
                return await super().handle_async_request(request)
            try:
                response = await super().handle_async_request(request)
            except (http.ConnectError, http.ConnectTimeout, http.PoolTimeout) as error:
                exchange.lose(CallLost(_describe(error), may_have_run=False))
                raise
            except http.HTTPError as error:
                exchange.lose(CallLost(_describe(error), may_have_run=True))
                raise
            status = response.status_code
            if status >= 400:
                exchange.lose(CallLost(f"HTTP {status}", may_have_run=status >= 500))
            elif status >= 300:
                exchange.posted = False  # nothing ran; the library may follow within the origin
            else:
                response.stream = WatchedStream(response.stream, exchange)
            return response

    return WatchedTransport


def _describe(error: BaseException) -> str:
    """The innermost reason of a group, as ``Type: message``."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
