"""What the apps of a world work on."""

from __future__ import annotations

from typing import NamedTuple

from .documents import Documents
from .filesystem import FileSystem


class World(NamedTuple):
    """A world's files, and the readers for its documents."""

    files: FileSystem
    documents: Documents


def open_world(root: str, parsed: str | None = None) -> World:
    """A world whose file system is the folder ``root``; ``parsed`` as in ``Documents``."""
    files = FileSystem(root)
    return World(files, Documents(files, parsed))
