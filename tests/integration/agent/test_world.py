"""Starting a world inside a real sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import jsonschema
import pytest
from agent_parts import HERE
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

import skyrl_apex_worldfixes.plugin as worldfixes
from skyrl_apex_hookspecs import SetupError, Task, hookimpl
from skyrl_apex_local.environment import LocalEnvironment
from skyrl_apex_plugin.agent.session import ToolSession
from skyrl_apex_plugin.agent.settings import PrepareSettings
from skyrl_apex_plugin.agent.task import load_task
from skyrl_apex_plugin.agent.world import World, await_tools
from skyrl_apex_plugin.discovery import plugin_manager

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="archipelago-local needs bubblewrap"),
]

START = """#!/bin/sh
echo "$1" > /tmp/slug.txt
exec "$APEX_PYTHON" /app/toy_gateway.py --port 8000
"""
NASTY = "a b;$(touch /tmp/pwned)`id`'\"\\ ü\n\n"


class Sandboxes:
    """Sandboxes of a small image, and worlds in them."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.image = tmp_path / "image"
        (self.image / "app/tools").mkdir(parents=True)
        shutil.copy(HERE / "toy_gateway.py", self.image / "app/toy_gateway.py")
        self.start_script(START)
        self._running: list[Any] = []

    def start_script(self, text: str) -> None:
        path = self.image / "app/tools/start.sh"
        path.write_text(text)
        path.chmod(0o755)

    async def open(self, **fields: Any) -> tuple[LocalEnvironment, Task]:
        directory = self.folder / "task"
        (directory / "environment").mkdir(parents=True)
        (directory / "instruction.md").write_text("Do it.")
        document = {"task_slug": "slug", "ecr_image": "toy", "mcp_servers": ["files", "mail"]}
        (directory / "archipelago.json").write_text(json.dumps({**document, **fields}))
        environment = LocalEnvironment(
            environment_dir=directory / "environment",
            environment_name="toy",
            session_id="toy",
            trial_paths=TrialPaths(trial_dir=self.folder / "trial"),
            task_env_config=EnvironmentConfig(),
            images={"toy": str(self.image)},
        )
        self._running.append(environment)
        await environment.start(force_build=False)
        return environment, load_task(directory)

    async def close(self) -> None:
        for environment in self._running:
            await environment.stop(delete=True)


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[Sandboxes]:
    opened = Sandboxes(tmp_path)
    yield opened
    await opened.close()


def world(environment: Any, task: Task, env: dict[str, str] | None = None, **prepare: Any) -> World:
    return World(environment, task, PrepareSettings(**prepare), env or {}, timeout_sec=60)


async def output(environment: Any, command: str) -> str:
    return str((await environment.exec(command, user="root")).stdout)


async def test_starts_the_world_and_lists_its_tools(sandboxes: Sandboxes) -> None:
    environment, task = await sandboxes.open(task_slug="quarter; id", needs_snapshot=True)
    started = world(environment, task)
    session = ToolSession(await started.start())
    tools = await await_tools(session, started.declared_servers(), 10)
    await started.snapshot()
    assert {"files_read", "mail_send"} <= {tool["name"] for tool in tools}
    assert await output(environment, "cat /tmp/slug.txt") == "quarter; id\n"
    listing = await output(environment, "tar -tzf /var/lib/apex/initial_snapshot.tar.gz")
    assert "filesystem" in listing or listing == ""
    assert started.seconds.keys() >= {"resources", "launch", "tunnel", "health", "snapshot"}
    await session.aclose()


async def test_a_key_arrives_byte_for_byte_and_nothing_else_sees_it(
    sandboxes: Sandboxes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    environment, task = await sandboxes.open(required_env_keys=["NASTY_KEY"])
    sandboxes_commands: list[str] = []
    run = environment.exec

    async def watched(command: str, **kwargs: Any) -> Any:
        sandboxes_commands.append(command + str(kwargs))
        return await run(command, **kwargs)

    environment.exec = watched  # type: ignore[method-assign]
    await world(environment, task, {"NASTY_KEY": NASTY}).start()
    find = "cat /proc/$(pgrep -f toy_gateway.py | head -n 1)/environ | base64 -w0"
    environ = base64.b64decode(await output(environment, find)).split(b"\0")
    assert b"NASTY_KEY=" + NASTY.encode() in environ
    assert not any("pwned" in command for command in sandboxes_commands)
    assert "pwned" not in caplog.text
    assert await output(environment, "ls /tmp/pwned 2>/dev/null; ls /tmp/apex-world-*/env") == ""
    assert "pwned" not in await output(environment, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


async def test_a_ready_gateway_is_noticed_at_once(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, task = await sandboxes.open()
    sleep = anyio.sleep
    waited: list[float] = []

    async def noted(delay: float) -> None:
        waited.append(delay)
        await sleep(delay)

    monkeypatch.setattr("skyrl_apex_plugin.agent.world.anyio.sleep", noted)
    ready: list[float] = []
    url = await environment.get_tunnel_url(8000)

    async def watch() -> None:
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    await client.get(f"{url}/health")
                    ready.append(time.monotonic())
                    return
                except httpx.HTTPError:
                    await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    await world(environment, task).start()
    noticed = time.monotonic()
    await watching
    assert waited and max(waited) <= 0.25
    assert noticed - ready[0] < 1.0, "one wait, beside a look at the process"


async def test_a_world_that_ends_is_an_error_with_its_log_and_no_secret(
    sandboxes: Sandboxes,
) -> None:
    sandboxes.start_script('#!/bin/sh\necho "bad key $A_KEY"\nexit 3\n')
    environment, task = await sandboxes.open(required_env_keys=["A_KEY"])
    with pytest.raises(SetupError, match=r"exit code 3.*bad key \*\*\*") as caught:
        await world(environment, task, {"A_KEY": "hunter2"}).start()
    assert "hunter2" not in str(caught.value)


async def test_the_image_may_declare_the_servers(sandboxes: Sandboxes) -> None:
    declared = {"mcpServers": {"files": {}, "calendar": {}}}
    (sandboxes.image / "app/mcp.json").write_text(json.dumps(declared))
    environment, task = await sandboxes.open(mcp_servers=None)
    started = world(environment, task)
    session = ToolSession(await started.start())
    with pytest.raises(SetupError, match="no tools from calendar after"):
        await await_tools(session, started.declared_servers(), 0.5)
    await session.aclose()


async def test_a_sandbox_without_snapshots_of_its_own_packs_them_by_tar(
    sandboxes: Sandboxes,
) -> None:
    environment, task = await sandboxes.open(needs_snapshot=True)
    await environment.exec("echo 1 > /filesystem/ledger.csv", user="root")
    plain = SimpleNamespace(exec=environment.exec)
    paths = ("/filesystem", "/not there")
    await world(plain, task, snapshot_paths=paths).snapshot()
    listing = await output(environment, "tar -tzf /var/lib/apex/initial_snapshot.tar.gz")
    assert "filesystem/ledger.csv" in listing


async def test_a_step_over_its_limit_is_named(sandboxes: Sandboxes) -> None:
    sandboxes.start_script("#!/bin/sh\nsleep 600\n")
    environment, task = await sandboxes.open()
    slow = World(environment, task, PrepareSettings(), {}, timeout_sec=1.5)
    with pytest.raises(SetupError, match=r"step '(health|start)' took over 1\.5 s"):
        await slow.start()


async def test_plugins_prepare_the_sandbox_before_the_world_starts(sandboxes: Sandboxes) -> None:
    class Prepare:
        @hookimpl
        async def apex_prepare_world(self, environment: Any, task: Task) -> None:
            await environment.exec(f"echo {task.task_slug} > /tmp/prepared", user="root")

    sandboxes.start_script(START.replace('echo "$1"', "cat /tmp/prepared"))
    environment, task = await sandboxes.open()
    plugin_manager().register(Prepare(), name="test-prepare")
    try:
        await world(environment, task).start()
    finally:
        plugin_manager().unregister(name="test-prepare")
    assert await output(environment, "cat /tmp/slug.txt") == "slug\n"


async def test_permissions_are_set_and_the_hosts_environment_stays_outside(
    sandboxes: Sandboxes,
) -> None:
    sandboxes.start_script(START.replace('echo "$1"', 'echo "$MODE"'))
    environment, task = await sandboxes.open()
    await environment.exec("touch /filesystem/report", user="root")
    host = {"MODE": "of the host"}
    await world(environment, task, host, permissions={"/filesystem": "0700"}).start()
    assert await output(environment, "stat -c %a /filesystem/report") == "700\n"
    assert "of the host" not in await output(environment, "cat /tmp/slug.txt")


FAULTY = {"type": "object", "properties": {"note": {"type": "string", "nullable": True}}}
HEALTHY = {"type": "object", "properties": {"note": {"type": ["string", "null"]}}}


async def test_the_slides_patch_touches_only_what_has_the_fault(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worldfixes, "SERVERS", "/tmp/app")  # images are read-only here
    environment, task = await sandboxes.open()
    files = {
        "/app/mcp_servers/slides/output_schema.json": FAULTY,
        "/app/mcp_servers/slides/healthy.json": HEALTHY,
        "/app/mcp_servers/sheets/output_schema.json": FAULTY,
    }
    return_value = {"note": None}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(return_value, FAULTY)
    await environment.exec("mkdir -p /tmp/app/mcp_servers/slides /tmp/app/mcp_servers/sheets")
    for path, schema in files.items():
        text = json.dumps(schema)
        await environment.exec(f"printf %s '{text}' > /tmp{path}", user="root")
    before = await output(environment, "find /tmp/app -type f -printf '%p %i\\n' | sort")
    await worldfixes.apex_prepare_world(environment=environment, task=task)
    patched = json.loads(
        await output(environment, "cat /tmp/app/mcp_servers/slides/output_schema.json")
    )
    jsonschema.validate(return_value, patched)
    after = await output(environment, "find /tmp/app -type f -printf '%p %i\\n' | sort")
    changed = set(before.splitlines()) ^ set(after.splitlines())
    assert {line.split()[0] for line in changed} == {
        "/tmp/app/mcp_servers/slides/output_schema.json"
    }
