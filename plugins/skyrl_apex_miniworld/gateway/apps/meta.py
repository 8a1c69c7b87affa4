"""The style of apps with many actions: one meta-tool plus ``<tool>_schema``."""

from __future__ import annotations

from collections.abc import Callable

from ..tool import ApplicationError, JsonObject, Param, Tool

Action = Callable[[JsonObject], JsonObject]


def meta_tool(
    name: str,
    description: str,
    actions: dict[str, Action],
    params: tuple[Param, ...],
    fields: tuple[str, ...],
    *,
    read_only: bool = True,
) -> list[Tool]:
    """A tool that takes one object ``request`` with an ``action``, and its schema tool.

    Every result carries all of ``fields``; the ones that an action does not use are null.
    """

    def run(request: JsonObject) -> JsonObject:
        return dict.fromkeys(fields) | actions[request["action"]](request)

    action = Param("action", "string", choices=tuple(actions))
    tool = Tool(name, description, (action, *params), run, envelope="request", read_only=read_only)
    return [tool, schema_tool(tool)]


def schema_tool(tool: Tool) -> Tool:
    """``<tool>_schema``: answers the input schema of ``tool``."""
    return Tool(
        f"{tool.name}_schema", f"Input schema of {tool.name}.", (), lambda _: tool.input_schema()
    )


def needed(request: JsonObject, name: str) -> str:
    """An argument that only some actions need. Raises :class:`ApplicationError` without it."""
    if name not in request:
        raise ApplicationError(f"action {request['action']} needs {name}")
    return str(request[name])
