"""Parquet shards to task directories: streaming, parallel, resumable, atomic for each task.

A task is unpacked in ``OUT/.skyrl-apex/partial`` and moved to its place when it is whole. Before
the move, a stamp in ``OUT/.skyrl-apex/stamps`` records the archive's digest; a later run takes a
task for done when its directory is there and the stamp fits.
"""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from skyrl_apex_plugin.data.archive import unpack
from skyrl_apex_plugin.data.limits import Limits, Refused, refusing, task_path
from skyrl_apex_plugin.data.shards import Row, read_paths, read_rows
from skyrl_apex_plugin.files import write_atomic

STATE = ".skyrl-apex"
DEFAULT_CACHE = Path("~/.cache/skyrl-apex/tasks")
WORTH_WORKERS = 256 * 2**20
"""Bytes of shards from which starting worker processes pays."""
BATCH_ROWS = 16
BATCH_BYTES = 2 * 2**20
"""Archives that are handed to a worker at once; each worker has two batches waiting."""
LOCK_SECONDS = 10.0

OnRow = Callable[[int], None]
"""Called after each row with the bytes of its archive."""


@dataclass(slots=True)
class Extraction:
    """What came of the rows. ``refused`` maps a row's place to the reason."""

    extracted: int = 0
    kept: int = 0
    """Tasks that were there already, from the same archive."""
    refused: dict[str, str] = field(default_factory=dict)


def extract(
    shards: Sequence[Path],
    out: Path,
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    on_row: OnRow = lambda size: None,
) -> Extraction:
    """Extract every row of ``shards`` into ``out``; rows that are refused do not stop the others.

    :param workers: processes that unpack; by default one for each CPU and at most 8, or none
        beside this one when the shards are small.

    Raises ``ValueError`` for files that are no shards, and when another extraction is at work in
    ``out``.
    """
    refused = _refused_paths(shards)
    result = Extraction(refused={row.where: reason for row, reason in refused.values()})
    out.mkdir(parents=True, exist_ok=True)
    with _exclusive(out) as lock:
        shutil.rmtree(_partial(out), ignore_errors=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
        rows = (row for shard in shards for row in read_rows(shard))
        wanted = (row for row in rows if (row.shard, row.number) not in refused)
        for outcome in _unpacked(wanted, out, limits or Limits(), workers or _workers(shards)):
            if outcome.reason is not None:
                result.refused[outcome.where] = outcome.reason
            elif outcome.unpacked:
                result.extracted += 1
            else:
                result.kept += 1
            on_row(outcome.size)
        shutil.rmtree(_partial(out), ignore_errors=True)
    return result


def extract_to_cache(shard: Path, cache_dir: Path | None) -> Path:
    """Extract a shard once for each of its versions; returns the directory.

    Raises ``ValueError`` listing the rows when any is refused.
    """
    state = shard.stat()
    version = f"{shard} {state.st_size} {state.st_mtime_ns}"
    name = f"{shard.stem}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    out = (cache_dir or DEFAULT_CACHE).expanduser() / name
    whole = out / STATE / "whole"
    if not whole.exists():
        result = extract([shard], out)
        if result.refused:
            reasons = "; ".join(f"{where}: {why}" for where, why in result.refused.items())
            raise ValueError(f"{shard}: {len(result.refused)} rows are no tasks: {reasons}")
        write_atomic(whole, version)
    return out


def _workers(shards: Sequence[Path]) -> int:
    size = sum(shard.stat().st_size for shard in shards)
    return min(os.cpu_count() or 1, 8) if size >= WORTH_WORKERS else 1


def _refused_paths(shards: Sequence[Path]) -> dict[tuple[Path, int], tuple[Row, str]]:
    """Rows whose path is unusable or claimed by another row; of such a pair neither is taken."""
    refused: dict[tuple[Path, int], tuple[Row, str]] = {}
    owners: dict[PurePosixPath, Row] = {}
    for shard in shards:
        for row in read_paths(shard):
            try:
                path = task_path(row.path)
            except Refused as reason:
                refused[row.shard, row.number] = (row, str(reason))
                continue
            other = owners.setdefault(path, row)
            if other is not row:
                for each, partner in ((row, other), (other, row)):
                    reason_text = f"path {each.path!r} is also that of {partner.where}"
                    refused[each.shard, each.number] = (each, reason_text)
    for path, row in owners.items():
        for parent in path.parents:
            if parent in owners:
                reason_text = f"path {row.path!r} is inside the task of {owners[parent].where}"
                refused[row.shard, row.number] = (row, reason_text)
    return dict(sorted(refused.items()))


class Outcome(NamedTuple):
    """What became of one row."""

    where: str
    size: int
    reason: str | None
    """Why it was refused."""
    unpacked: bool
    """``False`` for a task that was there already."""


def _unpacked(rows: Iterator[Row], out: Path, limits: Limits, workers: int) -> Iterator[Outcome]:
    """Outcomes in the order of the rows, with a bounded number of archives in memory."""
    if workers == 1:
        for row in rows:
            yield from _unpack_batch([row], out, limits)
        return
    # Started before the workers, since its start unblocks SIGINT (see _interrupts_held).
    resource_tracker.ensure_running()
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(out,),
    )
    waiting: deque[tuple[list[Row], Future[list[Outcome]]]] = deque()
    try:
        for batch in _batches(rows):
            with _interrupts_held():  # submit() starts the workers, one by one
                waiting.append((batch, pool.submit(_unpack_batch, batch, out, limits)))
            if len(waiting) > 2 * workers:
                yield from _outcomes(*waiting.popleft())
        while waiting:
            yield from _outcomes(*waiting.popleft())
    finally:
        # Only what is being unpacked is waited for: after a fault the rest is not wanted.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that start in here are born with SIGINT blocked, and it waits here till the end.

    A terminal's Ctrl-C reaches every process, and the parent alone answers it: a worker would die
    of it before :func:`_start_worker`, and a parent that left the start of one half-way would
    leave it without its first message; either ends with a traceback.
    """
    caught: list[int] = []
    before = signal.getsignal(signal.SIGINT)  # None: not Python's, which could not give it back
    # Only the main thread runs Python's handlers, and only it may set them.
    ours = before is not None and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if ours:
            signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in lots that are worth handing to another process."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.size
        if size >= BATCH_BYTES or len(batch) == BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _outcomes(batch: list[Row], future: Future[list[Outcome]]) -> list[Outcome]:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"a worker was killed while it unpacked {batch[0].where} or a row near it (out of "
            "memory?); run the same command again to go on, with fewer --workers"
        ) from error


def _unpack_batch(batch: list[Row], out: Path, limits: Limits) -> list[Outcome]:
    return [Outcome(row.where, row.size, *_unpack_row(row, out, limits)) for row in batch]


def _unpack_row(row: Row, out: Path, limits: Limits) -> tuple[str | None, bool]:
    """Put one task in its place. Returns the reason for a refusal, and whether it was unpacked."""
    if not row.data:
        return f"task_binary is {'null' if row.data is None else 'empty'}", False
    partial = _partial(out) / uuid.uuid4().hex
    try:
        path = task_path(row.path)
        with refusing(f"path {row.path!r}"):
            target, stamp = _place(path, out), _stamp(path, out)
            digest = hashlib.sha256(row.data).hexdigest()
            stamped = _read(stamp)
            if target.exists() and stamped == digest:
                return None, False
            if target.exists() and stamped is None:
                return f"{target} is there already and was not extracted by this command", False
        unpack(row.data, partial, limits)
        with refusing(f"path {row.path!r}"):
            _replace(target, partial, stamp, digest)
    except Refused as reason:
        return str(reason), False
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return None, True


def _place(path: PurePosixPath, out: Path) -> Path:
    """Where a task goes. Refused below a link or an extracted task: what lies there is the task's
    own, and a link in it may lead anywhere once the task has run."""
    for inner in (path, *path.parents[:-1]):
        if (out / inner).is_symlink():
            raise Refused(f"path {str(path)!r}: {out / inner} is a symbolic link")
        if inner != path and _stamp(inner, out).is_file() and (out / inner).exists():
            raise Refused(f"path {str(path)!r} is inside the task {out / inner}")
    return out / path


def _stamp(path: PurePosixPath, out: Path) -> Path:
    return out / STATE / "stamps" / f"{path}.sha256"


def _replace(target: Path, partial: Path, stamp: Path, digest: str) -> None:
    """Move a whole task into its place. The stamp goes first, and an old directory before it: at
    no moment does a fitting stamp stand beside a directory of another archive."""
    for folder in (stamp.parent, target.parent):
        folder.mkdir(parents=True, exist_ok=True)
    # Written among the partial things, so that a kill leaves nothing that is not swept up.
    new_stamp = partial.with_suffix(".stamp")
    new_stamp.write_text(digest)
    if target.exists():
        target.rename(partial.with_suffix(".old"))
    new_stamp.rename(stamp)
    partial.rename(target)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _partial(out: Path) -> Path:
    return out / STATE / "partial"


@contextmanager
def _exclusive(out: Path) -> Iterator[IO[str]]:
    """The lock of one extraction: nobody else, and no worker of a killed run, is at work."""
    with _open_lock(out) as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(lock):
            if time.monotonic() > deadline:
                raise ValueError(f"another extraction is at work in {out}")
            time.sleep(0.05)
        yield lock


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(out: Path) -> IO[str]:
    path = out / STATE / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


_held: list[IO[str]] = []


def _start_worker(out: Path) -> None:
    """Share the lock for as long as this worker lives, which is no longer than its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # blocked till now, see _interrupts_held
    _held.append(_open_lock(out))
    fcntl.flock(_held[-1], fcntl.LOCK_SH)
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Looked at with the lock in hand: from here on the next run waits for this worker's end.
    if not parent.is_alive():
        os._exit(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A pool's workers wait for ever once their parent was killed; nothing else ends them."""
    parent.join()
    os._exit(1)
