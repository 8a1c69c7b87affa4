"""The Docker sandbox on a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from docker_engine import IMAGE, Engine
from soak_start import started

from skyrl_apex_docker.environment import ApexDockerEnvironment
from skyrl_apex_plugin.sandboxes.conformance import CHECKS, NotOffered, SandboxMaker

WORLD = {
    "environment/Dockerfile": "FROM scratch\n",
    "archipelago.json": json.dumps({"ecr_image": IMAGE}),
}

KILLED = """
import asyncio, os, signal
from pathlib import Path
from skyrl_apex_docker.environment import ApexDockerEnvironment
from skyrl_apex_plugin.sandboxes.conformance import SandboxMaker

async def main():
    maker = SandboxMaker(ApexDockerEnvironment, Path({directory!r}), files={files!r})
    await maker.make().start(force_build=False)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def maker(engine: Engine, tmp_path: Path) -> SandboxMaker:
    return SandboxMaker(ApexDockerEnvironment, tmp_path, files=WORLD)


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "no_network"])
async def test_contract(name: str, maker: SandboxMaker) -> None:
    try:
        await CHECKS[name](maker)
    except NotOffered as refusal:
        pytest.skip(str(refusal))


async def test_the_image_comes_from_an_archive_when_the_engine_lacks_it(
    engine: Engine, maker: SandboxMaker, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    engine.run("tag", IMAGE, "apex-archived:1")
    engine.run("save", "--output", str(archive), "apex-archived:1")
    engine.run("image", "rm", "apex-archived:1")
    options = {"image": "apex-archived:1", "image_archive": str(archive)}
    async with maker.running(**options) as environment:
        assert (await environment.exec("true")).return_code == 0


async def test_an_archive_without_the_image_is_named(
    engine: Engine, maker: SandboxMaker, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    engine.run("save", "--output", str(archive), IMAGE)
    with pytest.raises(ValueError, match=r"image\.tar was loaded, but has no image 'other:1'"):
        async with maker.running(image="other:1", image_archive=str(archive)):
            pass


async def test_a_port_that_is_not_published_is_named(maker: SandboxMaker) -> None:
    environment = maker.make(ports=[9000])
    with pytest.raises(ValueError, match="port 8000 is not published"):
        await environment.get_tunnel_url(8000)  # type: ignore[attr-defined]


async def test_nothing_is_left_after_stop_and_after_a_start_that_failed(
    engine: Engine, maker: SandboxMaker
) -> None:
    async with maker.running():
        assert engine.run("ps", "--all", "--quiet").split()
    assert not engine.run("ps", "--all", "--quiet").split()
    with pytest.raises(RuntimeError):
        async with maker.running(image="no-such-image.invalid/x:1"):
            pass
    assert not engine.run("ps", "--all", "--quiet").split()
    networks = engine.run("network", "ls", "--format", "{{.Name}}").split()
    assert sorted(networks) == ["bridge", "host", "none"]


async def test_leftovers_of_a_killed_run_are_found_and_deleted(
    engine: Engine, maker: SandboxMaker, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(directory=str(tmp_path / "k"), files=WORLD))
    async with maker.running():
        ended = subprocess.run([sys.executable, script], env=os.environ, check=False)  # noqa: ASYNC221
        assert ended.returncode == -9
        found = await ApexDockerEnvironment.leftovers()
        assert len(found) == 1, "the live sandbox must not be listed, the killed one must"
        await found[0].remove()
        assert len(engine.run("ps", "--all", "--quiet").split()) == 1
    assert await ApexDockerEnvironment.leftovers() == []


def stock(engine: Engine) -> dict[str, list[str]]:
    """What the engine holds besides images, and the overlays of compose on this host."""
    held = {
        what: sorted(engine.run(*command).split())
        for what, command in {
            "containers": ("ps", "--all", "--quiet"),
            "networks": ("network", "ls", "--quiet"),
            "volumes": ("volume", "ls", "--quiet"),
        }.items()
    }
    overlays = Path(tempfile.gettempdir()).glob("skyrl-apex-compose-*")
    return {**held, "overlays": sorted(path.name for path in overlays)}


async def cycle(engine: Engine, maker: SandboxMaker, dice: random.Random) -> None:
    """One container; half of them meet a violent end."""
    environment = maker.make()
    fate = dice.choice(["stop", "stop", "cancel", "kill", "timeout"])
    try:
        if not await started(environment, dice.uniform(0, 1.5) if fate == "cancel" else None):
            return
        if fate == "kill":
            found = engine.run("ps", "--quiet", "--filter", f"name={environment.session_id}")
            engine.run("kill", *found.split())
        elif fate == "timeout":
            with pytest.raises(RuntimeError, match="timed out"):
                await environment.exec("sleep 60", timeout_sec=1)
        else:
            assert (await environment.exec("true")).return_code == 0
    finally:
        await environment.stop(delete=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cycles", [8, pytest.param(300, marks=pytest.mark.full)])
async def test_cycles_leave_nothing_behind(
    cycles: int, engine: Engine, maker: SandboxMaker
) -> None:
    dice = random.Random(cycles)
    before = stock(engine)

    async def worker() -> None:
        for _ in range(cycles // 4):
            await cycle(engine, maker, dice)

    await asyncio.gather(*(worker() for _ in range(4)))
    assert stock(engine) == before
