"""``archipelago-modal``: harbor's Modal environment with a world's image and tunnels."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, override

from harbor.environments import modal as harbor_modal
from harbor.environments.base import ExecResult
from harbor.environments.modal import ModalEnvironment
from harbor.models.task.config import EnvironmentConfig, TaskConfig
from modal.exception import ResourceExhaustedError

from skyrl_apex_sandbox_kit import (
    LOG_DIRECTORIES,
    OWNER_LABEL,
    Leftover,
    exec_and_kill,
    image_of_task,
    limiter_for,
    owner_is_gone,
    owner_label,
    snapshot_command,
    start_or_undo,
)

from .ports import creating_with

GATEWAY_PORT = 8000
LIFETIME_MARGIN_SEC = 900.0
"""For starting, set-up, uploads and tear-down beside the agent's and the verifier's time."""
TUNNEL_TIMEOUT_SEC = 60
DEFAULT_CONCURRENT_STARTS = 16
DEFAULT_STARTS_PER_SECOND = 4.0
MANAGED_TAGS = {"skyrl-apex.managed": "true"}
_OWN_OPTIONS = ("image", "ports", "trial_time_sec", "max_concurrent_starts", "starts_per_second")


class ApexModalEnvironment(ModalEnvironment):  # type: ignore[misc]
    """A Modal sandbox that runs the world's image and has a TLS tunnel to its gateway.

    Options besides harbor's own (``registry_secret`` for a private ECR registry, ``secrets``,
    ``sandbox_timeout_secs``, ``labels``, …):

    :param image: image name; else ``ecr_image`` of the task's ``archipelago.json``, else what
        the task itself says.
    :param ports: ports to open; ``get_tunnel_url`` reaches these only.
    :param trial_time_sec: the longest a trial may take; else the task's agent and verifier
        time limits. The sandbox has to live longer.
    :param max_concurrent_starts: how many sandboxes of this process may be starting at once.
    :param starts_per_second: how many may begin to start in a second.
    """

    optional_env = (
        "MODAL_TOKEN_ID",
        "MODAL_TOKEN_SECRET",
        "MODAL_ENVIRONMENT",
        "MODAL_PROFILE",
        "MODAL_CONFIG_PATH",
    )
    """Forwarded to workers when set; without a token Modal's own file of the user counts."""

    def __init__(
        self,
        environment_dir: Path,
        environment_name: str,
        session_id: str,
        trial_paths: Any,
        task_env_config: EnvironmentConfig,
        *args: Any,
        image: str | None = None,
        ports: Sequence[int] = (GATEWAY_PORT,),
        trial_time_sec: float | None = None,
        max_concurrent_starts: int = DEFAULT_CONCURRENT_STARTS,
        starts_per_second: float | None = DEFAULT_STARTS_PER_SECOND,
        labels: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._world_image = image or image_of_task(environment_dir.parent)
        if self._world_image is not None:
            task_env_config = task_env_config.model_copy(update={"docker_image": self._world_image})
        self._ports = tuple(ports)
        self._trial_time_sec = trial_time_sec
        self._start_limits = (max_concurrent_starts, starts_per_second)
        self._urls: dict[int, str] = {}
        self._stopping = asyncio.Lock()
        super().__init__(
            environment_dir,
            environment_name,
            session_id,
            trial_paths,
            task_env_config,
            *args,
            labels={**(labels or {}), **MANAGED_TAGS, OWNER_LABEL: owner_label()},
            **kwargs,
        )
        if self._network_disabled and not self._compose_mode:
            # Modal opens no port where block_network is set; harbor's other way, empty lists of
            # allowed destinations, keeps the sandbox from the network and the tunnel open.
            self._dynamic_network = True

    @classmethod
    def parse_options(cls, kwargs: dict[str, Any] | None = None) -> Any:
        """harbor's own options are checked by harbor (from 0.26 on), ours by the constructor."""
        rest = {key: value for key, value in (kwargs or {}).items() if key not in _OWN_OPTIONS}
        return super().parse_options(rest)

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        if hasattr(ModalEnvironment, "parse_options"):
            super().preflight(kwargs)
        else:
            super().preflight()

    @classmethod
    async def leftovers(cls) -> list[Leftover]:
        """Sandboxes that runs on this machine created and did not live to delete."""
        found = []
        async for sandbox in harbor_modal.Sandbox.list.aio(tags=MANAGED_TAGS):
            owner = (await sandbox.get_tags.aio()).get(OWNER_LABEL, "")
            if owner_is_gone(owner):
                about = f"Modal sandbox of {owner}"
                remove = sandbox.terminate.aio
                found.append(Leftover(name=sandbox.object_id, description=about, remove=remove))
        return found

    def _check_lifetime(self) -> None:
        """:raises ValueError: when the sandbox could end before the trial does."""
        trial = self._trial_time_sec
        if trial is None:
            path = self.environment_dir.parent / "task.toml"
            if not path.is_file():
                return
            task = TaskConfig.model_validate_toml(path.read_text())
            trial = (task.agent.timeout_sec or 0.0) + task.verifier.timeout_sec
        needed = trial + LIFETIME_MARGIN_SEC
        if self._sandbox_timeout < needed:
            raise ValueError(
                f"sandbox_timeout_secs={self._sandbox_timeout} is too short for {self.session_id}: "
                f"agent and verifier may take {trial:.0f} s, and {LIFETIME_MARGIN_SEC:.0f} s more "
                f"are needed around them; set it to {needed:.0f} or more"
            )

    @override
    async def _create_sandbox(self, **kwargs: Any) -> Any:
        with creating_with(encrypted_ports=list(self._ports)):
            return await super()._create_sandbox(**kwargs)

    @override
    async def start(self, force_build: bool) -> None:
        if self._sandbox is not None:
            return
        self._check_lifetime()
        # A world's task directory has a placeholder Dockerfile: there is nothing to build.
        build = force_build and self._world_image is None
        start = functools.partial(self._start, super().start, build)
        limiter = limiter_for("archipelago-modal", *self._start_limits)
        await limiter.create(
            lambda: start_or_undo(start, lambda: self.stop(delete=True)), _is_rate_limited
        )

    async def _start(self, start: Callable[[bool], Awaitable[None]], build: bool) -> None:
        await start(build)
        mounted = set(self._mount_targets())
        await self.ensure_dirs([path for path in LOG_DIRECTORIES if path not in mounted])

    @override
    async def stop(self, delete: bool) -> None:
        async with self._stopping:  # a second caller waits for the first
            self._urls.clear()
            if self._sandbox is not None:
                await super().stop(delete)

    async def get_tunnel_url(self, port: int) -> str:
        """``https://…`` URL of Modal's tunnel to ``port``.

        :raises ValueError: for a port that is not in the option ``ports``.
        """
        if port not in self._ports:
            raise ValueError(
                f"port {port} has no tunnel: add it to the environment option "
                f"ports={list(self._ports)}, a sandbox's ports are fixed when it is created"
            )
        if self._sandbox is None:
            raise RuntimeError(f"sandbox {self.session_id} is not running: start() it first")
        if port not in self._urls:
            tunnels = await self._sandbox.tunnels.aio(timeout=TUNNEL_TIMEOUT_SEC)
            self._urls[port] = tunnels[port].url
        return self._urls[port]

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command; on a timeout or cancellation its processes inside end as well.

        :raises RuntimeError: after ``timeout_sec``.
        """
        run = functools.partial(super().exec, command, cwd=cwd, user=user)
        return await exec_and_kill(
            lambda mark: run(env={**(env or {}), **mark}), super().exec, timeout_sec
        )

    async def snapshot(self, paths: Sequence[str], target_path: str) -> None:
        """Write the given paths to a gzip tar inside the sandbox, members relative to ``/``.

        Paths that do not exist are left out.

        :raises RuntimeError: when tar fails, with its words.
        """
        result = await self.exec(snapshot_command(paths, target_path))
        if result.return_code != 0:
            raise RuntimeError(f"snapshot of {', '.join(paths)}: {result.stderr or result.stdout}")


def _is_rate_limited(error: Exception) -> bool:
    return isinstance(error, ResourceExhaustedError)
