"""Lines of a run's record are whole JSON, whatever the values and the disk."""

from __future__ import annotations

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.rollout.record import RunRecord


def strict(line: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.metrics(1, {"a": float("nan"), "b": float("inf"), "c": 0.5, "d": True})
    assert strict((tmp_path / "metrics.jsonl").read_text())["metrics"] == {
        "a": None,
        "b": None,
        "c": 0.5,
        "d": True,
    }
    record.describe({"config": {"x": [float("-inf")], "path": tmp_path, "name": "\ud83d"}})
    config = strict((tmp_path / "run.json").read_text())["config"]
    assert config == {"x": [None], "path": str(tmp_path), "name": "\ud83d"}


@pytest.mark.parametrize("room", [0, 1, 60])
def test_a_full_disk_is_an_error_and_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    record = RunRecord(tmp_path)
    record.metrics(1, {"a": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    write, left = os.write, [room]

    def write_until_full(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: left[0]])
        left[0] -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_until_full)
        with pytest.raises(OSError, match=r"no line added: No space left.*metrics\.jsonl"):
            record.metrics(2, {"a": 2.0})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    record.metrics(3, {"a": 3.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [strict(line)["step"] for line in lines] == [1, 3]


def test_a_line_in_pieces_is_whole_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    RunRecord(tmp_path).metrics(1, {"a": 1.0})
    assert strict((tmp_path / "metrics.jsonl").read_text())["metrics"] == {"a": 1.0}


def test_a_torn_last_line_of_a_killed_run_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"at": "2026')
    RunRecord(tmp_path).metrics(1, {"a": 1.0})
    torn, line = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert torn == '{"at": "2026' and strict(line)["step"] == 1


def test_lines_written_at_once_stay_whole_and_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials end in several threads, and a file grows before all of a line is there."""
    write = os.write

    def slowly(descriptor: int, data: bytes) -> int:
        time.sleep(0.0005)
        return write(descriptor, data[:40])

    monkeypatch.setattr(os, "write", slowly)
    record = RunRecord(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda step: record.metrics(step, {"a": 1.0}), range(64)))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sorted(strict(line)["step"] for line in lines) == list(range(64))
