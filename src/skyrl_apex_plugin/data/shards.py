"""Parquet shards of tasks: columns ``path`` and ``task_binary``."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PATH = "path"
BINARY = "task_binary"
PIECE = 2**20
ROW_GROUP_BYTES = 32 * 2**20
PAGE_LIMIT = 48 * 2**20
"""Pages up to this size leave a reader below 300 MB; larger ones are announced."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """``number`` counts from 0 in its shard. ``path`` is bytes where it is not UTF-8."""

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
    """Raises ``ValueError`` as reading them does."""
    return sum(_open(shard).metadata.num_rows for shard in shards)


def read_paths(shard: Path) -> Iterator[Row]:
    """The rows without their archives. Reads that one column only.

    Raises ``ValueError`` naming the shard when it is none, or is damaged.
    """
    number = 0
    with _whole(shard):
        for batch in _open(shard).iter_batches(batch_size=4096, columns=[PATH]):
            for path in batch.column(0):
                yield Row(shard, number, _text(path))
                number += 1


def read_rows(shard: Path) -> Iterator[Row]:
    """The rows one by one. Memory holds one data page of the file, however large the shard.

    Raises ``ValueError`` naming the shard when it is none, or is damaged.
    """
    file = _open(shard)
    with _whole(shard):
        _announce_large_pages(shard, file)
        batches = file.iter_batches(batch_size=1, columns=[PATH, BINARY], use_threads=False)
        for number, batch in enumerate(batches):
            path, binary = (batch.column(name)[0] for name in (PATH, BINARY))
            yield Row(shard, number, _text(path), binary.as_py())


def _text(value: Any) -> Any:
    """A path, or its bytes: parquet does not check that a text is UTF-8."""
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes()


def _announce_large_pages(shard: Path, file: pq.ParquetFile) -> None:
    """Warn of a shard that cannot be read in little memory.

    Every parquet library reads and unpacks a page as a whole, so its writer has decided on the
    memory: packed and unpacked page, and a copy of the latter, are held at once.
    """
    largest = 0
    column = file.schema_arrow.names.index(BINARY)
    with shard.open("rb") as stream:
        for group in range(file.metadata.num_row_groups):
            chunk = file.metadata.row_group(group).column(column)
            if chunk.total_uncompressed_size > PAGE_LIMIT:
                offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
                stream.seek(min(offset for offset in offsets if offset is not None))
                largest = max(largest, _page_size(stream.read(32)))
    if largest > PAGE_LIMIT:
        logger.warning(
            "%s: its pages hold %d MB, and reading it takes about %d MB of memory. Extracted once "
            "and written anew by `skyrl-apex data pack`, it takes less than 300 MB",
            shard,
            largest // 10**6,
            3 * largest // 10**6,
        )


def _page_size(header: bytes) -> int:
    """The unpacked size that a page header (Thrift's compact protocol) states.

    Its first two fields are the page's type and this size: one byte each that says "the next
    field, a 32-bit integer", then a zigzag varint. Anything else reads as 0.
    """
    position = value = 0
    for _ in range(2):
        if header[position : position + 1] != b"\x15":
            return 0
        position, value, shift = position + 1, 0, 0
        while True:
            byte = header[position]
            value |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
    return value >> 1


def write_shard(target: Path, rows: Iterable[tuple[str, bytes]]) -> int:
    """Write rows of path and archive; returns their number. Replaces ``target`` in one step.

    Raises ``OSError`` as ``open`` does, and what ``rows`` raises; nothing is left behind then.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(PATH, pa.string()), (BINARY, pa.binary())])
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        # Archives are compressed already, and each is its own: neither compression nor a
        # dictionary would help.
        with pq.ParquetWriter(
            temporary, schema, compression="none", use_dictionary=False, write_batch_size=1
        ) as writer:
            for group in _groups(rows):
                columns = [
                    pa.array([row[i] for row in group], field.type)
                    for i, field in enumerate(schema)
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                count += len(group)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
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
    """Raises ``ValueError`` naming the shard when it is no parquet file, when a column is missing,
    with the columns that are there, and when the archives are not binary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _whole(shard):
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
    kind = file.schema_arrow.field(BINARY).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ValueError(f"{shard}: column {BINARY} holds {kind}; needed: binary")
    return file


@contextmanager
def _whole(shard: Path) -> Iterator[None]:
    """Name the shard that cannot be read: damaged pages and footers come as these."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{shard}: cannot be read: {error}") from error
