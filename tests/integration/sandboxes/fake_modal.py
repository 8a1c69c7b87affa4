"""Modal's SDK for the tests: no account, no cloud.

Every call is bound to the signature of the real SDK's function first, so an argument that Modal
does not know fails here as well. A sandbox is a local one (bubblewrap), its tunnels lead to the
ports named at creation and to no others, as Modal's do.
"""

from __future__ import annotations

import inspect
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import modal
from modal.exception import (
    AlreadyExistsError,
    InvalidError,
    ResourceExhaustedError,
    SandboxFilesystemNotADirectoryError,
    SandboxFilesystemNotFoundError,
)

from skyrl_apex_local.sandbox import Sandbox, SandboxSpec
from skyrl_apex_local.tunnel import Tunnel


class Aio:
    """A function of the SDK: ``f.aio(...)``, arguments checked against the real one."""

    def __init__(self, real: Any, function: Callable[..., Any], *, method: bool = False) -> None:
        self._signature = inspect.signature(real)
        self._function = function
        self._before = (None,) if method else ()

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._signature.bind(*self._before, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._bind(args, kwargs)
        return self._function(*args, **kwargs)

    def aio(self, *args: Any, **kwargs: Any) -> Any:
        self._bind(args, kwargs)
        return self._function(*args, **kwargs)


@dataclass
class Value:
    """An image, app, secret or volume: how it was named."""

    kind: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def _maker(kind: str, real: Any) -> Aio:
    return Aio(real, lambda *args, **kwargs: Value(kind, args, kwargs))


class _Stream:
    def __init__(self, content: Any) -> None:
        self.read = _Async(lambda: content)


class _Async:
    """``x.aio()`` that returns a value that is there already."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Process:
    def __init__(self, stdout: str, stderr: str, code: int, text: bool) -> None:
        self.stdout = _Stream(stdout if text else stdout.encode())
        self.stderr = _Stream(stderr if text else stderr.encode())
        self.wait = _Async(lambda: code)


@dataclass(frozen=True)
class TunnelAddress:
    url: str


class FakeSandbox:
    """What ``Sandbox.create`` gives."""

    def __init__(self, cloud: FakeModal, number: int, options: Mapping[str, Any]) -> None:
        real = modal.Sandbox
        self.object_id = f"sb-{number}"
        self.options = options
        self.terminations = 0
        self._cloud = cloud
        self.box = Sandbox(SandboxSpec(bwrap=shutil.which("bwrap") or "bwrap"))
        self._tunnels: dict[int, Tunnel] = {}
        self._urls: dict[int, TunnelAddress] = {}
        self.exec = Aio(real.exec, self._exec, method=True)
        self.tunnels = Aio(real.tunnels, self._list_tunnels, method=True)
        self.terminate = Aio(real.terminate, self._terminate, method=True)
        self.wait = Aio(real.wait, self._wait, method=True)
        self.poll = Aio(real.poll, self._poll, method=True)
        self.get_tags = Aio(real.get_tags, self._get_tags, method=True)
        self.filesystem = self
        self.copy_from_local = _Coroutine(self._copy_from_local)
        self.copy_to_local = _Coroutine(self._copy_to_local)
        self.list_files = _Coroutine(self._list_files)
        self._experimental_set_outbound_network_policy = _Coroutine(self._set_policy)

    async def start(self) -> None:
        await self.box.start()
        for port in self.options.get("encrypted_ports", ()):
            self._tunnels[port] = Tunnel(port, self.box.network_socket)
            self._urls[port] = TunnelAddress(await self._tunnels[port].start())

    async def _exec(
        self,
        *args: str,
        workdir: str | None = None,
        secrets: Any = (),
        timeout: int | None = None,
        text: bool = True,
        **_: Any,
    ) -> Process:
        if workdir is not None and not workdir.startswith("/"):
            raise InvalidError(f"workdir must be an absolute path, got: {workdir}")
        env = {"PATH": os.defpath + ":/usr/sbin:/sbin", "APEX_PYTHON": sys.executable}
        for secret in (*self.options.get("secrets", ()), *secrets):
            env.update(secret.arguments[0] if secret.kind == "secret values" else {})
        done = await self.box.execute(shlex.join(args), env=env, cwd=workdir, timeout_sec=timeout)
        return Process(done.stdout, done.stderr, done.exit_code, text)

    async def _list_tunnels(self, timeout: int = 50) -> dict[int, TunnelAddress]:
        return dict(self._urls)

    async def _terminate(self, *, wait: bool = False) -> None:
        self.terminations += 1
        for tunnel in self._tunnels.values():
            await tunnel.close()
        await self.box.stop()

    async def _wait(self, raise_on_termination: bool = True) -> None:
        return None

    async def _poll(self) -> int | None:
        return None if self.box.running else 137

    async def _get_tags(self) -> dict[str, str]:
        return dict(self.options.get("tags") or {})

    async def _set_policy(self, **kwargs: Any) -> None:
        self.options = {**self.options, **kwargs}

    async def _copy_from_local(self, local_path: Any, remote_path: str) -> None:
        mode = os.stat(local_path).st_mode & 0o777
        descriptor = await self.box.open_file(remote_path, write=True, mode=mode)
        with open(local_path, "rb") as source, os.fdopen(descriptor, "wb") as file:  # noqa: ASYNC230
            shutil.copyfileobj(source, file)

    async def _copy_to_local(self, remote_path: str, local_path: Any) -> None:
        try:
            descriptor = await self.box.open_file(remote_path, write=False)
        except FileNotFoundError as error:
            raise SandboxFilesystemNotFoundError(remote_path) from error
        os.makedirs(os.path.dirname(local_path), exist_ok=True)
        with os.fdopen(descriptor, "rb") as source, open(local_path, "wb") as file:  # noqa: ASYNC230
            shutil.copyfileobj(source, file)

    async def _list_files(self, path: str) -> list[str]:
        done = await self.box.execute(f"cd {shlex.quote(path)} && ls -A", env={"PATH": os.defpath})
        if done.exit_code:
            raise SandboxFilesystemNotADirectoryError(path)
        return done.stdout.split()


class _Coroutine:
    """``x.aio()`` that awaits a function."""

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        return await self._function(*args, **kwargs)


class FakeModal:
    """The names that harbor imports from ``modal``."""

    def __init__(self) -> None:
        self.sandboxes: list[FakeSandbox] = []
        self.refuse_next = 0
        """How many creations are answered with "too many"."""
        self.fail_next = 0
        """How many creations fail for another reason."""
        self._numbers = itertools.count()
        cloud = self

        class Image:
            from_registry = _maker("registry image", modal.Image.from_registry)
            from_aws_ecr = _maker("ECR image", modal.Image.from_aws_ecr)
            from_dockerfile = _maker("built image", modal.Image.from_dockerfile)

        class Secret:
            from_name = _maker("named secret", modal.Secret.from_name)
            from_dict = _maker("secret values", modal.Secret.from_dict)

        class App:
            lookup = Aio(modal.App.lookup, cloud._lookup)

        class Volume:
            from_name = _maker("volume", modal.Volume.from_name)

        class SandboxClass:
            create = Aio(modal.Sandbox.create, cloud._create)
            list = Aio(modal.Sandbox.list, cloud._list)

        self.names = {
            "Image": Image,
            "Secret": Secret,
            "App": App,
            "Volume": Volume,
            "Sandbox": SandboxClass,
        }

    @property
    def live(self) -> list[FakeSandbox]:
        return [sandbox for sandbox in self.sandboxes if sandbox.terminations == 0]

    async def _lookup(self, name: str, **kwargs: Any) -> Value:
        return Value("app", (name,), kwargs)

    async def _create(self, *args: str, **options: Any) -> FakeSandbox:
        if self.refuse_next:
            self.refuse_next -= 1
            raise ResourceExhaustedError("too many sandboxes")
        if self.fail_next:
            self.fail_next -= 1
            raise ConnectionError("the cloud hiccuped")
        if options.get("block_network") and options.get("encrypted_ports"):
            raise InvalidError("Cannot specify open ports when `block_network` is enabled")
        if any(each.options.get("name") == options.get("name") for each in self.live):
            raise AlreadyExistsError(f"a sandbox named {options.get('name')} exists")
        sandbox = FakeSandbox(self, next(self._numbers), options)
        self.sandboxes.append(sandbox)
        await sandbox.start()
        return sandbox

    async def _list(
        self, *, app_id: str | None = None, tags: dict[str, str] | None = None, client: Any = None
    ) -> AsyncIterator[FakeSandbox]:
        for sandbox in self.live:
            own = sandbox.options.get("tags") or {}
            if all(own.get(key) == value for key, value in (tags or {}).items()):
                yield sandbox
