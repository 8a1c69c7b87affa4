"""Servers that are not bundled: MCP over stdio or HTTP, through the official client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client import streamable_http

from .catalogue import error_result
from .tool import JsonObject

_START_TIMEOUT_S = 30


class ExternalServer:
    """A client session that lives as long as the server is configured.

    The session runs on an event loop in a thread of its own; tools are called from the
    gateway's threads. Raises whatever the server's start raises.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            opened = self._portal.wrap_async_context_manager(_session(config))
            self._session = stack.enter_context(opened)
            listed = self._portal.call(self._session.list_tools)
            self._tools = [_dump(tool) for tool in listed.tools]
            self._open = stack.pop_all()

    def tools(self) -> list[JsonObject]:
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> JsonObject:
        try:
            return _dump(self._portal.call(self._session.call_tool, name, dict(arguments)))
        except Exception as error:  # a server that died is a failed call, not a dead gateway
            return error_result(f"Internal error: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._open.close()


@asynccontextmanager
async def _session(config: Mapping[str, Any]) -> AsyncIterator[ClientSession]:
    async with AsyncExitStack() as stack:
        if "url" in config:
            streams = await stack.enter_async_context(_http(config))
        else:
            parameters = StdioServerParameters(
                command=config["command"],
                args=config.get("args", []),
                env={**os.environ, **config.get("env", {})},
                cwd=config.get("cwd"),
            )
            streams = await stack.enter_async_context(stdio_client(parameters))
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        with anyio.fail_after(_START_TIMEOUT_S):
            await session.initialize()
        yield session


def _http(config: Mapping[str, Any]) -> Any:
    """Streams of a server's URL; mcp 1.x takes headers, 2.x a client that sends them."""
    url, headers = config["url"], config.get("headers", {})
    if hasattr(streamable_http, "streamablehttp_client"):
        return streamable_http.streamablehttp_client(url, headers=headers)
    import httpx2

    return streamable_http.streamable_http_client(
        url, http_client=httpx2.AsyncClient(headers=headers, timeout=None)
    )


def _dump(model: Any) -> JsonObject:
    dumped: JsonObject = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
