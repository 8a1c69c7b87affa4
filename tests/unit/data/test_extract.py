"""Extraction: what is refused and why, what is left behind, and going on after a kill."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from skyrl_apex_plugin.cli.data import data
from skyrl_apex_plugin.data.tasks import find_task_dirs

Member = tuple[str, bytes] | tarfile.TarInfo


def archive(*members: Member, task_toml: bool = True) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in (*((("task.toml", b""),) if task_toml else ()), *members):
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return special(name, tarfile.SYMTYPE, target)


def headers(kind: bytes = tarfile.REGTYPE, **extra: str) -> tarfile.TarInfo:
    info = special("file", kind)
    info.pax_headers = {name.replace("_", "."): value for name, value in extra.items()}
    return info


GOOD = archive(("instruction.md", b"Do it."))
EXTRACT = [sys.executable, "-m", "skyrl_apex_plugin.cli.main", "data", "extract"]
DEEP = "a/b/c/d/e/f/g/h"
UP = "../" * 8
LONG = "/".join(f"d{number}" + "x" * 240 for number in range(15))


def shard(path: Path, rows: Sequence[tuple[Any, Any]]) -> Path:
    paths, binaries = zip(*rows, strict=True)
    table = pa.table(
        {"path": pa.array(paths, pa.string()), "task_binary": pa.array(binaries, pa.binary())}
    )
    pq.write_table(table, path)
    return path


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(data, [str(each) for each in arguments])


def extracted(out: Path) -> list[str]:
    return [path.relative_to(out).as_posix() for path in find_task_dirs(out)]


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("path-column-escapes", ("../../evil", GOOD), "leads out of the target directory"),
        ("path-column-absolute", ("/tmp/evil-task", GOOD), "leads out of the target directory"),
        ("path-column-null", (None, GOOD), "path is None"),
        ("path-column-hidden", (".evil", GOOD), "hidden part"),
        ("member-escapes", ("evil", archive(("../x", b"x"))), "'../x' leads out of the task"),
        ("member-absolute", ("evil", archive(("/tmp/x", b"x"))), "leads out of the task"),
        (
            "symlink-out",
            ("evil", archive(special("link", tarfile.SYMTYPE, "/etc"))),
            "'link' links to '/etc', out of the task",
        ),
        (
            "symlink-out-relative",
            ("evil", archive(special("a/link", tarfile.SYMTYPE, "../../x"))),
            "out of the task",
        ),
        (
            "write-through-a-link",
            ("evil", archive(special("a", tarfile.SYMTYPE, "b"), ("b/x", b""), ("a/y", b"y"))),
            "directory 'a': File exists",
        ),
        (
            "file-over-a-link",
            ("evil", archive(special("a", tarfile.SYMTYPE, "task.toml"), ("a", b"y"))),
            "member 'a'",
        ),
        (
            "link-through-a-link",
            (
                "evil",
                archive(
                    special("top", tarfile.DIRTYPE),
                    link(f"{DEEP}/L", f"{UP}top"),
                    link("instruction.md", f"{DEEP}/L/{UP}etc/passwd"),
                ),
            ),
            "with '..' after a name",
        ),
        (
            "link-beyond-the-longest-path",
            (
                "evil",
                archive(
                    link(f"{LONG}/up", "../" * 14),
                    link("link", f"{LONG}/up/{'../' * 13}etc/passwd"),
                ),
            ),
            "with '..' after a name",
        ),
        (
            "link-of-a-nul",
            ("evil", archive(headers(tarfile.SYMTYPE, linkpath="a\0b"))),
            "member 'file'",
        ),
        ("link-to-nothing", ("evil", archive(link("link", ""))), "member 'link'"),
        ("path-too-long", ("x" * 300, GOOD), "File name too long"),
        ("member-too-long", ("evil", archive(("x" * 300, b""))), "File name too long"),
        ("path-of-a-stamp", ("good-1.sha256/b", GOOD), "path 'good-1.sha256/b': Not a directory"),
        (
            "sparse-headers",
            ("evil", archive(headers(GNU_sparse_map="x", GNU_sparse_size="y"))),
            "not a whole tar archive",
        ),
        (
            "sparse-version",
            ("evil", archive(headers(GNU_sparse_major="1", GNU_sparse_minor="0"))),
            "",
        ),
        ("hard-link", ("evil", archive(special("h", tarfile.LNKTYPE, "/etc/passwd"))), "'h'"),
        ("device-node", ("evil", archive(special("d", tarfile.CHRTYPE))), "member 'd' is no file"),
        ("fifo", ("evil", archive(special("p", tarfile.FIFOTYPE))), "member 'p' is no file"),
        ("not-gzip", ("evil", b"PK not gzip"), "not gzip"),
        ("cut-off-gzip", ("evil", GOOD[:-20]), "not gzip: the data is cut off"),
        ("not-tar", ("evil", gzip.compress(b"x" * 5000)), "not a whole tar archive"),
        ("empty-archive", ("evil", archive(task_toml=False)), "archive is empty"),
        ("empty-task-binary", ("evil", b""), "task_binary is empty"),
        ("null-task-binary", ("evil", None), "task_binary is null"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_faulty_row_is_named_and_the_others_are_extracted(
    tmp_path: Path, name: str, row: tuple[Any, Any], reason: str
) -> None:
    out = tmp_path / "well" / "inside" / "out"
    source = shard(tmp_path / "s.parquet", [("good-1", GOOD), row, ("good-2", GOOD)])
    before = set(tmp_path.rglob("*"))
    result = run("extract", source, out, "--workers", 1)
    assert result.exit_code == 1
    assert f"refused: {source} row 1: " in result.stderr and reason in result.stderr
    assert extracted(out) == ["good-1", "good-2"]
    added = set(tmp_path.rglob("*")) - before - set(out.parents)
    assert all(out in (path, *path.parents) for path in added)
    assert not Path("/tmp/evil-task").exists()
    assert not (out / ".skyrl-apex" / "partial").exists()


def test_duplicate_paths_are_refused_with_both_row_numbers(tmp_path: Path) -> None:
    first = shard(tmp_path / "a.parquet", [("one", GOOD), ("two", GOOD)])
    second = shard(tmp_path / "b.parquet", [("./one", GOOD), ("two/inside", GOOD)])
    result = run("extract", first, second, tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.replace(f"{tmp_path}/", "").splitlines() == [
        "refused: a.parquet row 0: path 'one' is also that of b.parquet row 0",
        "refused: b.parquet row 0: path './one' is also that of a.parquet row 0",
        "refused: b.parquet row 1: path 'two/inside' is inside the task of a.parquet row 1",
    ]
    assert extracted(tmp_path / "out") == ["two"]


def test_a_decompression_bomb_is_stopped_at_a_limit_that_a_flag_raises(tmp_path: Path) -> None:
    bomb = archive(("zeros", bytes(40 * 2**20)))
    assert len(bomb) < 50_000
    source = shard(tmp_path / "s.parquet", [("bomb", bomb)])
    result = run("extract", source, tmp_path / "out")
    assert result.exit_code == 1 and "decompression bomb" in result.stderr
    assert extracted(tmp_path / "out") == []
    assert run("extract", source, tmp_path / "out", "--unpack-ratio", 5000).exit_code == 0
    assert (tmp_path / "out/bomb/zeros").stat().st_size == 40 * 2**20


def test_a_sparse_member_cannot_pass_the_limit(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(2**33)
    subprocess.run(["tar", "-C", tmp_path, "-cSzf", tmp_path / "s.tgz", "sparse"], check=True)
    source = shard(tmp_path / "s.parquet", [("bomb", (tmp_path / "s.tgz").read_bytes())])
    result = run("extract", source, tmp_path / "out", "--workers", 1)
    assert result.exit_code == 1 and "member 'sparse' is no file" in result.stderr


def test_missing_columns_are_listed_with_those_that_are_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"task": ["a"], "blob": [b""]}), tmp_path / "s.parquet")
    result = run("extract", tmp_path / "s.parquet", tmp_path / "out")
    assert result.exit_code == 1
    assert "columns found: task, blob; needed: path, task_binary" in result.stderr
    (tmp_path / "n.parquet").write_bytes(b"nothing")
    assert "not a parquet file" in run("extract", tmp_path / "n.parquet", tmp_path / "o").stderr


def test_a_path_that_is_not_utf8_refuses_its_row(tmp_path: Path) -> None:
    paths = pa.array([b"good", b"\xff\xfe", b"more"], pa.binary()).view(pa.string())
    source = tmp_path / "s.parquet"
    binaries = pa.array([GOOD] * 3, pa.binary())
    pq.write_table(pa.table({"path": paths, "task_binary": binaries}), source)
    result = run("extract", source, tmp_path / "out")
    assert result.exit_code == 1
    assert f"refused: {source} row 1: path b'\\xff\\xfe' is not UTF-8" in result.stderr
    assert extracted(tmp_path / "out") == ["good", "more"]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.binary(3)])
def test_archives_that_are_not_binary_are_a_fault_of_the_shard(tmp_path: Path, kind: Any) -> None:
    table = pa.table({"path": ["a"], "task_binary": pa.array([None], kind)})
    pq.write_table(table, tmp_path / "s.parquet")
    result = run("extract", tmp_path / "s.parquet", tmp_path / "out")
    assert result.exit_code == 1
    assert f"s.parquet: column task_binary holds {kind}; needed: binary" in result.stderr


def test_a_damaged_shard_is_named_wherever_it_is_damaged(tmp_path: Path) -> None:
    rng = random.Random(5)
    rows = [(f"t{number}", archive(("x", rng.randbytes(500)))) for number in range(30)]
    whole = shard(tmp_path / "s.parquet", rows).read_bytes()
    named = 0
    for _ in range(60):
        damaged = bytearray(whole)
        at = rng.randrange(len(whole))
        damaged[at : at + 8] = rng.randbytes(8)
        (tmp_path / "s.parquet").write_bytes(damaged)
        result = run("extract", tmp_path / "s.parquet", tmp_path / "out", "--workers", 1)
        assert result.exit_code in (0, 1) and not _is_traceback(result), (at, result.exception)
        named += "s.parquet" in result.stderr
    assert named > 10


def _is_traceback(result: Result) -> bool:
    return not (result.exception is None or isinstance(result.exception, SystemExit))


def test_a_disk_that_takes_nothing_stops_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shard(tmp_path / "s.parquet", [("a", GOOD), ("b", GOOD)])
    (tmp_path / "file").write_text("")
    result = run("extract", source, tmp_path / "file/out")
    assert result.exit_code == 1 and "file/out: Not a directory" in result.stderr

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("open", "write", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(f"skyrl_apex_plugin.data.archive.os.{call}", full)
            result = run("extract", source, tmp_path / "out", "--workers", 1)
        assert result.exit_code == 1 and not _is_traceback(result)
        assert "No space left on device" in result.stderr and "refused" not in result.stderr
    assert "2 tasks extracted" in run("extract", source, tmp_path / "out").output


def test_an_interruption_is_one_line(tmp_path: Path) -> None:
    """As a terminal does it: the signal reaches the workers too, while they start and at work."""
    rng = random.Random(3)
    source = many(tmp_path / "s.parquet", tasks=2000, files=5)
    for attempt in range(7):
        out = tmp_path / f"{attempt}"
        process = subprocess.Popen(
            [*EXTRACT, str(source), str(out), "--workers", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        # multiprocessing's own tracker of resources starts before the workers.
        while len(children.read_text().split()) < 2 + attempt % 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.08))
        if attempt == 6:
            _wait_for_tasks(out, process, more=20)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert stderr == "interrupted; run the same command again to go on\n"
        assert process.returncode == 130


def test_links_within_the_task_and_the_executable_bit_are_kept(tmp_path: Path) -> None:
    script = tarfile.TarInfo("tests/test.sh")
    script.mode = 0o4755
    packed = archive(script, special("tests/again", tarfile.SYMTYPE, "test.sh"))
    assert (
        run("extract", shard(tmp_path / "s.parquet", [("t", packed)]), tmp_path / "out").exit_code
        == 0
    )
    made = tmp_path / "out/t/tests/test.sh"
    assert made.stat().st_mode & 0o7777 == 0o755 & ~_umask()
    assert (tmp_path / "out/t/tests/again").readlink() == Path("test.sh")


def test_links_that_an_archive_may_hold_never_lead_out(tmp_path: Path) -> None:
    """Random trees of folders and links; where the kernel ends up is what counts."""
    rng = random.Random(11)
    steps = ["a", "b", "c", "..", "..", "."]

    def text() -> str:
        return "/".join(rng.choices(steps, k=rng.randrange(1, 6)))

    def name() -> str:
        return "/".join(rng.choices("abc", k=rng.randrange(1, 4)))

    rows = [
        (f"world/t{row}", archive(*(link(name(), text()) for _ in range(rng.randrange(1, 5)))))
        for row in range(600)
    ]
    out = tmp_path / "out"
    for part in "abc":
        (tmp_path / part).mkdir()  # outside, for a link to land on
        (out / part).mkdir(parents=True)
    run("extract", shard(tmp_path / "s.parquet", rows), out)
    links = landed = 0
    for task in out.glob("world/*"):
        for path in task.rglob("*"):
            if path.is_symlink():
                links += 1
                try:
                    end = os.open(path, os.O_PATH)
                except OSError:
                    continue  # it dangles, or runs in a circle
                landed += 1
                place = Path(f"/proc/self/fd/{end}").readlink()
                os.close(end)
                assert task in (place, *place.parents), f"{path} -> {path.readlink()}"
    assert links > 100 and landed > 30


@pytest.mark.parametrize("kind", ["inside", "outside", "dangling"])
def test_nothing_is_written_through_what_an_earlier_task_left(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    targets = {"inside": "real", "outside": tmp_path / "elsewhere", "dangling": "nowhere"}
    (tmp_path / "elsewhere").mkdir()
    run("extract", shard(tmp_path / "a.parquet", [("e", archive(("real/x", b"")))]), out)
    (out / "e/t").symlink_to(targets[kind])
    for name in ("mine", "yours"):
        (out / name).symlink_to(targets[kind])
    before = set(tmp_path.rglob("*"))
    rows = [("e/t/evil", GOOD), ("mine/evil", GOOD), ("yours", GOOD), ("e/new", GOOD)]
    result = run("extract", shard(tmp_path / "a.parquet", [*rows, ("good", GOOD)]), out)
    assert result.exit_code == 1 and "1 tasks extracted" in result.output
    assert result.stderr.count("is a symbolic link") == 3
    assert f"path 'e/new' is inside the task {out / 'e'}" in result.stderr
    added = set(tmp_path.rglob("*")) - before
    assert {path for path in added if out / "good" not in (path, *path.parents)} <= {
        *(out / ".skyrl-apex").rglob("*")
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_second_run_keeps_what_is_whole_and_renews_what_changed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = shard(tmp_path / "s.parquet", [("a", GOOD), ("b", GOOD)])
    assert "2 tasks extracted" in run("extract", source, out).output
    (out / "a/instruction.md").write_text("edited")
    assert "0 tasks extracted" in run("extract", source, out).output
    assert (out / "a/instruction.md").read_text() == "edited"
    shard(source, [("a", archive(("instruction.md", b"new"))), ("b", GOOD)])
    assert "1 tasks extracted" in run("extract", source, out).output
    assert (out / "a/instruction.md").read_text() == "new"


def test_a_directory_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "out/a"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("keep")
    result = run("extract", shard(tmp_path / "s.parquet", [("a", GOOD)]), tmp_path / "out")
    assert result.exit_code == 1 and "was not extracted by this command" in result.stderr
    assert (mine / "notes.txt").read_text() == "keep"


def many(path: Path, tasks: int, files: int) -> Path:
    rng = random.Random(7)
    rows = []
    for task in range(tasks):
        members = [
            (f"tests/d{n % 5}/f{n}", rng.randbytes(rng.randrange(4000))) for n in range(files)
        ]
        rows.append((f"world/t{task}", archive(*members)))
    return shard(path, rows)


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root``, the state of the extraction included, but not its lock."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name != "lock":
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = file.read()
    return found


def test_killed_at_random_and_resumed_the_result_is_byte_identical(tmp_path: Path) -> None:
    """Ten kills of the parent alone, its workers left to themselves; then one whole run."""
    source = many(tmp_path / "s.parquet", tasks=1500, files=5)
    assert run("extract", source, tmp_path / "whole", "--workers", 2).exit_code == 0
    expected = tree(tmp_path / "whole")
    out = tmp_path / "out"
    rng = random.Random(3)
    killed = 0
    for _ in range(10):
        process = subprocess.Popen(
            [*EXTRACT, str(source), str(out), "--workers", "2"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_for_tasks(out, process, more=rng.randrange(1, 8))
        time.sleep(rng.uniform(0, 0.02))
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Nothing that is seen as a task is half a task.
        for name in extracted(out):
            for path, content in tree(out / name).items():
                assert content == expected[f"{name}/{path}"]
            assert len(tree(out / name)) == 6
    assert killed >= 5
    result = run("extract", source, out, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert tree(out) == expected


def _wait_for_tasks(out: Path, process: Any, more: int) -> None:
    def count() -> int:
        return len(list(out.glob("world/*")))

    wanted = count() + more
    deadline = time.monotonic() + 60
    while count() < wanted and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_two_runs_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skyrl_apex_plugin.data import extract

    monkeypatch.setattr(extract, "LOCK_SECONDS", 0.2)
    source = shard(tmp_path / "s.parquet", [("a", GOOD)])
    with extract._exclusive(_made(tmp_path / "out")):
        result = run("extract", source, tmp_path / "out")
    assert result.exit_code == 1 and "another extraction is at work" in result.stderr
    assert run("extract", source, tmp_path / "out").exit_code == 0


def _made(path: Path) -> Path:
    path.mkdir()
    return path
