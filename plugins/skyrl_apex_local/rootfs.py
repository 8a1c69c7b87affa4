"""The sandbox's root file system, as arguments of bubblewrap.

From the bottom: the host's system directories (or the image's, when it is a whole system), the
image's other files, private writable directories, the Python installation, ``/dev`` and ``/proc``.
Everything but the private directories is read-only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from .images import Image

PRIVATE_DIRECTORIES = (
    "/filesystem",
    "/.apps_data",
    "/logs",
    "/tests",
    "/solution",
    "/tmp",
    "/var/tmp",
    "/var/lib/apex",
    "/root",
    "/workspace",
    "/dev/shm",
)
"""Writable, empty or filled from the image, and gone with the sandbox."""

_OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm")

_LOG_DIRECTORIES = ("agent", "verifier", "artifacts")
"""Where harbor's agents, whatever user they are, and its verifiers write."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pam.d",
    "pki",
    "profile",
    "protocols",
    "security",
    "services",
    "ssl",
    "timezone",
)
"""What of the host's /etc programs need to run; users, keys and network settings are not in it."""

_OWN_ETC = {
    "passwd": "root:*:0:0:root:/root:/bin/sh\nagent:*:1000:1000:agent:/tmp:/bin/sh\n"
    "nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


class RootPlan:
    """Bubblewrap's mount arguments in the making.

    Mounts are named first; :meth:`show` then lays a directory below them, bound in as few
    pieces as leave room for the mounts (a mount point cannot be made in a read-only bind).
    """

    def __init__(self) -> None:
        self._mounts: dict[str, list[str]] = {}
        self._below: list[str] = []

    def read_only(self, source: Path, target: str) -> None:
        self._mounts[target] = ["--ro-bind", str(source), target]

    def writable(self, source: Path, target: str) -> None:
        self._mounts[target] = ["--bind", str(source), target]

    def show(self, source: Path, target: str) -> None:
        """Make ``source`` visible read-only at ``target``, except where a mount is."""
        if target in self._mounts:
            return
        if source.is_symlink():
            self._below += ["--symlink", os.readlink(source), target]
        elif any(mount.startswith(f"{target}/") for mount in self._mounts):
            self._below += ["--dir", target]
            for child in sorted(source.iterdir()):
                self.show(child, f"{target}/{child.name}")
        else:
            self._below += ["--ro-bind", str(source), target]

    def arguments(self) -> list[str]:
        result = [*self._below, "--proc", "/proc", "--dev", "/dev"]
        for target in sorted(self._mounts):
            # Left to itself, bubblewrap makes missing parents that only the host's root may enter.
            for parent in reversed(PurePosixPath(target).parents[:-1]):
                result += ["--dir", str(parent)]
            result += self._mounts[target]
        return [*result, "--remount-ro", "/"]


def plan_root(
    backing: Path, *, image: Image | None, python_paths: Sequence[Path], writable: Sequence[str]
) -> list[str]:
    """Make the private directories under ``backing`` and return bubblewrap's mount arguments.

    :param backing: an empty directory of this sandbox on the host.
    :param python_paths: what Python programs inside need; bound at the same paths.
    :param writable: further private directories, filled with what the image has there.
    :raises ValueError: when an image that is no whole system would replace parts of the host's.
    """
    plan = RootPlan()
    for path in dict.fromkeys((*PRIVATE_DIRECTORIES, *writable)):
        source = _private_directory(backing, path, image)
        plan.writable(source, path)
    if image is None or not image.whole_system:
        _plan_host_system(plan, backing, python_paths)
    if image is not None:
        _plan_image(plan, backing, image)
    return plan.arguments()


def _private_directory(backing: Path, path: str, image: Image | None) -> Path:
    directory = backing / path.strip("/").replace("/", "@")
    content = image.directory / path.strip("/") if image is not None else None
    if content is not None and content.is_dir():
        shutil.copytree(content, directory, symlinks=True)
    else:
        directory.mkdir()
    directory.chmod(0o1777 if path in _OPEN_TO_ALL else 0o755)
    for name in _LOG_DIRECTORIES if path == "/logs" else ():
        (directory / name).mkdir(exist_ok=True)
        (directory / name).chmod(0o777)
    return directory


def _plan_host_system(plan: RootPlan, backing: Path, python_paths: Sequence[Path]) -> None:
    for path in python_paths:
        if path.parts[1] not in _SYSTEM:
            plan.read_only(path, str(path))
    for name in _ETC:
        source = Path("/etc", name)
        if source.exists():
            plan.read_only(source, f"/etc/{name}")
    for name in _OWN_ETC:
        plan.read_only(_own_etc(backing, name), f"/etc/{name}")
    for name in _SYSTEM:
        if os.path.lexists(f"/{name}"):
            plan.show(Path("/", name), f"/{name}")


def _own_etc(backing: Path, name: str) -> Path:
    path = backing / f"etc-{name}"
    path.write_text(_OWN_ETC[name])
    return path


def _plan_image(plan: RootPlan, backing: Path, image: Image) -> None:
    if image.whole_system:
        for name in ("hosts", "resolv.conf"):
            if (image.directory / "etc" / name).is_file():
                plan.read_only(_own_etc(backing, name), f"/etc/{name}")
    for entry in sorted(image.directory.iterdir()):
        if entry.name in ("proc", "sys", "dev"):
            continue
        if not image.whole_system and entry.name in (*_SYSTEM, "etc"):
            raise ValueError(
                f"image directory {image.directory} has {entry.name}/ but no /bin/sh: an image "
                "is either a whole system or has only directories of its own (/app, /opt, …)"
            )
        plan.show(entry, f"/{entry.name}")


def give_to(backing: Path, uid: int) -> None:
    """Make the sandbox's root the owner of its private directories."""
    for path in backing.iterdir():
        if path.is_dir():
            os.chown(path, uid, uid)
            for parent, directories, files in os.walk(path):
                for name in (*directories, *files):
                    os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)
