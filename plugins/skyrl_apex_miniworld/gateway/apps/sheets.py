"""Spreadsheets: one meta-tool over csv and xlsx files."""

from __future__ import annotations

from ..documents import Tab
from ..tool import ApplicationError, JsonObject, Param, Tool
from ..world import World
from .meta import meta_tool, needed

_FIELDS = ("tabs", "rows", "value", "unit")
_UNIT_COLUMN = "Unit"


def tools(world: World) -> list[Tool]:
    """``spreadsheet`` and ``spreadsheet_schema``."""

    def list_tabs(request: JsonObject) -> JsonObject:
        return {"tabs": [tab.name for tab in world.documents.tabs(request["file_path"])]}

    def read_tab(request: JsonObject) -> JsonObject:
        return {"rows": _tab(world, request).rows}

    def lookup(request: JsonObject) -> JsonObject:
        header, *rows = _tab(world, request).rows
        column = _position(header, needed(request, "column"), "column")
        row = rows[_position([row[0] for row in rows], needed(request, "row"), "row")]
        unit = row[header.index(_UNIT_COLUMN)] if _UNIT_COLUMN in header else None
        return {"value": row[column], "unit": unit}

    return meta_tool(
        "spreadsheet",
        "Read csv and xlsx files.",
        {"list_tabs": list_tabs, "read_tab": read_tab, "lookup": lookup},
        (
            Param("file_path", "string"),
            Param("row", "string", required=False),
            Param("column", "string", required=False),
            Param("tab_index", "integer", required=False),
        ),
        _FIELDS,
    )


def _tab(world: World, request: JsonObject) -> Tab:
    tabs = world.documents.tabs(request["file_path"])
    index = request.get("tab_index", 0)
    if not 0 <= index < len(tabs):
        raise ApplicationError(f"no tab {index}; the file has {len(tabs)}")
    return tabs[index]


def _position(names: list[object], wanted: str, kind: str) -> int:
    for index, name in enumerate(names):
        if str(name).lower() == wanted.lower():
            return index
    raise ApplicationError(f"no {kind} {wanted}")
