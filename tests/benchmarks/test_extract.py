"""Extraction against a plain ``tarfile.extractall(filter="data")`` loop, in the same run."""

from __future__ import annotations

import io
import multiprocessing
import random
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from skyrl_apex_plugin.data.extract import extract
from skyrl_apex_plugin.data.shards import write_shard

FILES = 60
MEMORY_LIMIT_MB = 300


def archive(seed: int) -> bytes:
    rng = random.Random(seed)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number in range(FILES):
            data = rng.randbytes(rng.randrange(100, 2000)).hex().encode()
            info = tarfile.TarInfo(f"tests/d{number % 6}/f{number}" if number else "task.toml")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def plain_loop(shard: Path, out: Path) -> None:
    for batch in pq.ParquetFile(shard).iter_batches(batch_size=16):
        columns = (column.to_pylist() for column in batch.columns)
        for path, data in zip(*columns, strict=True):
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
                tar.extractall(out / path, filter="data")


@pytest.mark.benchmark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "tasks", [pytest.param(200, id="sample"), pytest.param(2000, id="all", marks=pytest.mark.full)]
)
def test_at_least_one_and_a_half_times_as_fast(tmp_path: Path, tasks: int) -> None:
    shard = tmp_path / "shard.parquet"
    write_shard(shard, ((f"t{number}", archive(number)) for number in range(tasks)))
    seconds: dict[str, float] = {"plain": 0.0, "extract": 0.0}
    turns = 2 if tasks < 1000 else 1
    for turn in range(turns):  # one after the other, so that a busy spell of the machine hits both
        for name in seconds:
            started = time.perf_counter()
            if name == "plain":
                plain_loop(shard, tmp_path / name)
            else:
                assert extract([shard], tmp_path / name).extracted == tasks
            seconds[name] += time.perf_counter() - started
            if turn + 1 < turns:
                shutil.rmtree(tmp_path / name)
    ratio = seconds["plain"] / seconds["extract"]
    print(f"\n{tasks} tasks of {FILES} files: {seconds}, {ratio:.1f} times as fast")
    assert tree(tmp_path / "plain") == tree(tmp_path / "extract")
    assert ratio >= 1.5


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    named = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith(".skyrl-apex")}


def peak_memory(shard: Path, out: Path, workers: int, result: Any) -> None:
    """The process's own peak. ``ru_maxrss`` would start at that of the process that forked it."""
    extract([shard], out, workers=workers)
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    result.put(int(line.split()[1]) / 1024)


@pytest.mark.benchmark
@pytest.mark.parametrize(
    "megabytes",
    [pytest.param(150, id="sample"), pytest.param(1200, id="all", marks=pytest.mark.full)],
)
def test_memory_does_not_grow_with_the_shard(tmp_path: Path, megabytes: int) -> None:
    rng = random.Random(1)

    def heavy(number: int) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            info = tarfile.TarInfo("task.toml")
            info.size = 3 * 2**20
            tar.addfile(info, io.BytesIO(rng.randbytes(info.size)))
        return buffer.getvalue()

    shard = tmp_path / "shard.parquet"
    write_shard(shard, ((f"t{number}", heavy(number)) for number in range(megabytes // 3)))
    context = multiprocessing.get_context("spawn")
    for workers in (1, 2):  # one unpacks in the process itself, two hand archives on
        result: Any = context.Queue()
        out = tmp_path / f"out{workers}"
        process = context.Process(target=peak_memory, args=(shard, out, workers, result))
        process.start()
        peak = result.get(timeout=250)
        process.join()
        print(f"\n{megabytes} MB shard, {workers} workers: {peak:.0f} MB at most")
        assert peak < MEMORY_LIMIT_MB
