"""The world's file system as apps see it: absolute names like ``/Finance/sales.xlsx``."""

from __future__ import annotations

import os

from .tool import ApplicationError


class FileSystem:
    """Names of a world mapped onto a folder. Nothing outside of it can be named."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def real(self, name: str) -> str:
        """Path on disk of ``name``. Raises :class:`ApplicationError` when it leaves the world."""
        path = os.path.realpath(os.path.join(self.root, name.lstrip("/")))
        if path != self.root and not path.startswith(self.root + os.sep):
            raise ApplicationError(f"path is outside of the file system: {name}")
        return path

    def existing(self, name: str) -> str:
        """Path on disk of a file that exists. Raises :class:`ApplicationError` otherwise."""
        path = self.real(name)
        if not os.path.isfile(path):
            raise ApplicationError(f"file not found: {name}")
        return path

    def name(self, path: str) -> str:
        """The world's name of a path on disk."""
        return "/" + os.path.relpath(path, self.root).replace(os.sep, "/")

    def files(self, under: str = "/") -> list[str]:
        """Names of all files below ``under``, sorted."""
        found = []
        for folder, _, names in os.walk(self.real(under)):
            found += [self.name(os.path.join(folder, name)) for name in names]
        return sorted(found)
