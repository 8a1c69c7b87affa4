"""What an extraction refuses, and why."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

FREE_BYTES = 16 * 2**20
"""Unpacked size below which no archive counts as a bomb: empty folders, logs and tables of a small
task compress far better than its archives do as a whole."""
UNUSABLE_NAMES = {
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
}
"""What a file system says of a row's names. Anything else, such as a full disk, no row can help."""


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
    """The relative path of a row's task directory. Raises ``Refused`` for one that escapes, and
    for bytes, which stand for a text that is not UTF-8."""
    if isinstance(text, bytes):
        raise Refused(f"path {text!r} is not UTF-8")
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


def check_link(name: str, text: str) -> None:
    """Refuse the link ``name``, a member's path, whose text leads out of the task.

    Only leading ``..`` are allowed, at most as many as there are folders around the link. These
    are real folders, so the text climbs within the task, and from there on it only descends: no
    chain of such links leads out. A ``..`` further on would climb from wherever another link led.
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    depth = name.count("/")
    climbing = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    if text.startswith("/") or "\0" in text or climbing > depth:
        raise Refused(f"member {name!r} links to {text!r}, out of the task")
    if ".." in parts[climbing:]:
        raise Refused(f"member {name!r} links to {text!r}, with '..' after a name")


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Refuse ``what`` when the file system cannot take its name; other ``OSError`` pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNUSABLE_NAMES:
            raise
        raise Refused(f"{what}: {os.strerror(error.errno)}") from error
