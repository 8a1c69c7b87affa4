"""Parquet shards of tasks: columns ``path`` and ``task_binary``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PATH = "path"
BINARY = "task_binary"
PIECE = 2**20
ROW_GROUP_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """``number`` counts from 0 in its shard."""

    shard: Path
    number: int
    path: Any
    data: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return len(self.data or b"")

    @property
    def where(self) -> str:
        return f"{self.shard} row {self.number}"


def find_shards(source: Path) -> list[Path]:
    """The shard itself, or every ``*.parquet`` below a directory, sorted.

    Raises ``ValueError`` when there is none.
    """
    if source.is_file():
        return [source]
    found = sorted(source.rglob("*.parquet"))
    if not found:
        raise ValueError(f"{source}: no parquet shard (*.parquet) there")
    return found


def count_rows(shards: Iterable[Path]) -> int:
    return sum(_open(shard).metadata.num_rows for shard in shards)


def read_paths(shard: Path) -> Iterator[Row]:
    """The rows without their archives. Reads that one column only."""
    number = 0
    for batch in _open(shard).iter_batches(batch_size=4096, columns=[PATH]):
        for path in batch.column(0).to_pylist():
            yield Row(shard, number, path)
            number += 1


def read_rows(shard: Path) -> Iterator[Row]:
    """The rows one by one. Memory holds one data page of the file, however large the shard."""
    batches = _open(shard).iter_batches(batch_size=1, columns=[PATH, BINARY], use_threads=False)
    for number, batch in enumerate(batches):
        path, binary = (batch.column(name)[0].as_py() for name in (PATH, BINARY))
        yield Row(shard, number, path, binary)


def write_shard(target: Path, rows: Iterable[tuple[str, bytes]]) -> int:
    """Write rows of path and archive; returns their number. Replaces ``target`` in one step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(PATH, pa.string()), (BINARY, pa.binary())])
    temporary = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    # Archives are compressed already, and each is its own: neither compression nor a dictionary
    # would help.
    with pq.ParquetWriter(
        temporary, schema, compression="none", use_dictionary=False, write_batch_size=1
    ) as writer:
        for group in _groups(rows):
            columns = [pa.array([row[i] for row in group], schema.field(i).type) for i in (0, 1)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(group)
    os.replace(temporary, target)
    return count


def _groups(rows: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    group: list[tuple[str, bytes]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row[1])
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _open(shard: Path) -> pq.ParquetFile:
    """Raises ``ValueError`` naming the shard when it is no parquet file, and when a column is
    missing, with the columns that are there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Buffered reading keeps a column chunk of any size on disk.
        file = pq.ParquetFile(shard, buffer_size=PIECE, pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{shard}: not a parquet file: {error}") from error
    names = file.schema_arrow.names
    missing = [name for name in (PATH, BINARY) if name not in names]
    if missing:
        raise ValueError(
            f"{shard}: columns found: {', '.join(names)}; needed: {PATH}, {BINARY}; "
            f"missing: {', '.join(missing)}"
        )
    return file
