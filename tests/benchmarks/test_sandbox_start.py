"""How long sandboxes take to start and to run a command, and what they cost, by backend."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest

from skyrl_apex_plugin.sandboxes.conformance import SandboxMaker

sys.path.insert(0, str(Path(__file__).parents[1] / "integration/sandboxes"))

from docker_engine import IMAGE, NoEngine, docker_engine
from local_maker import local

from skyrl_apex_docker.environment import ApexDockerEnvironment

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

AT_ONCE = 50
READY_LIMIT_SEC = 5.0
START_P50_LIMIT_MS = 150.0
MEMORY_LIMIT_MB = 15.0


def milliseconds(samples: list[float]) -> str:
    ordered = sorted(1000 * sample for sample in samples)
    return f"p50 {statistics.median(ordered):7.1f} ms   max {ordered[-1]:7.1f} ms"


async def timings(maker: SandboxMaker, rounds: int) -> dict[str, list[float]]:
    """Seconds of start, of one ``true`` and of stop, one sandbox at a time."""
    seconds: dict[str, list[float]] = {"start": [], "exec": [], "stop": []}
    for _ in range(rounds):
        environment = maker.make()
        steps = {
            "start": lambda: environment.start(force_build=False),  # noqa: B023
            "exec": lambda: environment.exec("true"),  # noqa: B023
            "stop": lambda: environment.stop(delete=True),  # noqa: B023
        }
        for name, step in steps.items():
            began = time.perf_counter()
            await step()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def memory_of_sandboxes_mb() -> float:
    """Proportional set size of every process below this one, the template left out."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
        try:
            group = int((path.parent / "stat").read_text().rpartition(")")[2].split()[2])
            command = (path.parent / "cmdline").read_bytes()
            rollup = path.read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        ours = b"bwrap" in command or b"echo ready" in command or b"apex_local.template" in command
        if ours and group != os.getpgrp():
            total += int(rollup.split("Pss:")[1].split()[0]) / 1024
    return total


async def test_fifty_local_sandboxes_at_once(tmp_path: Path) -> None:
    if shutil.which(os.environ.get("APEX_BWRAP", "bwrap")) is None:
        pytest.skip("bubblewrap is not installed")
    maker = local(tmp_path)
    alone = await timings(maker, 20)
    before = memory_of_sandboxes_mb()
    sandboxes = [maker.make() for _ in range(AT_ONCE)]
    began = time.perf_counter()
    await asyncio.gather(*(each.start(force_build=False) for each in sandboxes))
    ready = time.perf_counter() - began
    memory = (memory_of_sandboxes_mb() - before) / AT_ONCE
    await asyncio.gather(*(each.stop(delete=True) for each in sandboxes))
    print(f"\nlocal, {AT_ONCE} at once: all ready in {ready:.2f} s, {memory:.1f} MB each")
    for name, samples in alone.items():
        print(f"local  {name:5} {milliseconds(samples)}")
    assert ready < READY_LIMIT_SEC
    assert memory < MEMORY_LIMIT_MB
    assert 1000 * statistics.median(alone["start"]) < START_P50_LIMIT_MS


async def test_local_and_docker_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(tempfile.mkdtemp(prefix="apexdk"))
    try:
        with docker_engine(Path(__file__).parents[2] / ".cache/docker-engine", data) as engine:
            for name, value in engine.variables.items():
                monkeypatch.setenv(name, value)
            docker = SandboxMaker(
                ApexDockerEnvironment, tmp_path / "docker", kwargs={"image": IMAGE}
            )
            theirs = await timings(docker, 5)
            ours = await timings(local(tmp_path / "local"), 5)
    except NoEngine as reason:
        pytest.skip(f"no Docker engine: {reason}")
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print()
    for name in ours:
        ratio = statistics.median(theirs[name]) / statistics.median(ours[name])
        print(f"local  {name:5} {milliseconds(ours[name])}")
        print(f"docker {name:5} {milliseconds(theirs[name])}   {ratio:.0f} times local")
    assert statistics.median(ours["start"]) < statistics.median(theirs["start"])
