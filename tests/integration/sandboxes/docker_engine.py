"""A Docker engine for the tests: the machine's own, or one unpacked from Debian's packages.

Nothing is installed: the packages are unpacked into a cache folder, and the engine's data lies in
a temporary one. Its image is made of Debian's static busybox and bash, without a registry.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IMAGE = "apex-test:1"
_ENGINE_PACKAGES = ("docker.io", "containerd", "runc")
_IMAGE_PACKAGES = ("busybox-static", "bash-static")
# Debian 12 has no compose v2; the next release's package runs there.
_COMPOSE_SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    "http://deb.debian.org/debian trixie main\n"
)


class NoEngine(Exception):
    """No Docker engine can run here; says why."""


@dataclass(frozen=True)
class Engine:
    """A running engine; ``variables`` make the ``docker`` command use it."""

    variables: dict[str, str]

    def run(self, *arguments: str, stdin: bytes | None = None) -> str:
        result = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **self.variables},
            input=stdin,
            capture_output=True,
            check=True,
        )
        return result.stdout.decode()


def _run(*command: str, cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=300)
    except subprocess.CalledProcessError as error:
        raise NoEngine(f"{' '.join(command[:4])} … failed: {error.stderr.strip()}") from error


def _unpacked(cache: Path) -> Path:
    """Folder with the programs of the packages; filled on the first call."""
    root = cache / "root"
    if (cache / "complete").exists():
        return root
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoEngine("no docker command with compose here, and only root on Debian can unpack it")
    shutil.rmtree(cache, ignore_errors=True)
    packages = cache / "packages"
    packages.mkdir(parents=True)
    _run("apt-get", "download", *_ENGINE_PACKAGES, *_IMAGE_PACKAGES, cwd=packages)
    (cache / "lists/partial").mkdir(parents=True)
    (cache / "archives/partial").mkdir(parents=True)
    (cache / "sources.list").write_text(_COMPOSE_SOURCE)
    options = (
        f"-oDir::Etc::sourcelist={cache / 'sources.list'}",
        "-oDir::Etc::sourceparts=/nonexistent",
        f"-oDir::State::lists={cache / 'lists'}",
        f"-oDir::Cache={cache}",
    )
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "download", "docker-compose", cwd=packages)
    for package in packages.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(root))
    (cache / "complete").touch()
    return root


@contextmanager
def docker_engine(cache: Path, data: Path) -> Iterator[Engine]:
    """Start an engine with its data under ``data``, and stop it.

    :raises NoEngine: when none can run here.
    """
    root = _unpacked(cache)
    plugins = data / "config/cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(root / "usr/libexec/docker/cli-plugins/docker-compose")
    variables = {
        "PATH": f"{root / 'usr/sbin'}:{root / 'usr/bin'}:{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{data / 'docker.sock'}",
        "DOCKER_CONFIG": str(data / "config"),
    }
    log = (data / "dockerd.log").open("wb")
    daemon = subprocess.Popen(
        [
            str(root / "usr/sbin/dockerd"),
            *("--data-root", str(data / "data"), "--exec-root", str(data / "exec")),
            *("--pidfile", str(data / "docker.pid"), "-H", variables["DOCKER_HOST"]),
            # Ports are published by its own proxy program: the host's firewall stays as it is.
            *("--iptables=false", "--ip6tables=false"),
        ],
        env={**os.environ, **variables},
        stdout=log,
        stderr=log,
    )
    try:
        engine = Engine(variables)
        _wait_until_up(engine, daemon, data / "dockerd.log")
        engine.run("import", "-", IMAGE, stdin=_image(root))
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(30)
        log.close()


def _wait_until_up(engine: Engine, daemon: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(150):
        if daemon.poll() is not None:
            break
        try:
            engine.run("info")
            return
        except subprocess.CalledProcessError:
            time.sleep(0.2)
    daemon.kill()
    raise NoEngine(f"dockerd does not come up here: {log.read_text()[-500:]}")


def _image(root: Path) -> bytes:
    """A root file system with a shell and common programs, as a tar archive."""
    applets = subprocess.run(
        [root / "bin/busybox", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for directory, mode in (("tmp", 0o1777), ("root", 0o700), ("etc", 0o755), ("var", 0o755)):
            member = tarfile.TarInfo(directory)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        archive.add(root / "bin/busybox", "bin/busybox")
        archive.add(root / "bin/bash-static", "bin/bash")
        for applet in applets:
            if applet not in ("busybox", "bash"):
                member = tarfile.TarInfo(f"bin/{applet}")
                member.type, member.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(member)
        users = b"root:x:0:0:root:/root:/bin/sh\n"
        member = tarfile.TarInfo("etc/passwd")
        member.size = len(users)
        archive.addfile(member, io.BytesIO(users))
    return stream.getvalue()
