"""Limits on hosts with control groups of version 1, version 2, both, or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from skyrl_apex_local.cgroups import Limits, create, remove, without_sandbox

LIMITS = Limits(memory_bytes=64 * 2**20, cpus=1.5, processes=50)


def version1(root: Path, *controllers: str) -> None:
    for controller in controllers:
        (root / controller).mkdir(parents=True)
        (root / controller / "cgroup.procs").touch()


def version2(root: Path, controllers: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.subtree_control").write_text("")
    (root / "skyrl-apex").mkdir()
    (root / "skyrl-apex/cgroup.subtree_control").write_text("")


def test_version_1(tmp_path: Path) -> None:
    version1(tmp_path, "memory", "cpu", "pids")
    groups = create("s1", LIMITS, tmp_path)
    assert not groups.refused
    assert len(groups.paths) == 3
    assert (tmp_path / "memory/skyrl-apex/s1/memory.limit_in_bytes").read_text() == "67108864"
    assert (tmp_path / "cpu/skyrl-apex/s1/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "pids/skyrl-apex/s1/pids.max").read_text() == "50"


def test_version_2_enables_the_controllers_and_uses_one_group(tmp_path: Path) -> None:
    version2(tmp_path, "cpuset cpu io memory pids")
    groups = create("s1", LIMITS, tmp_path)
    assert not groups.refused
    assert groups.paths == (str(tmp_path / "skyrl-apex/s1"),)
    assert (tmp_path / "skyrl-apex/s1/memory.max").read_text() == "67108864"
    assert (tmp_path / "skyrl-apex/s1/cpu.max").read_text() == "150000 100000"
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+")


def test_hybrid_takes_each_controller_where_it_is(tmp_path: Path) -> None:
    version1(tmp_path, "memory", "cpu")
    version2(tmp_path / "unified", "pids")
    groups = create("s1", LIMITS, tmp_path)
    assert not groups.refused
    assert (tmp_path / "memory/skyrl-apex/s1/memory.limit_in_bytes").exists()
    assert (tmp_path / "unified/skyrl-apex/s1/pids.max").read_text() == "50"


def test_what_the_host_does_not_take_is_named_and_the_rest_is_set(tmp_path: Path) -> None:
    version1(tmp_path, "memory")
    version2(tmp_path / "unified", "")
    groups = create("s1", LIMITS, tmp_path)
    assert groups.refused is not None
    assert set(groups.refused) == {"cpu", "pids"}
    assert "no pids controller" in groups.refused["pids"]
    assert len(groups.paths) == 1


def test_a_host_without_control_groups_gets_none(tmp_path: Path) -> None:
    groups = create("s1", LIMITS, tmp_path / "nothing")
    assert groups.paths == ()
    assert set(groups.refused or {}) == {"memory", "cpu", "pids"}


@pytest.mark.parametrize("limits", [Limits(), Limits(processes=5)])
def test_only_what_is_limited_makes_a_group(limits: Limits, tmp_path: Path) -> None:
    version1(tmp_path, "memory", "cpu", "pids")
    assert len(create("s1", limits, tmp_path).paths) == (1 if limits.processes else 0)


def test_groups_whose_sandbox_is_gone_are_found_and_used_or_new_ones_are_not(
    tmp_path: Path,
) -> None:
    version1(tmp_path, "memory")
    for name, processes in (("old", ""), ("used", "4711\n"), ("new", "")):
        group = Path(create(f"sandbox-{name}", Limits(memory_bytes=1), tmp_path).paths[0])
        (group / "cgroup.procs").write_text(processes)
        if name != "new":
            os.utime(group, (1, 1))
    assert [path.name for path in without_sandbox(tmp_path)] == ["sandbox-old"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_ends_while_it_is_looked_at_is_passed_over(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version1(tmp_path, "pids")
    (path,) = create("sandbox-ending", Limits(processes=5), tmp_path).paths
    os.utime(path, (0, 0))

    def gone(self: Path) -> str:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "read_text", gone)
    assert without_sandbox(tmp_path) == []


def test_a_group_that_somebody_else_removes_at_the_same_time_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "sandbox-1"
    group.mkdir()
    rmdir = os.rmdir

    def too_late(path: str) -> None:
        rmdir(path)
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", too_late)
    remove((str(group),))
    assert not group.exists()
