"""Starts the world of a task inside its sandbox. ``docs/agent.md`` documents the sequence."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from skyrl_apex_hookspecs import SetupError, Task
from skyrl_apex_plugin.discovery import hooks

from .mcp_link import CallLost, RemoteError
from .session import ToolSession
from .settings import PrepareSettings
from .task import missing_env_keys
from .tls import shared_tls

logger = logging.getLogger(__name__)

FIRST_POLL_SEC = 0.05
LONGEST_POLL_SEC = 0.25
LONGEST_TOOLS_POLL_SEC = 1.0
LAUNCH_CHECK_SEC = 2.0
PACKAGE_FACTOR = 5
LOG_TAIL_BYTES = 2000
WORLD_LOG = "/logs/agent/world.log"
MCP_PATH = "/mcp/"

LAUNCH = """\
#!/bin/sh
# Usage: launch.sh FOLDER COMMAND SLUG. Reads FOLDER/env/<KEY>, one file for each value, so that no
# value passes through a command line or is parsed by a shell; the files are gone before the world
# starts. The x keeps trailing newlines.
for file in "$1"/env/*; do
  [ -e "$file" ] || continue
  value=$(cat "$file"; printf x)
  export "${file##*/}=${value%x}"
done
rm -rf "$1/env"
"$2" "$3"
echo $? > "$1/exit"
"""

RESOURCES = "cat /proc/loadavg; grep -E 'MemTotal|MemAvailable' /proc/meminfo; nproc; df -Pk / /tmp"


class World:
    """The world of one task: its preparation, its gateway and its declared servers.

    :param environment: the live harbor environment.
    :param env: where required keys are looked up.
    :param timeout_sec: limit of the whole start.
    :param mcp_servers: harbor's MCP servers of the task; one that is not the world's gateway
        takes its place.
    """

    def __init__(
        self,
        environment: Any,
        task: Task,
        settings: PrepareSettings,
        env: Mapping[str, str],
        *,
        timeout_sec: float,
        mcp_servers: Sequence[Any] = (),
    ) -> None:
        self._environment = environment
        self._task = task
        self._settings = settings
        self._world_env = world_env(task, settings, env)
        self._timeout = timeout_sec
        self._port, self._mcp_path = _endpoint(mcp_servers, settings.port)
        self._folder = f"/tmp/apex-world-{secrets.token_hex(8)}"
        self._launched = False
        self._servers_of_image: tuple[str, ...] = ()
        self.seconds: dict[str, float] = {}
        """Seconds of each finished step."""

    async def start(self) -> str:
        """Prepare the sandbox, start the world, wait for its gateway; returns its MCP endpoint.

        :raises SetupError: a step failed or ran over its limit; names the step.
        """
        limit = self._settings.step_timeout_sec
        async with self._step("start", self._timeout):
            async with self._step("resources", limit):
                await self._log_resources()
            async with self._step("packages", PACKAGE_FACTOR * limit):
                await self._install_packages()
            async with self._step("permissions", limit):
                await self._set_permissions()
            async with self._step("hooks", PACKAGE_FACTOR * limit):
                await hooks.prepare_world(self._environment, self._task)
            async with self._step("launch", limit):
                await self._launch()
            async with self._step("servers", limit):
                await self._read_servers_of_image()
            async with self._step("tunnel", limit):
                url = await self._gateway_url()
            if self._mcp_path == MCP_PATH:
                async with self._step("health", self._timeout):
                    await self._await_health(url)
            async with self._step("apps", self._timeout):
                await self._post_apps(url)
        return url + self._mcp_path

    async def snapshot(self) -> None:
        """Pack the world's files as they are before the agent acts, where the task asks for it."""
        if not self._task.needs_snapshot:
            return
        paths, target = list(self._settings.snapshot_paths), self._settings.snapshot_target
        async with self._step("snapshot", PACKAGE_FACTOR * self._settings.step_timeout_sec):
            if hasattr(self._environment, "snapshot"):
                await self._environment.snapshot(paths, target)
                return
            present = " ".join(
                f'[ -e {shlex.quote(p)} ] && set -- "$@" {shlex.quote(p[1:])};' for p in paths
            )
            await self._exec(
                f"mkdir -p {shlex.quote(str(Path(target).parent))}; set --; {present} "
                f'tar -C / -czf {shlex.quote(target)} "$@"',
                "packing the initial snapshot",
            )

    def declared_servers(self) -> tuple[str, ...]:
        """Names of the servers that must show tools: of the settings, of ``apps``, of the task's
        ``mcp_servers`` (a list of names, or an object by name), of the image's servers file."""
        apps = (self._settings.apps or {}).get("mcpServers")
        declared = self._settings.servers or apps or self._task.metadata.get("mcp_servers")
        return tuple(declared or self._servers_of_image)

    def redact(self, text: str) -> str:
        """``text`` with every value of a required key masked."""
        values = {
            self._world_env[key] for key in self._task.required_env_keys if key in self._world_env
        }
        for value in sorted(filter(None, values), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    @asynccontextmanager
    async def _step(self, name: str, limit: float) -> AsyncIterator[None]:
        started = anyio.current_time()
        try:
            # Not anyio's: it would cancel the clean-up of what it cancels, again and again.
            async with asyncio.timeout(limit):
                yield
        except TimeoutError as error:
            raise SetupError(f"world start: step {name!r} took over {limit:g} s") from error
        self.seconds[name] = anyio.current_time() - started
        logger.debug("world start: %s took %.2f s", name, self.seconds[name])

    async def _exec(self, command: str, what: str, timeout: float | None = None) -> str:
        limit = timeout or self._settings.step_timeout_sec
        result = await self._environment.exec(command, timeout_sec=int(limit) + 1, user="root")
        if result.return_code != 0:
            output = self.redact((result.stderr or result.stdout or "")[-LOG_TAIL_BYTES:])
            raise SetupError(f"{what} failed with exit code {result.return_code}: {output}")
        return result.stdout or ""

    async def _log_resources(self) -> None:
        result = await self._environment.exec(RESOURCES, timeout_sec=10, user="root")
        logger.info(
            "%s: sandbox resources: %s", self._task.task_id, (result.stdout or "").split("\n")
        )

    async def _install_packages(self) -> None:
        limit = PACKAGE_FACTOR * self._settings.step_timeout_sec
        if self._settings.apt_packages:
            names = shlex.join(self._settings.apt_packages)
            await self._exec(
                "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && "
                f"apt-get install -qq -y --no-install-recommends {names}",
                f"installing {names}",
                limit,
            )
        if self._settings.pip_packages:
            names = shlex.join(self._settings.pip_packages)
            await self._exec(f"python3 -m pip install -q {names}", f"installing {names}", limit)

    async def _set_permissions(self) -> None:
        for path, mode in self._settings.permissions.items():
            await self._exec(
                f"chmod -R {shlex.quote(mode)} {shlex.quote(path)}", f"chmod {mode} {path}"
            )

    async def _launch(self) -> None:
        """Start the world detached, its environment handed over as files."""
        command = self._settings.start_command
        found = await self._environment.exec(
            f"test -x {shlex.quote(command)}", timeout_sec=30, user="root"
        )
        if found.return_code != 0:
            logger.info("%s: no %s in the image; it starts by itself", self._task.task_id, command)
            return
        with tempfile.TemporaryDirectory(prefix="apex-world-") as local:
            (Path(local) / "env").mkdir(mode=0o700)
            (Path(local) / "launch.sh").write_text(LAUNCH)
            for key, value in self._world_env.items():
                (Path(local) / "env" / key).write_bytes(value.encode("utf-8", "surrogateescape"))
            await self._environment.upload_dir(source_dir=Path(local), target_dir=self._folder)
        launch = shlex.join(
            ["sh", f"{self._folder}/launch.sh", self._folder, command, self._task.task_slug]
        )
        await self._exec(
            f"chmod -R go= {self._folder}; mkdir -p {Path(WORLD_LOG).parent}; "
            "session=$(command -v setsid); "
            f"nohup $session {launch} >{WORLD_LOG} 2>&1 </dev/null &",
            f"starting {command}",
        )
        self._launched = True

    async def _read_servers_of_image(self) -> None:
        path = self._settings.servers_file
        if self.declared_servers() or not path:
            return
        found = await self._environment.exec(
            f"cat {shlex.quote(path)}", timeout_sec=30, user="root"
        )
        if found.return_code != 0:
            return
        try:
            self._servers_of_image = tuple(json.loads(found.stdout or "")["mcpServers"])
        except (ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{path} of the image declares no mcpServers: {error!r}") from error

    async def _gateway_url(self) -> str:
        if self._settings.gateway_url:
            return self._settings.gateway_url.rstrip("/")
        tunnel = getattr(self._environment, "get_tunnel_url", None)
        if tunnel is None:
            raise SetupError(
                f"sandbox {type(self._environment).__name__} has no tunnel to port "
                f"{self._port}: use archipelago-local, -docker or -modal, or set "
                "agent.prepare.gateway_url"
            )
        return str(await tunnel(self._port)).rstrip("/")

    async def _await_health(self, url: str) -> None:
        """Poll ``/health`` in short, growing intervals; a world that exited is an error at once."""
        delay, next_check = FIRST_POLL_SEC, anyio.current_time() + LAUNCH_CHECK_SEC
        async with httpx.AsyncClient(timeout=2.0, verify=shared_tls(), trust_env=False) as client:
            while True:
                try:
                    if (await client.get(f"{url}/health")).status_code == 200:
                        return
                except httpx.HTTPError as error:
                    logger.debug("%s: gateway not up yet: %r", self._task.task_id, error)
                if anyio.current_time() >= next_check:
                    await self._check_launched()
                    next_check = anyio.current_time() + LAUNCH_CHECK_SEC
                await anyio.sleep(delay)
                delay = min(1.5 * delay, LONGEST_POLL_SEC)

    async def _check_launched(self) -> None:
        if not self._launched:
            return
        code = (await self._exec(f"cat {self._folder}/exit 2>/dev/null || true", "a look")).strip()
        if code and code != "0":
            tail = await self._exec(
                f"tail -c {LOG_TAIL_BYTES} {WORLD_LOG} || true", "reading the log"
            )
            raise SetupError(
                f"{self._settings.start_command} {self._task.task_slug} ended with exit code "
                f"{code}: {self.redact(tail)}"
            )

    async def _post_apps(self, url: str) -> None:
        if self._settings.apps is None:
            return
        async with httpx.AsyncClient(
            timeout=self._timeout, verify=shared_tls(), trust_env=False
        ) as client:
            try:
                answer = await client.post(f"{url}/apps", json=dict(self._settings.apps))
            except httpx.HTTPError as error:
                raise SetupError(f"POST {url}/apps: {error!r}") from error
        if answer.status_code != 200:
            raise SetupError(f"POST {url}/apps: HTTP {answer.status_code}: {_failed(answer)}")


def world_env(task: Task, settings: PrepareSettings, env: Mapping[str, str]) -> dict[str, str]:
    """The environment that the world is started with.

    :raises SetupError: a required key is missing and may not be left out, or a name is no name.
    """
    missing = missing_env_keys(task, env)
    refused = [key for key in missing if key not in settings.offline]
    if refused:
        raise SetupError(
            f"task {task.task_id} needs {', '.join(refused)} in the environment; set it (harbor "
            "run --ae KEY=VALUE), or allow its server's offline mode in agent.prepare.offline"
        )
    chosen = dict(settings.env)
    for key in task.required_env_keys:
        if key in missing:
            chosen.update(settings.offline[key])
        else:
            chosen[key] = env[key]
    for name in chosen:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise SetupError(f"task {task.task_id}: {name!r} is no name of an environment variable")
    return chosen


def _endpoint(mcp_servers: Sequence[Any], port: int) -> tuple[int, str]:
    """Port and path of the MCP endpoint inside the sandbox."""
    if not mcp_servers:
        return port, MCP_PATH
    server = mcp_servers[0]
    if len(mcp_servers) > 1 or server.transport != "streamable-http":
        named = ", ".join(f"{item.name} ({item.transport})" for item in mcp_servers)
        raise SetupError(
            f"the task declares the MCP servers {named}; this agent works through one "
            "streamable-http endpoint, the world's gateway"
        )
    url = httpx.URL(server.url)
    path = url.path.rstrip("/") + "/"
    return url.port or port, path


def server_of(tool: str, servers: tuple[str, ...]) -> str:
    """The server a tool belongs to: with two or more servers its name is ``{server}_{tool}``."""
    if len(servers) == 1:
        return servers[0]
    matching = [name for name in servers if tool.startswith(f"{name}_")]
    return max(matching, key=len, default="")


def missing_servers(tools: list[dict[str, Any]], servers: tuple[str, ...]) -> tuple[str, ...]:
    """Declared servers that show no tool."""
    shown = {server_of(tool["name"], servers) for tool in tools}
    return tuple(name for name in servers if name not in shown)


def _failed(answer: httpx.Response) -> str:
    """What a gateway says of servers that did not come up."""
    try:
        detail = answer.json()["detail"]
        names = ", ".join(detail["failed_servers"])
        return f"servers that failed: {names}; {detail.get('details', '')}"
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]


async def await_tools(
    session: ToolSession, servers: tuple[str, ...], timeout_sec: float
) -> list[dict[str, Any]]:
    """List the tools until every declared server shows at least one.

    :raises SetupError: they did not within ``timeout_sec``; names the servers without tools.
    """
    deadline = anyio.current_time() + timeout_sec
    delay, tools, reason = FIRST_POLL_SEC, list[dict[str, Any]](), ""
    while True:
        try:
            tools = await session.list_tools()
            if tools and not missing_servers(tools, servers):
                return tools
            reason = f"{len(tools)} tools from the others"
        except (CallLost, RemoteError) as error:
            reason = str(error)
        if anyio.current_time() + delay > deadline:
            break
        await anyio.sleep(delay)
        delay = min(1.5 * delay, LONGEST_TOOLS_POLL_SEC)
    names = missing_servers(tools, servers) or servers
    raise SetupError(
        f"no tools from {', '.join(names) or 'the gateway'} after {timeout_sec:g} s ({reason})"
    )
