"""The servers that are up: which tools they show, under which names, and how a call runs."""

from __future__ import annotations

import base64
import json
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .tool import ApplicationError, ArgumentError, Image, JsonObject, Tool


class Server(Protocol):
    """Something that shows tools: a bundled app, or an MCP server elsewhere."""

    def tools(self) -> list[JsonObject]:
        """Tool descriptions with the server's own names."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> JsonObject:
        """Run a tool of this server; the result of MCP's ``tools/call``."""
        ...

    def close(self) -> None: ...


class BundledServer:
    """One of the world's own apps, served inside the gateway's process."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def tools(self) -> list[JsonObject]:
        return [tool.described(tool.name) for tool in self._tools.values()]

    def call(self, name: str, arguments: Mapping[str, Any]) -> JsonObject:
        tool = self._tools[name]
        try:
            result = tool.run(tool.checked(arguments))
        except ArgumentError as error:
            return error_result(f"Internal error: Validation error: {error}")
        except ApplicationError as error:
            result = {"error": str(error)}
        except Exception as error:  # the client learns of it, and so does the server's log
            traceback.print_exc(file=sys.stderr)
            return error_result(f"Internal error: {type(error).__name__}: {error}")
        return _result(result, structured=tool.output_schema is not None)

    def close(self) -> None:
        """Nothing to release: the app lives in this process."""


class Catalogue:
    """Tools of all servers under their public names.

    One server shows bare tool names; two or more show ``{server}_{tool}``. ``allowed`` (``None``:
    everything) keeps tools whose public name equals an entry or ends in ``_entry``.
    """

    def __init__(self, servers: Mapping[str, Server], allowed: Iterable[str] | None = None) -> None:
        self.servers = dict(servers)
        self._allowed = None if allowed is None else tuple(allowed)
        self._routes: dict[str, tuple[Server, str]] = {}
        self._described: list[JsonObject] = []
        prefixed = len(self.servers) > 1
        for server_name, server in self.servers.items():
            for tool in server.tools():
                public = f"{server_name}_{tool['name']}" if prefixed else str(tool["name"])
                self._routes[public] = (server, tool["name"])
                if self._is_allowed(public):
                    self._described.append({**tool, "name": public})

    def _is_allowed(self, public: str) -> bool:
        return self._allowed is None or any(
            public == entry or public.endswith(f"_{entry}") for entry in self._allowed
        )

    def tools(self) -> list[JsonObject]:
        """Descriptions for ``tools/list``."""
        return self._described

    def call(self, name: str, arguments: Mapping[str, Any] | None) -> JsonObject:
        """Run a tool by its public name. Unknown and disallowed tools are error results."""
        if name not in self._routes:
            return error_result(f"Unknown tool: {name!r}")
        if not self._is_allowed(name):
            return error_result(f"Tool {name!r} is not allowed for this task")
        server, own_name = self._routes[name]
        return server.call(own_name, arguments or {})

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


def error_result(message: str) -> JsonObject:
    """A ``tools/call`` result that the client sees as failed."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _result(value: str | JsonObject | Image, *, structured: bool) -> JsonObject:
    if isinstance(value, Image):
        data = base64.b64encode(value.data).decode("ascii")
        content = [{"type": "image", "data": data, "mimeType": value.mime_type}]
        return {"content": content, "isError": False}
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}], "isError": False}
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    result: JsonObject = {"content": [{"type": "text", "text": text}], "isError": False}
    if structured:
        result["structuredContent"] = value
    return result
