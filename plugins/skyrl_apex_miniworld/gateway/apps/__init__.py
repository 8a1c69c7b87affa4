"""The world's apps. Each module gives ``tools(world)``; ``APPS`` names them."""

from __future__ import annotations

from collections.abc import Callable

from ..tool import Tool
from ..world import World
from . import code, files, mail, sheets, slides

APPS: dict[str, Callable[[World], list[Tool]]] = {
    "files": files.tools,
    "sheets": sheets.tools,
    "mail": mail.tools,
    "shell": code.tools,
    "slides": slides.tools,
}
"""App name to what makes its tools."""
