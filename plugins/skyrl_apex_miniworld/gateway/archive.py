"""The world's state as archives: put files in, take a snapshot out."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .tool import JsonObject


class BadSubsystem(Exception):
    """The named subsystem is none that archives can go to."""


class Subsystems(NamedTuple):
    """Folders on disk of ``filesystem`` and ``.apps_data``."""

    filesystem: str
    apps_data: str

    def folders(self) -> Mapping[str, str]:
        return {"filesystem": self.filesystem, ".apps_data": self.apps_data}

    def folder(self, subsystem: str) -> str:
        """Folder of a subsystem or of a path below one. Raises :class:`BadSubsystem`."""
        first, _, rest = subsystem.partition("/")
        root = self.folders().get(first)
        path = os.path.normpath(os.path.join(root or "", rest))
        if root is None or os.path.relpath(path, root).startswith(".."):
            raise BadSubsystem(f"invalid subsystem: {subsystem!r}")
        return path


def populate(subsystems: Subsystems, subsystem: str, archive: bytes) -> JsonObject:
    """Unpack a tar.gz below a subsystem.

    Raises :class:`BadSubsystem`, or ``tarfile.TarError``/``OSError`` when the archive is none.
    """
    folder = subsystems.folder(subsystem)
    started = time.monotonic()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        os.makedirs(folder, exist_ok=True)
        files = [member for member in tar.getmembers() if member.isfile()]
        tar.extractall(folder, filter="data")
    return {
        "objects_added": len(files),
        "subsystem": subsystem,
        "extracted_bytes": sum(member.size for member in files),
        "hook_timings": {"extract": round(time.monotonic() - started, 4)},
    }


def snapshot_name() -> str:
    """File name of a new snapshot."""
    return f"snap_{os.urandom(16).hex()}.tar.gz"


def snapshot(subsystems: Subsystems) -> Iterator[bytes]:
    """A tar.gz of all files of all subsystems, in pieces as they are packed."""
    pieces = _Pieces()
    with tarfile.open(fileobj=pieces, mode="w|gz") as tar:
        for name, root in subsystems.folders().items():
            for folder, folders, files in os.walk(root):
                folders.sort()
                for file in sorted(files):
                    path = os.path.join(folder, file)
                    tar.add(path, f"{name}/{os.path.relpath(path, root)}", recursive=False)
                    yield from pieces.take()
    yield from pieces.take()


class _Pieces(io.RawIOBase):
    """A write-only file that hands over what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._written.append(piece)
        return len(piece)

    def take(self) -> list[bytes]:
        written, self._written = self._written, []
        return written
