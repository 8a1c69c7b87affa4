"""Limits through control groups: version 1, version 2 or both, as far as the host allows."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PARENT = "skyrl-apex"
_CPU_PERIOD_US = 100_000
_NEW_SEC = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``None`` means no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None

    def wanted(self) -> dict[str, tuple[Mapping[str, str], Mapping[str, str]]]:
        """Controller to the files to write: for version 1, and for version 2."""
        files: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {}
        if self.memory_bytes is not None:
            amount = str(self.memory_bytes)
            files["memory"] = (
                {"memory.limit_in_bytes": amount},
                {"memory.max": amount, "memory.swap.max": "0"},
            )
        if self.cpus is not None:
            quota = str(int(self.cpus * _CPU_PERIOD_US))
            files["cpu"] = (
                {"cpu.cfs_period_us": str(_CPU_PERIOD_US), "cpu.cfs_quota_us": quota},
                {"cpu.max": f"{quota} {_CPU_PERIOD_US}"},
            )
        if self.processes is not None:
            files["pids"] = ({"pids.max": str(self.processes)},) * 2
        return files


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups of one sandbox, and which limits the host did not take."""

    paths: tuple[str, ...] = ()
    refused: Mapping[str, str] | None = None
    """Controller to the reason."""


def create(name: str, limits: Limits, root: Path = ROOT) -> ControlGroups:
    """Make groups called ``name`` with the limits. Never raises for a host that allows none."""
    paths: dict[str, None] = {}
    refused: dict[str, str] = {}
    for controller, (version1, version2) in limits.wanted().items():
        try:
            if (root / controller / "cgroup.procs").exists():
                path = _group(root / controller, name)
                files = version1
            else:
                path = _group(_delegated(root, controller), name)
                files = version2
            paths[str(path)] = None
            for file, value in files.items():
                if file != "memory.swap.max" or (path / file).exists():
                    (path / file).write_text(value)
        except OSError as error:
            refused[controller] = error.strerror or str(error)
    return ControlGroups(tuple(paths), refused)


def _group(parent: Path, name: str) -> Path:
    path = parent / PARENT / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _delegated(root: Path, controller: str) -> Path:
    """Version 2: the hierarchy's root, with the controller enabled down to our parent group.

    :raises OSError: when the host has no such controller, or does not let us enable it.
    """
    unified = root if (root / "cgroup.controllers").exists() else root / "unified"
    available = (unified / "cgroup.controllers").read_text().split()
    if controller not in available:
        raise OSError(errno.ENOENT, f"the host has no {controller} controller to hand out")
    parent = unified / PARENT
    parent.mkdir(exist_ok=True)
    for directory in (unified, parent):
        if controller not in (directory / "cgroup.subtree_control").read_text().split():
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
    return unified


def without_sandbox(root: Path = ROOT) -> list[Path]:
    """Groups of ours that hold no process and have not been made just now.

    The directory that recorded them is gone: somebody deleted it by hand, say.
    """
    long_ago = time.time() - _NEW_SEC
    found = []
    for path in (*root.glob(f"{PARENT}/sandbox-*"), *root.glob(f"*/{PARENT}/sandbox-*")):
        try:
            if path.stat().st_mtime < long_ago and not (path / "cgroup.procs").read_text():
                found.append(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            # its sandbox ended meanwhile: the files of a group go before its directory
    return found


def remove(paths: tuple[str, ...], patience_sec: float = 2.0) -> None:
    """Remove the groups; their processes are dead, but the kernel may take a moment to see it."""
    deadline = time.monotonic() + patience_sec
    for path in paths:
        while os.path.isdir(path):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break  # somebody else has removed it
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
