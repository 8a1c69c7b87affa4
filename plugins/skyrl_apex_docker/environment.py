"""``archipelago-docker``: harbor's Docker environment with a world's image and a tunnel."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from harbor.environments.base import ExecResult
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig

from skyrl_apex_sandbox_kit import (
    LOG_DIRECTORIES,
    OWNER_LABEL,
    Leftover,
    exec_and_kill,
    image_of_task,
    limiter_for,
    owner_label,
    snapshot_command,
    start_or_undo,
)

from .engine import engine, has_image
from .leftovers import list_leftovers

GATEWAY_PORT = 8000
DEFAULT_CONCURRENT_STARTS = 4
_OWN_OPTIONS = ("image", "image_archive", "ports", "max_concurrent_starts")


class ApexDockerEnvironment(DockerEnvironment):  # type: ignore[misc]
    """A container with the world's image; its ports are published on free loopback ports.

    Options besides harbor's own (``environment.kwargs``, ``--ek`` on the command line):

    :param image: image name; else ``ecr_image`` of the task's ``archipelago.json``, else what
        the task itself says. The engine pulls it when it has none of that name.
    :param image_archive: a ``docker save`` archive to load the image from when it is missing.
    :param ports: ports of the container to publish; ``get_tunnel_url`` reaches these only.
    :param max_concurrent_starts: how many containers of this process may be starting at once.
    """

    def __init__(
        self,
        environment_dir: Path,
        environment_name: str,
        session_id: str,
        trial_paths: Any,
        task_env_config: EnvironmentConfig,
        *args: Any,
        image: str | None = None,
        image_archive: str | None = None,
        ports: Sequence[int] = (GATEWAY_PORT,),
        max_concurrent_starts: int = DEFAULT_CONCURRENT_STARTS,
        **kwargs: Any,
    ) -> None:
        world_image = image or image_of_task(environment_dir.parent)
        if world_image is not None:
            task_env_config = task_env_config.model_copy(update={"docker_image": world_image})
        self._world_image = world_image
        self._image_archive = image_archive
        self._ports = tuple(ports)
        self._max_concurrent_starts = max_concurrent_starts
        self._overlay: tempfile.TemporaryDirectory[str] | None = None
        self._urls: dict[int, str] = {}
        self._stopping = asyncio.Lock()
        super().__init__(
            environment_dir,
            environment_name,
            session_id,
            trial_paths,
            task_env_config,
            *args,
            **kwargs,
        )

    @classmethod
    def parse_options(cls, kwargs: dict[str, Any] | None = None) -> Any:
        """harbor's own options are checked by harbor (from 0.26 on), ours by the constructor."""
        rest = {key: value for key, value in (kwargs or {}).items() if key not in _OWN_OPTIONS}
        return super().parse_options(rest)

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        if hasattr(DockerEnvironment, "parse_options"):
            super().preflight(kwargs)
        else:
            super().preflight()

    @classmethod
    def _program(cls) -> list[str]:
        """``docker``, or the engine that harbor (from 0.26 on) was told to use."""
        command = getattr(cls, "_engine_cmd", None)
        return command() if command is not None else ["docker"]

    @classmethod
    async def leftovers(cls) -> list[Leftover]:
        """Containers of this host's runs whose process was killed."""
        return await list_leftovers(cls._program())

    @property
    @override
    def _docker_compose_paths(self) -> list[Path]:
        paths: list[Path] = super()._docker_compose_paths
        return paths if self._overlay is None else [*paths, Path(self._overlay.name, "apex.json")]

    @property
    def _port_service(self) -> str:
        """With a network policy, harbor's sidecar owns the network that the world listens in."""
        return self._EGRESS_CONTROL_SERVICE_NAME if self._enable_egress_control else "main"

    def _write_overlay(self) -> None:
        self._overlay = tempfile.TemporaryDirectory(prefix="skyrl-apex-compose-")
        published = [f"127.0.0.1::{port}" for port in self._ports]
        # Nothing in `sleep infinity` ends on SIGTERM: waiting for it would take ten seconds.
        main: dict[str, Any] = {"labels": {OWNER_LABEL: owner_label()}, "stop_grace_period": "0s"}
        services = {"main": main}
        services.setdefault(self._port_service, {})["ports"] = published
        Path(self._overlay.name, "apex.json").write_text(json.dumps({"services": services}))

    @override
    async def start(self, force_build: bool) -> None:
        if self._overlay is not None:
            return
        # A world's task directory has a placeholder Dockerfile: there is nothing to build.
        build = force_build and self._world_image is None
        limiter = limiter_for("archipelago-docker", self._max_concurrent_starts)
        await limiter.create(lambda: self._start(build), _engine_is_busy)

    async def _start(self, build: bool) -> None:
        self._write_overlay()
        await start_or_undo(lambda: self._start_container(build), lambda: self.stop(delete=True))

    async def _start_container(self, build: bool) -> None:
        loading = limiter_for(f"loading {self.task_env_config.docker_image}", concurrent=1)
        await loading.create(self._load_archive, _engine_is_busy)
        await super().start(build)
        mounted = set(self._mount_targets())
        await self.ensure_dirs([path for path in LOG_DIRECTORIES if path not in mounted])

    async def _load_archive(self) -> None:
        name, archive = self.task_env_config.docker_image, self._image_archive
        if archive is None or name is None or await has_image(self._program(), name):
            return
        await engine([*self._program(), "load", "--input", archive])
        if not await has_image(self._program(), name):
            raise ValueError(f"image_archive {archive} was loaded, but has no image {name!r}")

    @override
    async def stop(self, delete: bool) -> None:
        async with self._stopping:  # a second caller waits for the first
            if self._overlay is None:
                return
            self._urls.clear()
            try:
                await super().stop(delete)
            finally:
                self._overlay.cleanup()
                self._overlay = None

    async def get_tunnel_url(self, port: int) -> str:
        """``http://127.0.0.1:N`` that the engine publishes ``port`` on.

        :raises ValueError: for a port that is not in the option ``ports``.
        """
        if port not in self._ports:
            raise ValueError(
                f"port {port} is not published: add it to the environment option "
                f"ports={list(self._ports)}, a container's ports are fixed when it is created"
            )
        if port not in self._urls:
            result = await self._run_docker_compose_command(
                ["port", self._port_service, str(port)], timeout_sec=60
            )
            found = re.search(r"127\.0\.0\.1:(\d+)", result.stdout or "")
            if found is None or found[1] == "0":
                raise RuntimeError(f"the engine publishes no port {port}: {result.stdout!r}")
            self._urls[port] = f"http://127.0.0.1:{found[1]}"
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
        """Run a command. On a timeout or cancellation the processes inside end too, which
        harbor's own exec leaves running.

        :raises RuntimeError: after ``timeout_sec``.
        """
        run = functools.partial(super().exec, command, cwd=cwd, user=user)
        return await exec_and_kill(
            lambda mark: run(env={**(env or {}), **mark}),
            functools.partial(super().exec, user="root"),
            timeout_sec,
        )

    async def snapshot(self, paths: Sequence[str], target_path: str) -> None:
        """Write the given paths to a gzip tar inside the container, members relative to ``/``.

        Paths that do not exist are left out.

        :raises RuntimeError: when tar fails, with its words.
        """
        result = await self.exec(snapshot_command(paths, target_path), user="root")
        if result.return_code != 0:
            raise RuntimeError(f"snapshot of {', '.join(paths)}: {result.stderr or result.stdout}")


def _engine_is_busy(error: Exception) -> bool:
    """The registry's rate limit, or address pools that other networks will give back."""
    text = str(error).lower()
    return "toomanyrequests" in text or "address pools" in text
