"""Files: flat, read-only tools."""

from __future__ import annotations

from ..tool import Image, JsonObject, Param, Tool
from ..world import World

_IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_MAX_HITS = 20


def tools(world: World) -> list[Tool]:
    """``list_files``, ``read_file``, ``search_files``."""

    def list_files(arguments: JsonObject) -> JsonObject:
        return {"files": world.files.files(arguments.get("path", "/"))}

    def read_file(arguments: JsonObject) -> str | Image:
        name = arguments["path"]
        for suffix, mime_type in _IMAGE_TYPES.items():
            if name.lower().endswith(suffix):
                with open(world.files.existing(name), "rb") as file:
                    return Image(file.read(), mime_type)
        return world.documents.text(name)

    def search_files(arguments: JsonObject) -> JsonObject:
        wanted = arguments["text"].lower()
        hits = []
        for name in world.files.files():
            for number, line in enumerate(_searchable(world, name).splitlines(), 1):
                if wanted in line.lower():
                    hits.append({"file": name, "line": number, "text": line.strip()})
        return {"hits": hits[:_MAX_HITS], "more": max(0, len(hits) - _MAX_HITS)}

    return [
        Tool(
            "list_files",
            "List all files below a folder.",
            (Param("path", "string", required=False),),
            list_files,
        ),
        Tool("read_file", "Read a document.", (Param("path", "string"),), read_file),
        Tool(
            "search_files",
            "Find the lines of documents that hold a text.",
            (Param("text", "string"),),
            search_files,
        ),
    ]


def _searchable(world: World, name: str) -> str:
    if name.lower().endswith((".xlsx", *_IMAGE_TYPES)):
        return ""
    return world.documents.text(name)
