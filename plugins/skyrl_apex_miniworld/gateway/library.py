"""The gateway on the official MCP library, Starlette and uvicorn.

It shows the same world as the light one. Its imports cost over a second of CPU time for each
start, so worlds that are started thousands of times use the light one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import uvicorn
from anyio.abc import TaskStatus
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .archive import Subsystems, snapshot, snapshot_name
from .catalogue import Catalogue
from .surface import Surface
from .world import World


def mcp_server(catalogue: Catalogue) -> Server[Any]:
    """A server of the official library that shows ``catalogue``; mcp 1.x and 2.x."""

    def tools() -> list[types.Tool]:
        return [types.Tool.model_validate(tool) for tool in catalogue.tools()]

    async def call(name: str, arguments: dict[str, Any] | None) -> types.CallToolResult:
        result = await anyio.to_thread.run_sync(catalogue.call, name, arguments)
        return types.CallToolResult.model_validate(result)

    if not hasattr(Server, "call_tool"):

        async def on_list_tools(_: Any, __: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=tools())

        async def on_call_tool(_: Any, params: Any) -> types.CallToolResult:
            return await call(params.name, params.arguments)

        return Server("miniworld", on_list_tools=on_list_tools, on_call_tool=on_call_tool)

    server: Any = Server("miniworld")

    async def list_tools_v1() -> list[types.Tool]:
        return tools()

    server.list_tools()(list_tools_v1)
    server.call_tool(validate_input=False)(call)
    return server  # type: ignore[no-any-return]


class McpEndpoint:
    """ASGI app at ``/mcp``: the session manager of the latest catalogue, 404 before the first."""

    def __init__(self) -> None:
        self._manager: StreamableHTTPSessionManager | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stop: anyio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            await JSONResponse({"detail": "Not Found"}, status_code=404)(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Holds the session managers' tasks."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def show(self, catalogue: Catalogue) -> None:
        """Serve ``catalogue`` from now on; sessions of the one before end."""
        if self._stop is not None:
            self._stop.set()
        assert self._tasks is not None, "show() needs running()"
        self._stop = anyio.Event()
        self._manager = await self._tasks.start(_manage, mcp_server(catalogue), self._stop)


async def _manage(
    server: Server[Any],
    stop: anyio.Event,
    *,
    task_status: TaskStatus[StreamableHTTPSessionManager],
) -> None:
    manager = StreamableHTTPSessionManager(server)
    async with manager.run():
        task_status.started(manager)
        await stop.wait()


def gateway_app(
    world: World,
    subsystems: Subsystems,
    retry_seconds: float,
    start_task: Callable[[Surface], None] | None = None,
) -> Starlette:
    """The whole gateway as an ASGI app. ``start_task`` runs in a thread at start."""
    endpoint = McpEndpoint()
    surface = Surface(
        world, subsystems, lambda new: anyio.from_thread.run(endpoint.show, new), retry_seconds
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with endpoint.running():
            if start_task is not None:
                await anyio.to_thread.run_sync(start_task, surface)
            yield
        surface.close()

    async def health(_: Request) -> Response:
        return PlainTextResponse("OK")

    async def apps(request: Request) -> Response:
        body = await request.body()
        status, answer = await anyio.to_thread.run_sync(surface.apps, body)
        return JSONResponse(answer, status_code=status)

    async def populate(request: Request) -> Response:
        subsystem = request.query_params.get("subsystem", "filesystem")
        content_type = request.headers.get("content-type", "")
        body = await request.body()
        status, answer = await anyio.to_thread.run_sync(
            surface.populate, subsystem, content_type, body
        )
        return JSONResponse(answer, status_code=status)

    async def take_snapshot(_: Request) -> Response:
        headers = {"content-disposition": f'attachment; filename="{snapshot_name()}"'}
        return StreamingResponse(
            snapshot(subsystems), media_type="application/gzip", headers=headers
        )

    routes = [
        Route("/health", health),
        Route("/apps", apps, methods=["POST"]),
        Route("/data/populate", populate, methods=["POST"]),
        Route("/data/snapshot", take_snapshot, methods=["POST"]),
        Route("/mcp", endpoint),
        Route("/mcp/", endpoint),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve(
    address: tuple[str, int],
    world: World,
    subsystems: Subsystems,
    retry_seconds: float,
    start_task: Callable[[Surface], None],
) -> None:
    """Serve until the process is ended."""
    app = gateway_app(world, subsystems, retry_seconds, start_task)
    uvicorn.run(app, host=address[0], port=address[1], log_level="warning")
