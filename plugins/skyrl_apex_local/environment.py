"""``archipelago-local``: harbor's environment on Linux namespaces, without containers."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from skyrl_apex_sandbox_kit import Leftover, image_of_task, limiter_for

from .cgroups import Limits
from .egress import EgressProxy
from .images import Image, find_image
from .leftovers import list_leftovers
from .sandbox import Sandbox, SandboxSpec
from .tunnel import Tunnel

DEFAULT_PROCESSES = 2048
SMALL_BYTES = 64 * 1024
"""Files up to this size are copied at once: a thread may have to be waited for much longer. Nothing
blocks there: descriptors of the sandbox's files are non-blocking."""
DEFAULT_CONCURRENT_STARTS = 2 * (os.cpu_count() or 1)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_bwrap(configured: str | None = None) -> str:
    """Path of bubblewrap: the ``bwrap`` option, ``$APEX_BWRAP``, then the search path.

    :raises FileNotFoundError: with the command that installs it.
    """
    wanted = configured or os.environ.get("APEX_BWRAP") or "bwrap"
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(
            f"archipelago-local needs bubblewrap, and {wanted!r} is not there. Install it "
            "(apt-get install -y bubblewrap, dnf install bubblewrap) or name the program with "
            "the environment option bwrap=PATH or APEX_BWRAP=PATH"
        )
    return found


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """harbor's base class takes any option and drops those that it does not know."""
    harbors = inspect.signature(BaseEnvironment).parameters
    if unknown := sorted(options.keys() - harbors.keys()):
        own = inspect.signature(LocalEnvironment).parameters.values()
        known = [each.name for each in own if each.kind is each.KEYWORD_ONLY]
        raise ValueError(
            f"archipelago-local has no option {', '.join(unknown)}; known: {', '.join(known)}"
        )


class LocalEnvironment(BaseEnvironment):
    """A sandbox of this machine: own files, processes, users and network.

    Options (harbor's ``environment.kwargs``, ``--ek`` on the command line):

    :param bwrap: path of bubblewrap; else ``$APEX_BWRAP``, else the search path.
    :param image: image name; else ``ecr_image`` of the task's ``archipelago.json``.
    :param images: image name to the directory it is unpacked in.
    :param writable: further directories inside that may be written to.
    :param processes: most processes at once, where the host allows limits.
    :param max_concurrent_starts: how many sandboxes of this process may be starting at once.
    :raises ValueError: an option that is none of these and none of harbor's own.
    """

    def __init__(
        self,
        *args: Any,
        bwrap: str | None = None,
        image: str | None = None,
        images: Mapping[str, str] | None = None,
        writable: Sequence[str] = (),
        processes: int = DEFAULT_PROCESSES,
        max_concurrent_starts: int = DEFAULT_CONCURRENT_STARTS,
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        self._bwrap = bwrap
        self._image_name = image
        self._images = dict(images or {})
        self._writable = tuple(writable)
        self._processes = processes
        self._max_concurrent_starts = max_concurrent_starts
        self._sandbox: Sandbox | None = None
        self._stopping = asyncio.Lock()
        self._tunnels: dict[int, tuple[Tunnel, str]] = {}
        self._proxy: EgressProxy | None = None
        self._proxy_url: str | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "archipelago-local"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        try:
            find_bwrap((kwargs or {}).get("bwrap"))
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from error  # harbor's way to end before any trial

    @classmethod
    async def leftovers(cls) -> list[Leftover]:
        """Sandboxes of this user whose owner process was killed."""
        return await asyncio.to_thread(list_leftovers)

    @override
    def _validate_definition(self) -> None:
        """A world's task needs no Dockerfile; its image is looked up at the start."""

    def _find_image(self) -> Image | None:
        name = self._image_name or image_of_task(self.environment_dir.parent)
        return find_image(name, self._images) if name else None

    def _spec(self) -> SandboxSpec:
        image = self._find_image()
        megabytes = self._effective_memory_mb
        storage = self._effective_storage_mb
        return SandboxSpec(
            bwrap=find_bwrap(self._bwrap),
            image=image,
            limits=Limits(
                memory_bytes=megabytes * 2**20 if megabytes else None,
                cpus=self._effective_cpus,
                processes=self._processes,
            ),
            disk_bytes=storage * 2**20 if storage else None,
            writable=self._writable,
        )

    @override
    async def start(self, force_build: bool) -> None:
        if self._sandbox is not None:
            return
        sandbox = Sandbox(self._spec())
        limiter = limiter_for(self.type(), self._max_concurrent_starts)
        await limiter.create(sandbox.start, _host_is_full)
        self._sandbox = sandbox
        for controller, reason in sandbox.refused_limits.items():
            self.logger.warning(
                "this host takes no %s limit for sandboxes (%s): none is set", controller, reason
            )
        for target in self._mount_targets():
            if not target.startswith("/logs/"):
                self.logger.warning("archipelago-local mounts nothing: no %s inside", target)
        try:
            await self._apply_network_policy(self._network_policy)
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    @override
    async def stop(self, delete: bool) -> None:
        async with self._stopping:  # a second caller waits for the first
            await self._stop(delete)

    async def _stop(self, delete: bool) -> None:
        sandbox, self._sandbox = self._sandbox, None
        tunnels, self._tunnels = self._tunnels, {}
        proxy, self._proxy, self._proxy_url = self._proxy, None, None
        try:
            for tunnel, _ in tunnels.values():
                await tunnel.close()
            if proxy is not None:
                await proxy.close()
        finally:
            if sandbox is not None:
                await sandbox.stop(keep_files=not delete)

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError(f"sandbox {self.session_id} is not running: start() it first")
        return self._sandbox

    async def get_tunnel_url(self, port: int) -> str:
        """``http://127.0.0.1:N`` that leads to ``port`` inside; the same URL on every call."""
        if port not in self._tunnels:
            tunnel = Tunnel(port, self._running().network_socket)
            self._tunnels[port] = (tunnel, await tunnel.start())
        return self._tunnels[port][1]

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if self._proxy is not None:
            self._proxy.policy = network_policy
            self._proxy.drop_connections()
        elif network_policy.network_mode != NetworkMode.NO_NETWORK:
            listener, port = await self._running().network_socket(listening=True)
            self._proxy = EgressProxy(listener, network_policy, self.logger)
            self._proxy_url = f"http://127.0.0.1:{port}"
            await self._proxy.start()

    def _environment(self, env: dict[str, str] | None) -> dict[str, str]:
        base = {"PATH": _PATH, "LANG": "C.UTF-8"}
        if self._running().has_host_python:
            base["APEX_PYTHON"] = sys.executable
        if self._proxy_url is not None:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
                base[name] = self._proxy_url
            base["NO_PROXY"] = base["no_proxy"] = "localhost,127.0.0.1"
        return {**base, **(self._merge_env(env) or {})}

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        completed = await self._running().execute(
            command,
            env=self._environment(env),
            cwd=cwd or self.task_env_config.workdir,
            user=self._resolve_user(user),
            timeout_sec=timeout_sec,
            on_output=self._output_callback(),
        )
        return ExecResult(
            stdout=completed.stdout, stderr=completed.stderr, return_code=completed.exit_code
        )

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        status = os.stat(source)
        mode = status.st_mode & 0o777
        descriptor = await self._running().open_file(str(target_path), write=True, mode=mode)
        if status.st_size <= SMALL_BYTES:
            _copy_into(source, descriptor)
        else:
            await asyncio.to_thread(_copy_into, source, descriptor)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        descriptor = await self._running().open_file(str(source_path), write=False)
        await asyncio.to_thread(_copy_out, descriptor, Path(target_path))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        with tempfile.TemporaryFile() as stream:
            await asyncio.to_thread(_pack, Path(source_dir), stream)
            stream.seek(0)
            await self._running().transfer(
                {"op": "unpack", "base": str(target_dir)}, stream.fileno()
            )

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryFile() as stream:
            await self._pack_inside(stream, str(source_dir), ["."], mode="w|")
            stream.seek(0)
            await asyncio.to_thread(_unpack, stream, Path(target_dir), self.logger.warning)

    async def snapshot(self, paths: Sequence[str], target_path: str) -> None:
        """Write the given paths to a gzip tar inside the sandbox, members relative to ``/``.

        Paths that do not exist are left out. Only the sandbox's root may read the file.
        """
        names = [str(PurePosixPath(path)).lstrip("/") for path in paths]
        descriptor = await self._running().open_file(target_path, write=True, mode=0o600)
        with os.fdopen(descriptor, "wb") as stream:
            await self._pack_inside(stream, "/", names, mode="w|gz", missing_ok=True)

    async def _pack_inside(
        self, stream: Any, base: str, names: list[str], *, mode: str, missing_ok: bool = False
    ) -> None:
        message = {"op": "pack", "base": base, "names": names, "mode": mode}
        await self._running().transfer({**message, "missing_ok": missing_ok}, stream.fileno())


def _host_is_full(error: Exception) -> bool:
    """Out of processes, memory, user namespaces or open files: others may end soon."""
    full = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE)
    return isinstance(error, OSError) and error.errno in full


def _copy_into(source: Path, descriptor: int) -> None:
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        shutil.copyfileobj(reading, writing)


def _copy_out(descriptor: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(descriptor, "rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing)


def _pack(source: Path, stream: Any) -> None:
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(source, arcname=".")


def _unpack(stream: Any, target: Path, warn: Any) -> None:
    """Extract what a sandbox packed: links that lead out and special files are left out."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            try:
                archive.extract(member, target, filter="data")
            except tarfile.FilterError as error:
                warn("not downloaded from the sandbox: %s", error)
