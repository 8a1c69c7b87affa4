"""What an extraction refuses, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

FREE_BYTES = 16 * 2**20
"""Unpacked size below which no archive counts as a bomb."""


class Refused(Exception):
    """A row that is not extracted. The message says why; the caller adds shard and row number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """:param unpack_ratio: unpacked over packed size at which an archive counts as a bomb."""

    unpack_ratio: int = 200

    def unpacked(self, packed: int) -> int:
        """Bytes that an archive of ``packed`` bytes may unpack to."""
        return max(FREE_BYTES, self.unpack_ratio * packed)


def task_path(text: object) -> PurePosixPath:
    """The relative path of a row's task directory. Raises ``Refused`` for one that escapes."""
    if not isinstance(text, str) or not text.strip():
        raise Refused(f"path is {text!r}")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text:
        raise Refused(f"path {text!r} leads out of the target directory")
    if any(part.startswith(".") for part in path.parts) or not path.parts:
        raise Refused(f"path {text!r} has a hidden part, which is never taken for a task")
    return path


def member_path(name: str) -> str:
    """The relative path of an archive member; empty for the root. Raises ``Refused``."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"member {name!r} leads out of the task directory")
    return "/".join(parts)
