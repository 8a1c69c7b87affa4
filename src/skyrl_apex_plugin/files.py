"""Files that are either whole or absent."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` in one step: readers see the old file or the whole new one.

    The parent folder is created. Text is written as UTF-8. Raises ``OSError`` as ``open`` does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
