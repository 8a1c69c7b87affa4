"""From what a user names (directories, shards) to task directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from skyrl_apex_plugin.data.extract import extract_to_cache
from skyrl_apex_plugin.data.tasks import find_task_dirs


def task_dirs(sources: Sequence[str | Path], cache_dir: Path | None = None) -> Iterator[Path]:
    """Task directories of each source: a task directory, a directory of them, or a parquet shard,
    which is extracted into the cache the first time it is used.

    Raises ``ValueError`` for a source that does not exist or holds no task.
    """
    for source in sources:
        path = Path(source).expanduser().resolve()
        if not path.exists():
            raise ValueError(f"{source}: no such file or directory")
        root = path if path.is_dir() else extract_to_cache(path, cache_dir)
        found = False
        for directory in find_task_dirs(root):
            found = True
            yield directory
        if not found:
            raise ValueError(f"{source}: no task directory (one with a task.toml) in it")
