"""Checks that any sandbox backend can be put through; nothing here needs pytest.

Third parties run them in their own tests::

    import pytest
    from skyrl_apex_plugin.sandboxes.conformance import CHECKS, SandboxMaker

    @pytest.mark.parametrize("name", CHECKS)
    async def test_contract(name, tmp_path):
        await CHECKS[name](SandboxMaker(MyEnvironment, tmp_path))

A check passes by returning, raises :class:`NotOffered` where the contract leaves a choice, and
fails with any other exception; :class:`Violation` says what the contract wants.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment


SERVER_PORT = 8000
_START_TIMEOUT_SEC = 600.0
_SERVE = (
    'if [ -n "$APEX_PYTHON" ] || command -v python3 >/dev/null; then '
    'exec "${APEX_PYTHON:-python3}" -m http.server 8000 --directory /tmp/site; '
    "else exec busybox httpd -f -p 8000 -h /tmp/site; fi"
)
"""Serves /tmp/site on port 8000 with what the image has."""


class Violation(AssertionError):
    """The backend does something else than the contract says."""


class NotOffered(Exception):
    """The backend refuses what it need not offer."""


def require(condition: bool, message: str) -> None:
    """:raises Violation: with the message, unless the condition holds."""
    if not condition:
        raise Violation(message)


@dataclass(slots=True)
class SandboxMaker:
    """Makes environments of one backend, each for an empty task directory of its own.

    :param backend: the ``BaseEnvironment`` class.
    :param directory: an empty directory to work in.
    :param kwargs: further constructor arguments (``environment.kwargs`` in harbor's terms).
    :param task: fields of the task's ``[environment]`` table.
    :param files: files of the task directory, by relative path.
    """

    backend: type[BaseEnvironment]
    directory: Path
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=lambda: {"environment/Dockerfile": ""})
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def make(self, **kwargs: Any) -> BaseEnvironment:
        """A new environment, not started."""
        from harbor.models.task.config import EnvironmentConfig
        from harbor.models.trial.paths import TrialPaths

        name = f"check-{next(self._count)}-{time.time_ns() % 10**9:09d}"
        task_dir = self.directory / name
        for path, text in self.files.items():
            (task_dir / path).parent.mkdir(parents=True, exist_ok=True)
            (task_dir / path).write_text(text)
        paths = TrialPaths(trial_dir=task_dir / "trial")
        paths.mkdir()
        return self.backend(
            environment_dir=task_dir / "environment",
            environment_name=name,
            session_id=f"{name}__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(**self.task),
            **{**self.kwargs, **kwargs},
        )

    @asynccontextmanager
    async def running(self, **kwargs: Any) -> AsyncIterator[BaseEnvironment]:
        """A started environment; stopped and deleted at the end."""
        environment = self.make(**kwargs)
        try:
            async with asyncio.timeout(_START_TIMEOUT_SEC):
                await environment.start(force_build=False)
            yield environment
        finally:
            await environment.stop(delete=True)


Check = Callable[[SandboxMaker], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""Every check by name, in the order they are run."""


def check(function: Check) -> Check:
    """Add a function to :data:`CHECKS`; its docstring is what the report says."""
    CHECKS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    about: str
    outcome: Literal["passed", "failed", "not offered"]
    seconds: float
    detail: str = ""


async def run_checks(
    maker: SandboxMaker, names: list[str] | None = None
) -> AsyncIterator[CheckResult]:
    """Run the checks one after the other; yields each result as it comes.

    :raises KeyError: for a name that is no check.
    """
    for name in names or list(CHECKS):
        function = CHECKS[name]
        began = time.monotonic()
        outcome: Literal["passed", "failed", "not offered"] = "passed"
        detail = ""
        try:
            await function(maker)
        except NotOffered as refusal:
            outcome, detail = "not offered", str(refusal)
        except Exception as error:
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
        about = (function.__doc__ or "").strip().splitlines()[0]
        yield CheckResult(name, about, outcome, time.monotonic() - began, detail)


async def output_of(environment: BaseEnvironment, command: str, **kwargs: Any) -> str:
    """Stdout of a command that has to succeed."""
    result = await environment.exec(command, **kwargs)
    require(
        result.return_code == 0,
        f"{command!r} ended with {result.return_code}: {result.stderr or result.stdout}",
    )
    return result.stdout or ""


@check
async def commands(maker: SandboxMaker) -> None:
    """exec reports exit code and output, and passes variables and directories on exactly."""
    awkward = "a b;$(id)`id`'\"\\ ü"
    async with maker.running() as environment:
        result = await environment.exec("echo out; echo err >&2; exit 7")
        require(result.return_code == 7, f"exit code 7 arrived as {result.return_code}")
        require("out" in (result.stdout or ""), f"stdout is {result.stdout!r}")
        require("err" in f"{result.stdout}{result.stderr}", "what went to stderr is lost")
        seen = await output_of(environment, 'printf %s "$AWKWARD"', env={"AWKWARD": awkward})
        require(seen == awkward, f"variable {awkward!r} arrived as {seen!r}")
        where = await output_of(environment, "pwd", cwd="/tmp")
        require(where.strip() == "/tmp", f"cwd=/tmp ran in {where.strip()}")
        user = await output_of(environment, "id -u", user="root")
        require(user.strip() == "0", f"user root has uid {user.strip()}")


@check
async def log_directories(maker: SandboxMaker) -> None:
    """/logs/agent, /logs/verifier and /logs/artifacts exist and can be written to."""
    async with maker.running() as environment:
        for name in ("agent", "verifier", "artifacts"):
            path = f"/logs/{name}/probe"
            written = await output_of(environment, f"echo {name} > {path} && cat {path}")
            require(written.strip() == name, f"what is written to {path} is not there")


@check
async def files_in_and_out(maker: SandboxMaker) -> None:
    """Files and directories arrive byte for byte, with their mode, both ways."""
    content = bytes(range(256)) * 64
    source = maker.directory / "upload"
    (source / "deep/er").mkdir(parents=True, exist_ok=True)
    (source / "deep/er/data.bin").write_bytes(content)
    script = source / "run.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    back = maker.directory / "download"
    async with maker.running() as environment:
        await environment.upload_dir(source_dir=source, target_dir="/tests")
        ran = await output_of(environment, "/tests/run.sh")
        require(ran.strip() == "ran", "an uploaded script lost its mode or its text")
        await environment.upload_file(source_path=script, target_path="/tmp/run.sh")
        await environment.download_dir(source_dir="/tests", target_dir=back)
        arrived = (back / "deep/er/data.bin").read_bytes()
        require(arrived == content, "a binary file changed on its way")
        await environment.download_file(
            source_path="/tests/deep/er/data.bin", target_path=back / "one.bin"
        )
        require((back / "one.bin").read_bytes() == content, "download_file changed a file")
        try:
            await environment.download_file(
                source_path="/no/such/file", target_path=back / "missing"
            )
        except Exception:
            return
        raise Violation("downloading a file that does not exist raises nothing")


@check
async def timeout_kills_everything(maker: SandboxMaker) -> None:
    """After a timeout no process of the command is left, daemons included."""
    beat = "i=0; while :; do i=$((i+1)); echo $i > /tmp/beat; sleep 0.1; done"
    async with maker.running() as environment:
        try:
            result = await environment.exec(
                f"(setsid sh -c '{beat}' >/dev/null 2>&1 &); sleep 60", timeout_sec=2
            )
        except Exception as error:
            require("time" in str(error).lower(), f"a timeout raised {error!r}")
        else:
            require(result.return_code != 0, "a command that timed out reported success")
        first = await output_of(environment, "cat /tmp/beat")
        await asyncio.sleep(0.5)
        require(await output_of(environment, "cat /tmp/beat") == first, "a process went on")
        require((await environment.exec("true")).return_code == 0, "exec is unusable after it")


@check
async def background_processes(maker: SandboxMaker) -> None:
    """A detached process outlives the exec that started it, which returns at once."""
    async with maker.running() as environment:
        began = time.monotonic()
        await output_of(
            environment, "sh -c 'sleep 1; echo done > /tmp/flag' >/dev/null 2>&1 </dev/null &"
        )
        require(time.monotonic() - began < 10, "exec waited for a background process")
        for _ in range(50):
            if ((await environment.exec("cat /tmp/flag")).stdout or "").strip() == "done":
                return
            await asyncio.sleep(0.2)
        raise Violation("the background process did not live on")


@check
async def tunnel(maker: SandboxMaker) -> None:
    """get_tunnel_url reaches a server inside, with parallel requests and large answers."""
    async with maker.running() as environment:
        url = await _serve(environment, "large", "head -c 3000000 /dev/zero")
        again = await _tunnel_url(environment)
        require(again == url, f"the URL changed from {url} to {again}")
        bodies = await asyncio.gather(*(_get(f"{url}/large") for _ in range(8)))
        sizes = {len(body) for body in bodies}
        require(sizes == {3_000_000}, f"eight answers of 3,000,000 bytes had sizes {sizes}")


@check
async def separate_sandboxes(maker: SandboxMaker) -> None:
    """Two at once share no files and both serve port 8000."""
    async with maker.running() as one, maker.running() as two:
        first, second = await asyncio.gather(
            _serve(one, "name", "echo one"), _serve(two, "name", "echo two")
        )
        require((await _get(f"{first}/name")).strip() == b"one", "the first URL leads elsewhere")
        require((await _get(f"{second}/name")).strip() == b"two", "the second URL leads elsewhere")
        await output_of(one, "echo secret > /tmp/only-one")
        found = await two.exec("test -e /tmp/only-one")
        require(found.return_code != 0, "a file of one sandbox is visible in another")


@check
async def snapshots(maker: SandboxMaker) -> None:
    """snapshot packs what exists of the given paths, members relative to the root."""
    async with maker.running() as environment:
        await output_of(environment, "mkdir -p /tmp/s/d && echo 1 > /tmp/s/d/f")
        target = "/var/lib/apex/check.tar.gz"
        await _extension(environment, "snapshot")(["/tmp/s", "/no/such"], target)
        await output_of(environment, f"mkdir -p /tmp/x && tar -C /tmp/x -xzf {target}")
        text = await output_of(environment, "cat /tmp/x/tmp/s/d/f")
        require(text.strip() == "1", "the snapshot lacks a file")


@check
async def no_network(maker: SandboxMaker) -> None:
    """network_mode no-network is enforced, or refused before the start."""
    from harbor.models.task.config import NetworkMode, NetworkPolicy

    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        policy = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
        try:
            maker.make(network_policy=policy)
        except ValueError as refusal:
            raise NotOffered(str(refusal)) from None
        async with maker.running(network_policy=policy) as environment:
            await output_of(environment, "command -v bash")
            for host in ("127.0.0.1", "1.1.1.1"):
                target = port if host == "127.0.0.1" else 53
                tried = await environment.exec(
                    f"bash -c 'exec 3<>/dev/tcp/{host}/{target}'", timeout_sec=20
                )
                require(tried.return_code != 0, f"{host}:{target} can be reached from inside")
    finally:
        server.close()


@check
async def stop_twice(maker: SandboxMaker) -> None:
    """stop may be called again, and before start; exec after it raises."""
    never_started = maker.make()
    await never_started.stop(delete=True)
    environment = maker.make()
    await environment.start(force_build=False)
    await environment.stop(delete=True)
    await environment.stop(delete=True)
    try:
        result = await environment.exec("true")
    except Exception:
        return
    require(result.return_code != 0, "exec after stop reports success")


@check
async def cancelled_start(maker: SandboxMaker) -> None:
    """A start that is cancelled half-way can be stopped, and the next one works."""
    environment = maker.make()
    starting = asyncio.create_task(environment.start(force_build=False))
    await asyncio.sleep(0.02)
    starting.cancel()
    await asyncio.wait([starting])
    await environment.stop(delete=True)
    async with maker.running() as following:
        require((await following.exec("true")).return_code == 0, "the next sandbox is unusable")


def _extension(environment: BaseEnvironment, name: str) -> Callable[..., Awaitable[Any]]:
    method: Callable[..., Awaitable[Any]] | None = getattr(environment, name, None)
    if method is None:
        raise Violation(f"{type(environment).__name__} has no method {name}")
    return method


async def _tunnel_url(environment: BaseEnvironment) -> str:
    return str(await _extension(environment, "get_tunnel_url")(SERVER_PORT))


async def _serve(environment: BaseEnvironment, name: str, produce: str) -> str:
    """Serve one file inside; returns the tunnel's URL once it answers."""
    await output_of(environment, f"mkdir -p /tmp/site && ({produce}) > /tmp/site/{name}")
    await output_of(environment, f"sh -c '{_quoted(_SERVE)}' >/tmp/server.log 2>&1 </dev/null &")
    url = await _tunnel_url(environment)
    for _ in range(100):
        try:
            await _get(f"{url}/{name}")
            return url
        except OSError:
            await asyncio.sleep(0.2)
    log = await output_of(environment, "cat /tmp/server.log")
    raise Violation(f"no answer from {url}; the server inside said: {log}")


def _quoted(command: str) -> str:
    return command.replace("'", "'\\''")


async def _get(url: str) -> bytes:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            answer = await client.get(url)
            answer.raise_for_status()
            return answer.content
    except httpx.HTTPError as error:
        raise ConnectionError(f"{url}: {error}") from error
