"""Slides: an app with the fault that its output schema does not allow what it returns.

Real servers declare ``nullable: true``, a word that JSON Schema does not know, and return
null: a client that validates strictly rejects their results. Clients are tested against it.
"""

from __future__ import annotations

import json

from ..tool import ApplicationError, JsonObject, Param, Tool
from ..world import World

_OUTPUT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "text": {"type": "string"},
        "notes": {"type": "string", "nullable": True},
    },
    "required": ["title", "text", "notes"],
}


def tools(world: World) -> list[Tool]:
    """``read_slide``: complex arguments under one object ``input``."""

    def read_slide(arguments: JsonObject) -> JsonObject:
        deck = json.loads(world.documents.text(arguments["path"]))
        number = arguments["number"]
        if not 1 <= number <= len(deck["slides"]):
            raise ApplicationError(f"no slide {number}; the deck has {len(deck['slides'])}")
        slide = deck["slides"][number - 1]
        return {"title": slide["title"], "text": slide["text"], "notes": slide.get("notes")}

    return [
        Tool(
            "read_slide",
            "Read one slide of a deck.",
            (Param("path", "string"), Param("number", "integer")),
            read_slide,
            envelope="input",
            output_schema=_OUTPUT_SCHEMA,
        )
    ]
