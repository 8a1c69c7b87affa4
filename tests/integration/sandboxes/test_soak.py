"""Many sandboxes created, used, killed and deleted: nothing is left on the host."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_maker import local
from soak_start import started

from skyrl_apex_local import cgroups
from skyrl_apex_local.state import state_root

pytestmark = pytest.mark.usefixtures("bwrap")
AT_ONCE = 6


@dataclass(frozen=True)
class Resources:
    """What the sandboxes of this process and its descendants take of the host."""

    processes: int
    mounts: int
    namespaces: int
    cgroups: int
    directories: int
    descriptors: int
    listening_ports: int


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def take_stock() -> Resources:
    pids = [os.getpid(), *descendants(os.getpid())]
    spaces = set()
    sockets = set()
    for pid in pids:
        for name in ("net", "mnt", "pid", "user", "ipc", "uts"):
            try:
                spaces.add(os.readlink(f"/proc/{pid}/ns/{name}"))
            except FileNotFoundError:
                continue
    own = Path("/proc/self/fd")
    for path in own.iterdir():
        try:
            sockets.add(os.readlink(path))
        except FileNotFoundError:
            continue
    listening = sum(
        f"socket:[{fields[9]}]" in sockets
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "0A"
    )
    return Resources(
        processes=len(pids),
        mounts=Path("/proc/self/mountinfo").read_text().count(str(state_root())),
        namespaces=len(spaces),
        cgroups=len([p for p in cgroups.ROOT.glob("*/skyrl-apex/sandbox-*") if _is_ours(p)]),
        directories=len(list(state_root().iterdir())),
        descriptors=len(list(own.iterdir())),
        listening_ports=listening,
    )


def _is_ours(group: Path) -> bool:
    return group.name in SEEN


SEEN: set[str] = set()


async def cycle(directory: Path, dice: random.Random) -> None:
    """One sandbox; half of them meet a violent end."""
    environment = local(directory, memory_mb=512).make()
    fate = dice.choice(["stop", "stop", "stop", "cancel", "kill", "timeout"])
    try:
        if not await started(environment, dice.uniform(0, 0.15) if fate == "cancel" else None):
            return
        SEEN.update(path.name for path in state_root().iterdir())
        await environment.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        await environment.get_tunnel_url(8000)  # type: ignore[attr-defined]
        if fate == "kill":
            init = environment._sandbox._processes.bwrap.pid  # type: ignore[attr-defined]
            os.kill(init, signal.SIGKILL)
            with pytest.raises(RuntimeError):
                await environment.exec("sleep 5; true")
                await environment.exec("true")
        elif fate == "timeout":
            with pytest.raises(RuntimeError, match="timed out"):
                await environment.exec("sleep 60", timeout_sec=dice.uniform(0, 0.1))  # type: ignore[arg-type]
        else:
            assert (await environment.exec("echo x > /filesystem/f")).return_code == 0
    finally:
        await environment.stop(delete=True)


@pytest.mark.parametrize("cycles", [30, pytest.param(300, marks=pytest.mark.full)])
async def test_cycles_leave_nothing_behind(
    cycles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APEX_SANDBOX_DIR", str(tmp_path / "state"))
    dice = random.Random(cycles)
    await cycle(tmp_path, random.Random(1))  # the template process starts, and stays
    before = take_stock()
    pending = {
        asyncio.create_task(worker(tmp_path, dice, cycles // AT_ONCE)) for _ in range(AT_ONCE)
    }
    await asyncio.gather(*pending)
    for _ in range(100):  # the kernel and the template take a moment to bury the last ones
        after = take_stock()
        if after == before:
            break
        await asyncio.sleep(0.1)
    print(f"\n{cycles} cycles, before: {before}\n{cycles} cycles, after:  {after}")
    assert after == before


async def worker(directory: Path, dice: random.Random, cycles: int) -> None:
    for _ in range(cycles):
        await cycle(directory, dice)
