"""Attempts to get out of the local sandbox."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment
from local_maker import local

from skyrl_apex_plugin.sandboxes.conformance import output_of

pytestmark = pytest.mark.usefixtures("bwrap")


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_SANDBOX_DIR", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[BaseEnvironment]:
    async with local(tmp_path).running() as environment:
        yield environment


async def test_the_hosts_homes_and_secrets_are_not_there(
    sandbox: BaseEnvironment, tmp_path: Path
) -> None:
    secret = Path.home() / f".apex-secret-{uuid.uuid4().hex}"
    secret.write_text("top secret")
    try:
        for path in (secret, tmp_path, "/etc/shadow", "/etc/ssh", "/var/log", "/home", "/mnt"):
            assert (await sandbox.exec(f"ls -d {path}")).return_code != 0, f"{path} is visible"
    finally:
        secret.unlink()


async def test_the_host_processs_environment_does_not_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "do-not-leak")
    async with local(tmp_path).running() as environment:
        everything = await output_of(
            environment, "env; cat /proc/[0-9]*/environ 2>/dev/null || true"
        )
        assert "do-not-leak" not in everything


async def test_secrets_of_an_exec_are_on_no_command_line(sandbox: BaseEnvironment) -> None:
    seen = await output_of(
        sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", env={"KEY": "hunter2-abc"}
    )
    assert "hunter2-abc" not in seen


async def test_no_process_of_the_host_is_visible(sandbox: BaseEnvironment) -> None:
    pids = [int(pid) for pid in (await output_of(sandbox, "cd /proc && ls -d [0-9]*")).split()]
    assert len(pids) < 12
    assert str(os.getpid()) not in await output_of(sandbox, "cat /proc/1/cmdline | tr '\\0' ' '")


@pytest.mark.parametrize(
    "attempt",
    [
        "mknod /tmp/disk b 254 0 && dd if=/tmp/disk count=1",
        "cat /dev/vda /dev/sda /dev/kmsg /dev/mem",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /usr",
        "unshare -m true",
        "unshare -Ur true",
        "echo 1 > /proc/sys/kernel/panic",
        "echo core > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "ls -d /proc/1/root/",
        "cat /proc/1/environ /proc/3/environ /proc/3/maps",
        "kill -9 1 || kill -9 3",
        "chroot /proc/1/root true",
        "touch /usr/x /etc/x /x",
        "chown 12345678 /tmp",
        "ip link add dummy0 type dummy",
        "ls /sys/fs/cgroup",
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="roots with a host root behind them are the risk")
async def test_root_inside_cannot(attempt: str, sandbox: BaseEnvironment) -> None:
    tried = await sandbox.exec(f"({attempt}) 2>/dev/null", user="root", timeout_sec=20)
    assert tried.return_code != 0, tried.stdout
    assert (await sandbox.exec("true")).return_code == 0, "the sandbox did not survive it"


async def test_killing_everything_inside_leaves_the_sandbox_usable(
    sandbox: BaseEnvironment,
) -> None:
    await sandbox.exec("kill -9 -1")
    assert await output_of(sandbox, "echo alive") == "alive\n"


async def test_links_do_not_lead_the_host_out(sandbox: BaseEnvironment, tmp_path: Path) -> None:
    """What is downloaded through a link is the sandbox's own file, or nothing."""
    outside = tmp_path / "outside"
    outside.write_text("host")
    await output_of(sandbox, f"ln -s {outside} /logs/agent/link; ln -s /etc/passwd /logs/agent/p")
    with pytest.raises(OSError, match="No such file"):
        await sandbox.download_file("/logs/agent/link", tmp_path / "got")
    await sandbox.download_file("/logs/agent/p", tmp_path / "passwd")
    assert (tmp_path / "passwd").read_text().startswith("root:*:0:0:root:/root:/bin/sh\nagent:")
    await sandbox.download_dir("/logs/agent", tmp_path / "dir")
    assert not (tmp_path / "dir/link").exists()
    (tmp_path / "up").write_text("overwritten")
    await output_of(sandbox, f"ln -s {tmp_path} /tmp/out")
    with pytest.raises(OSError):
        await sandbox.upload_file(tmp_path / "up", "/tmp/out/outside")
    assert outside.read_text() == "host"


async def test_one_sandbox_sees_nothing_of_another(tmp_path: Path) -> None:
    async with local(tmp_path).running() as one, local(tmp_path).running() as two:
        await output_of(one, "echo s > /filesystem/s; (sleep 31337 &) >/dev/null 2>&1")
        assert (await two.exec("ls /filesystem/s")).return_code != 0
        assert "31337" not in await output_of(two, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert (await two.exec("ls /tmp/skyrl-apex-* $APEX_SANDBOX_DIR/*")).return_code != 0


async def test_code_planted_inside_is_not_run_by_the_supervisor(sandbox: BaseEnvironment) -> None:
    """Root inside owns its home, where an interpreter of the host may look for modules."""
    await output_of(
        sandbox,
        "for m in json pwd tarfile encodings zipfile gzip zlib lzma bz2; do "
        'echo \'open("/tmp/planted", "w")\' > /root/$m.py; '
        'echo \'open("/tmp/planted", "w")\' > /tmp/$m.py; done',
    )
    for _ in range(2):
        await sandbox.exec("true", cwd="/root")
        await sandbox.exec("false", user="unknown-user")
        await sandbox.snapshot(["/tests"], "/tmp/s.tgz")  # type: ignore[attr-defined]
    assert (await sandbox.exec("test -e /tmp/planted")).return_code != 0
