"""A small world gateway, run as a process: health, two MCP servers' tools, and a log of actions.

``/actions`` tells which actions really ran, so a test can hold the agent to "at most once".
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
READ_ONLY = ToolAnnotations(read_only_hint=True)

actions: list[str] = []
files: dict[str, str] = {}


def build(extra_tools: int) -> MCPServer:
    server = MCPServer("toy", log_level="ERROR")

    @server.tool(annotations=READ_ONLY, structured_output=False)
    def files_read(path: str) -> str:
        """Read a file."""
        actions.append(f"read {path}")
        return files.get(path, "")

    @server.tool(structured_output=False)
    def files_write(path: str, text: str) -> str:
        """Write a file."""
        actions.append(f"write {path}")
        files[path] = text
        return f"wrote {len(text)} characters to {path}"

    @server.tool(structured_output=False)
    def mail_send(request: dict[str, Any]) -> dict[str, Any]:
        """Send a mail; an application error comes as a success."""
        actions.append(f"mail {request.get('to')}")
        if "@" not in str(request.get("to")):
            return {"error": f"no such recipient {request.get('to')!r}", "id": None}
        return {"error": None, "id": 7}

    @server.tool(structured_output=False)
    async def files_slow(seconds: float, tag: str) -> str:
        """Take a while."""
        actions.append(f"slow {tag}")
        await asyncio.sleep(seconds)
        return f"slept {seconds}"

    @server.tool(annotations=READ_ONLY, structured_output=False)
    def files_shape(kind: str) -> CallToolResult:
        """Answer in an unusual shape."""
        return CallToolResult(content=SHAPES[kind]())

    for number in range(extra_tools):
        server.add_tool(
            files_read, name=f"files_extra_{number}", annotations=READ_ONLY, structured_output=False
        )

    @server.custom_route("/health", methods=["GET"])
    async def health(_: Request) -> PlainTextResponse:
        return PlainTextResponse("OK")

    @server.custom_route("/actions", methods=["GET"])
    async def log(_: Request) -> JSONResponse:
        return JSONResponse(actions)

    return server


SHAPES = {
    "image": lambda: [ImageContent(type="image", data=PNG, mime_type="image/png")],
    "empty": lambda: [],
    "long": lambda: [TextContent(type="text", text="x" * 5_000_000)],
    "json": lambda: [TextContent(type="text", text=json.dumps({"a": 1, "b": None}))],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--extra-tools", type=int, default=0)
    arguments = parser.parse_args()
    app = build(arguments.extra_tools).streamable_http_app(streamable_http_path="/mcp/")
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="error")


if __name__ == "__main__":
    main()
