"""What a shard costs to read is said before it is read."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skyrl_apex_plugin.data import shards

MB = 2**20
ROWS = [(f"t/{n}", random.Random(n).randbytes(MB)) for n in range(6)]


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAGE_LIMIT", 2 * MB)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_a_page_of_many_archives_is_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dictionary: bool, compression: str
) -> None:
    paths, binaries = zip(*ROWS, strict=True)
    table = pa.table({"path": paths, "task_binary": pa.array(binaries, pa.binary())})
    source = tmp_path / "foreign.parquet"
    pq.write_table(table, source, use_dictionary=dictionary, compression=compression)
    rows = list(shards.read_rows(source))
    assert [(row.path, row.data) for row in rows] == ROWS
    (record,) = caplog.records
    assert f"{source}: its pages hold 6 MB" in record.getMessage()
    assert "about 18 MB of memory" in record.getMessage()


def test_what_pack_writes_needs_no_announcement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "own.parquet"
    shards.write_shard(source, ROWS)
    assert [row.path for row in shards.read_rows(source)] == [path for path, _ in ROWS]
    assert not caplog.records
