"""A disk limit for sandboxes on file systems without quotas: looked at, then enforced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

INTERVAL_SEC = 5.0


def used_bytes(directory: Path) -> int:
    """What the files below a directory take on the disk; links are not followed."""
    total = 0
    pending = [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted meanwhile
        except PermissionError:
            continue  # closed by the sandbox to a host user who is not root: the rest counts
    return total


async def watch(
    directory: Path, limit_bytes: int, on_exceeded: Callable[[int], Awaitable[None]]
) -> None:
    """Call ``on_exceeded(used)`` once when the directory holds more than the limit.

    A single file cannot pass the limit at all (``RLIMIT_FSIZE``); many files can, until the next
    look.
    """
    while True:
        used = await asyncio.to_thread(used_bytes, directory)
        if used > limit_bytes:
            return await on_exceeded(used)
        await asyncio.sleep(INTERVAL_SEC)
