"""The local sandbox: contract, image directories, users, limits, network."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy
from local_maker import local

from skyrl_apex_local import cgroups
from skyrl_apex_local.environment import LocalEnvironment, find_bwrap
from skyrl_apex_local.state import state_root
from skyrl_apex_plugin.sandboxes.conformance import CHECKS, SandboxMaker, output_of

pytestmark = pytest.mark.usefixtures("bwrap")


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_SANDBOX_DIR", str(tmp_path_factory.mktemp("state")))


def host_takes(controller: str) -> bool:
    """Whether this host lets us set the limit."""
    limits = cgroups.Limits(memory_bytes=2**30, cpus=1, processes=100)
    groups = cgroups.create("probe", limits)
    cgroups.remove(groups.paths)
    return controller not in (groups.refused or {})


@pytest.mark.parametrize("name", CHECKS)
async def test_contract(name: str, tmp_path: Path) -> None:
    await CHECKS[name](local(tmp_path))


def test_missing_bubblewrap_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("APEX_BWRAP", "/nowhere/bwrap")
    with pytest.raises(FileNotFoundError, match="apt-get install -y bubblewrap"):
        find_bwrap()
    with pytest.raises(SystemExit, match="apt-get install -y bubblewrap"):
        LocalEnvironment.preflight()


async def test_the_option_names_another_bubblewrap(bwrap: str, tmp_path: Path) -> None:
    copy = tmp_path / "my-bwrap"
    shutil.copy(bwrap, copy)
    async with local(tmp_path).running(bwrap=str(copy)) as environment:
        assert (await environment.exec("true")).return_code == 0


async def test_what_bubblewrap_says_reaches_the_user_and_nothing_is_left(tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    refusing.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"No permissions to create new namespace.*cap-add"):
        async with local(tmp_path).running(bwrap=str(refusing)):
            pass
    assert list(state_root().iterdir()) == []


@pytest.mark.timeout(120)
def test_an_event_loop_that_closes_during_a_start_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """A closing loop cancels every task there is, those inside a shielded start as well."""

    for milliseconds in range(40):
        environment = local(tmp_path / str(milliseconds)).make()

        async def leave_after(seconds: float, environment: Any = environment) -> Any:
            starting = asyncio.create_task(environment.start(force_build=False))
            await asyncio.wait([starting], timeout=seconds)
            return starting

        starting = asyncio.run(leave_after(milliseconds / 1000))
        if not starting.cancelled():
            assert starting.exception() is None
            asyncio.run(environment.stop(delete=True))
    assert str(state_root()) not in command_lines()
    assert list(state_root().iterdir()) == []


@pytest.mark.timeout(120)
def test_an_event_loop_that_closes_during_a_stop_ends_and_leaves_nothing(tmp_path: Path) -> None:
    async def leave_after(milliseconds: int) -> None:
        environment = local(tmp_path / str(milliseconds)).make()
        await environment.start(force_build=False)
        stopping = asyncio.create_task(environment.stop(delete=True))
        await asyncio.wait([stopping], timeout=milliseconds / 1000)

    for milliseconds in range(12):
        asyncio.run(leave_after(milliseconds))
    assert str(state_root()) not in command_lines()
    assert list(state_root().iterdir()) == []


async def test_a_second_stop_waits_for_the_first(tmp_path: Path) -> None:
    environment = local(tmp_path).make()
    await environment.start(force_build=False)
    first = asyncio.create_task(environment.stop(delete=True))
    await asyncio.sleep(0)
    await environment.stop(delete=True)
    assert list(state_root().iterdir()) == []
    await first


async def test_a_command_that_is_cancelled_again_and_again_leaks_no_descriptor(
    tmp_path: Path,
) -> None:
    """As anyio's scopes do, in which a plugin's hook may run."""

    async def cancelled() -> int:
        with anyio.move_on_after(0.1):
            await environment.exec("sleep 30")
        await asyncio.sleep(0.05)
        return len(os.listdir("/proc/self/fd"))

    async with local(tmp_path).running() as environment:
        before = await cancelled()
        for _ in range(4):
            after = await cancelled()
        assert after == before


def image_directory(tmp_path: Path) -> Path:
    image = tmp_path / "image"
    (image / "app/tools").mkdir(parents=True)
    (image / "app/tools/start.sh").write_text("#!/bin/sh\necho world $1\n")
    (image / "app/tools/start.sh").chmod(0o755)
    (image / "filesystem/docs").mkdir(parents=True)
    (image / "filesystem/docs/a.txt").write_text("from the image\n")
    return image


def task_with_image(maker: SandboxMaker, name: str) -> SandboxMaker:
    return SandboxMaker(
        maker.backend,
        maker.directory,
        files={"archipelago.json": json.dumps({"ecr_image": name}), "environment/Dockerfile": ""},
    )


async def test_the_tasks_image_is_laid_over_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = image_directory(tmp_path)
    monkeypatch.setenv("APEX_IMAGES_DIR", str(tmp_path / "images"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images/registry@world@1").symlink_to(image)
    maker = task_with_image(local(tmp_path), "registry/world:1")
    async with maker.running() as environment:
        assert await output_of(environment, "/app/tools/start.sh t1") == "world t1\n"
        assert await output_of(environment, "cat /filesystem/docs/a.txt") == "from the image\n"
        await output_of(environment, "echo changed > /filesystem/docs/a.txt")
        assert (await environment.exec("touch /app/x")).return_code != 0
    assert (image / "filesystem/docs/a.txt").read_text() == "from the image\n"


async def test_an_image_that_is_not_there_is_named_with_both_ways_out(tmp_path: Path) -> None:
    maker = task_with_image(local(tmp_path), "registry/gone:1")
    with pytest.raises(FileNotFoundError, match=r"registry/gone:1.*images=.*APEX_IMAGES_DIR"):
        async with maker.running():
            pass


def static_busybox() -> str:
    unpacked = Path(__file__).parents[3] / ".cache/docker-engine/root/bin/busybox"
    found = str(unpacked) if unpacked.exists() else shutil.which("busybox")
    linked = subprocess.run(["ldd", found or "-"], capture_output=True, text=True, check=False)
    if found is None or "=>" in linked.stdout:
        pytest.skip("needs a static busybox: apt-get install -y busybox-static")
    return found


async def test_an_image_that_is_a_whole_system_replaces_the_hosts(tmp_path: Path) -> None:
    busybox = static_busybox()
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    (image / "etc").mkdir()
    (image / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nclerk:x:77:77::/tmp:/bin/sh\n")
    shutil.copy(busybox, image / "bin/busybox")
    for applet in ("sh", "ls", "id", "cat", "tar", "mkdir"):
        (image / "bin" / applet).symlink_to("busybox")
    maker = local(tmp_path)
    options: dict[str, Any] = {"image": "whole", "images": {"whole": str(image)}}
    async with maker.running(**options) as environment:
        assert (await environment.exec("ls /usr/bin")).return_code != 0
        assert await output_of(environment, "id -u", user="clerk") == "77\n"
        (tmp_path / "up").mkdir()
        (tmp_path / "up/f").write_text("1")
        await environment.upload_dir(source_dir=tmp_path / "up", target_dir="/tests")
        assert await output_of(environment, "cat /tests/f") == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="several users need a host root")
async def test_users_are_separate_and_none_owns_anything_on_the_host(tmp_path: Path) -> None:
    async with local(tmp_path).running() as environment:
        assert await output_of(environment, "id -u", user="agent") == "1000\n"
        assert await output_of(environment, "id -u; id -g", user="1234:55") == "1234\n55\n"
        await output_of(environment, "echo 1 > /root/private && chmod 600 /root/private")
        assert (await environment.exec("cat /root/private", user="agent")).return_code != 0
        with environment.with_default_user("agent"):
            assert await output_of(environment, "id -un") == "agent\n"
        result = await environment.exec("true", user="nobody-of-that-name")
        assert result.return_code == 126
        assert "nobody-of-that-name" in (result.stderr or "")
        [backing] = state_root().glob("*/fs/root/private")
        assert backing.stat().st_uid > 2**30


UNPRIVILEGED = """
import asyncio, sys
from pathlib import Path
from local_maker import local

async def main():
    async with local(Path(sys.argv[1])).running() as environment:
        print((await environment.exec("id -u; echo 1 > /filesystem/x && echo written")).stdout)
        print((await environment.exec("unshare -Ur true || echo no namespaces")).stdout)
        other = await environment.exec("true", user="agent")
        print(other.return_code, other.stderr)

asyncio.run(main())
"""
# Another user may not enter root's home, where this interpreter may lie: in a mount namespace
# of its own the one folder that is needed is all that is there.
AS_NOBODY = """
set -e
mount --bind "$1" /mnt
case "$1" in "$HOME"/*)
mount -t tmpfs -o mode=755 none "$HOME"
mkdir -p "$1"
mount --bind /mnt "$1"
esac
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as such a user already")
async def test_an_unprivileged_host_user_can_run_sandboxes(tmp_path: Path) -> None:
    base = Path(sys.base_prefix)
    home = Path.home()
    inside_home = base.is_relative_to(home)
    folder = home / base.relative_to(home).parts[0] if inside_home else Path("/usr")
    work = Path(tempfile.mkdtemp())  # pytest's own folder is root's only
    os.chmod(work, 0o777)
    command = [sys.executable, "-c", UNPRIVILEGED, str(work)]
    variables = {"PYTHONPATH": str(Path(__file__).parent), "APEX_SANDBOX_DIR": str(work / "state")}
    done = await asyncio.create_subprocess_exec(
        *("unshare", "-m", "sh", "-c", AS_NOBODY, "sh", str(folder), *command),
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = (each.decode() for each in await done.communicate())
    left = list((work / "state").glob("*"))
    shutil.rmtree(work)
    assert output.startswith("0\nwritten\n"), errors
    assert "no namespaces" in output
    assert "have root only" in output
    assert left == []


async def test_memory_limit_ends_the_hog_and_nothing_else(tmp_path: Path) -> None:
    if not host_takes("memory"):
        pytest.skip("this host takes no memory limits for control groups of ours")
    async with local(tmp_path, memory_mb=128).running() as environment:
        hog = await environment.exec("$APEX_PYTHON -c 'x = bytearray(400 << 20)'", timeout_sec=60)
        assert hog.return_code == 137
        assert (await environment.exec("true")).return_code == 0


async def test_process_limit_stops_a_fork_bomb(tmp_path: Path) -> None:
    if not host_takes("pids"):
        pytest.skip("this host takes no process limits for control groups of ours")
    async with local(tmp_path).running(processes=60) as environment:
        with pytest.raises(RuntimeError, match="timed out"):
            await environment.exec(
                "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 30", timeout_sec=3
            )
        assert int(await output_of(environment, "ls -d /proc/[0-9]* | wc -l")) < 15


async def test_a_sandbox_that_was_full_of_processes_serves_again(tmp_path: Path) -> None:
    if not host_takes("pids"):
        pytest.skip("this host takes no process limits for control groups of ours")
    fill = "i=0; while [ $i -lt 40 ]; do sleep 2 & i=$((i+1)); done; echo full"
    async with local(tmp_path).running(processes=20) as environment:
        await environment.exec(f"({fill}) >/dev/null 2>&1 &")
        with pytest.raises(OSError, match="Resource temporarily unavailable"):
            for _ in range(20):
                await environment.exec("sleep 0.05")
        await asyncio.sleep(3)
        assert (await environment.exec("true")).return_code == 0


async def test_disk_limit_stops_one_large_file_and_ends_many_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyrl_apex_local.disk.INTERVAL_SEC", 3600)
    async with local(tmp_path / "one", storage_mb=8).running() as environment:
        one = await environment.exec("head -c 20M /dev/zero > /filesystem/large")
        assert one.return_code != 0
        assert int(await output_of(environment, "stat -c %s /filesystem/large")) == 8 * 2**20
    monkeypatch.setattr("skyrl_apex_local.disk.INTERVAL_SEC", 0.2)
    async with local(tmp_path / "many", storage_mb=8).running() as environment:
        with pytest.raises(RuntimeError, match="8 MB that the task allows"):
            await environment.exec(
                "for i in 1 2 3 4 5; do head -c 3M /dev/zero > /filesystem/$i; done; sleep 30"
            )


class HostServer:
    """Counts connections to this machine."""

    def __init__(self) -> None:
        self.connections = 0

    async def __aenter__(self) -> HostServer:
        self._server = await asyncio.start_server(self._accept, "0.0.0.0", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()


FETCH = (
    "$APEX_PYTHON -c 'import sys, urllib.request as r; "
    "print(r.urlopen(sys.argv[1], timeout=5).read().decode())' "
)


async def test_no_policy_reaches_the_hosts_own_network(tmp_path: Path) -> None:
    async with HostServer() as server, local(tmp_path).running() as environment:
        for host in ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "0.0.0.0"):
            tried = await environment.exec(
                f"NO_PROXY= no_proxy= {FETCH} http://{host}:{server.port}/"
            )
            assert tried.return_code != 0, f"{host} answered: {tried.stdout}"
        assert server.connections == 0


async def test_allow_list_lets_listed_hosts_through_and_follows_policy_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def to_this_machine(host: str, port: int) -> list[tuple[str, int]]:
        return [("127.0.0.1", port)]

    monkeypatch.setattr("skyrl_apex_local.egress.resolve_public", to_this_machine)
    policy = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["good.example"])
    async with (
        HostServer() as server,
        local(tmp_path).running(network_policy=policy) as environment,
    ):
        good = f"{FETCH} http://good.example:{server.port}/"
        assert await output_of(environment, good) == "ok\n"
        refused = await environment.exec(f"{FETCH} http://bad.example:{server.port}/")
        assert refused.return_code != 0
        assert "403" in (refused.stderr or "")
        await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
        assert (await environment.exec(good)).return_code != 0
        await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.PUBLIC))
        assert await output_of(environment, good) == "ok\n"
        assert server.connections == 2


STREAMING = """
import http.server, threading
asked_for_more = threading.Semaphore(0)
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path == '/more':
            asked_for_more.release()
            return self.send_response(204) or self.end_headers()
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        for i in range(3):
            self.wfile.write(b'1\\r\\n%d\\r\\n' % i); self.wfile.flush()
            asked_for_more.acquire()
        self.wfile.write(b'0\\r\\n\\r\\n')
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H).serve_forever()
"""


async def test_a_tunnel_passes_pieces_on_as_they_come(tmp_path: Path) -> None:
    """The server sends the next piece only after the one before has arrived here."""
    (tmp_path / "server.py").write_text(STREAMING)
    async with local(tmp_path).running() as environment:
        await environment.upload_file(source_path=tmp_path / "server.py", target_path="/tmp/s.py")
        await output_of(environment, "$APEX_PYTHON /tmp/s.py >/dev/null 2>&1 &")
        url = await environment.get_tunnel_url(8000)  # type: ignore[attr-defined]
        pieces = []
        async with httpx.AsyncClient(timeout=10) as client:
            for _ in range(300):
                try:
                    async with client.stream("GET", url) as answer:
                        async for piece in answer.aiter_raw():
                            pieces.append(piece)
                            await client.get(f"{url}/more")
                    break
                except (httpx.ConnectError, httpx.RemoteProtocolError):
                    await asyncio.sleep(0.1)
        assert b"".join(pieces) == b"012"


def command_lines() -> str:
    """Of every process of this machine."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes().replace(b"\0", b" ") + b"\n"
    return found.decode(errors="replace")


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from local_maker import local

async def main():
    environment = local(Path(sys.argv[1])).make()
    await environment.start(force_build=False)
    await environment.exec(f"setsid sleep {sys.argv[2]} >/dev/null 2>&1 &")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_run_leaves_no_process_and_its_files_are_reaped(tmp_path: Path) -> None:
    here = Path(__file__).parent
    # The processes of the whole machine are looked at: a number of this run's own.
    seconds = str(random.randrange(10**6, 10**7))
    async with local(tmp_path).running():
        killed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLED, str(tmp_path / "k"), seconds),
            env={**os.environ, "PYTHONPATH": str(here)},
        )
        assert await killed.wait() == -9
        for _ in range(100):
            if f"sleep {seconds}" not in command_lines():
                break
            await asyncio.sleep(0.1)
        assert f"sleep {seconds}" not in command_lines()
        [killed_one] = [
            each for each in await LocalEnvironment.leftovers() if "owner" in each.description
        ]
        await killed_one.remove()
        assert len(list(state_root().glob("sandbox-*"))) == 1
    assert list(state_root().iterdir()) == []
    assert not list(cgroups.ROOT.glob(f"*/skyrl-apex/{killed_one.name}"))
