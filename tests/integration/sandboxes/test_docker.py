"""The Docker sandbox on a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker_engine import IMAGE, Engine

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
