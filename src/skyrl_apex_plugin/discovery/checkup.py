"""The checks behind ``skyrl-apex doctor``. Imports none of the packages that it looks at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from .entry_points import DISTRIBUTION
from .inventory import take_inventory
from .versions import KnownPackage, known_packages, packages_beside

Status = Literal["ok", "warn", "fail"]
SECONDS = 10
"""How long a program that is asked for its version may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report. ``remedy`` is a command, or what else to do."""

    area: str
    name: str
    status: Status
    found: str
    remedy: str | None = None


def check_everything() -> list[Check]:
    """Run every check; none raises for what it finds."""
    return [*check_versions(), *check_shim(), *check_plugins(), *check_machine()]


def check_versions() -> Iterator[Check]:
    """Python, and every package of ``versions.toml``, beside the skyrl that is installed."""
    here = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 12) <= sys.version_info[:2] <= (3, 13)
    yield Check(
        area="Versions",
        name="python",
        status="ok" if fits else "fail",
        found=here,
        remedy=None if fits else "use Python 3.12 or 3.13",
    )
    for package in installed_cell():
        yield check_package(package, package.installed)


def installed_cell() -> tuple[KnownPackage, ...]:
    """The rows of the table that hold beside the skyrl that is installed."""
    skyrl = next(package for package in known_packages() if package.name == "skyrl")
    return packages_beside(skyrl.installed)


def check_package(package: KnownPackage, installed: str | None) -> Check:
    """Judge one package at the version that is installed (``None``: not installed)."""
    status: Status = "ok"
    remedy = None
    if installed is None:
        status = "fail" if package.extra is None else "warn"
        wanted = f" (extra {package.extra})" if package.extra else ""
        found, remedy = f"not installed{wanted}", package.install
    elif not package.fits(installed):
        status, remedy = "fail", package.install
        found = f"{installed}, outside {package.works}. {package.why}".rstrip()
    elif package.was_seen(installed) or not package.seen:
        found = installed
    else:
        status = "warn"
        found = f"{installed}, not tested (tested: {', '.join(package.seen)})"
    return Check(area="Versions", name=package.name, status=status, found=found, remedy=remedy)


def check_shim() -> Iterator[Check]:
    """Whether stock command lines know the names of installed packages."""
    module = sys.modules.get("skyrl_apex_shim")
    status: Status = "fail"
    remedy: str | None = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
    if module is not None and module.active():
        status, found, remedy = (
            "ok",
            "active: generator=NAME, --agent NAME and --env NAME work",
            None,
        )
    elif os.environ.get("SKYRL_APEX_AUTOLOAD") == "0":
        status, found = "warn", "switched off by SKYRL_APEX_AUTOLOAD=0"
        remedy = (
            "unset it, or use the spelled-out forms; put generator=NAME last on a line, where "
            "stock SkyRL rejects it (before other generator. keys it is ignored in silence)"
        )
    elif find_spec("skyrl_apex_shim") is None:
        found = "not installed"
    else:
        found = (
            "installed, but inactive: its .pth file did not run. It must lie in a site-packages "
            "folder (PYTHONPATH, --target and -S do not count)"
        )
    yield Check(area="Shim", name="autoload", status=status, found=found, remedy=remedy)


def check_plugins() -> Iterator[Check]:
    """Whether every plugin loads and no name is taken twice."""
    inventory = take_inventory()
    loaded = [plugin.name for plugin in inventory.plugins if plugin.status == "loaded"]
    yield Check(area="Plugins", name="loaded", status="ok", found=", ".join(loaded) or "none")
    for problem in inventory.problems:
        yield Check(area="Plugins", name="problem", status="fail", found=problem)


def check_machine() -> Iterator[Check]:
    """Sandboxes and accelerators."""
    yield check_bubblewrap()
    yield check_docker()
    yield check_gpu()


def check_bubblewrap() -> Check:
    """Needed by the sandbox ``archipelago-local``."""
    status: Status = "warn"
    remedy: str | None = "apt-get install -y bubblewrap"
    if not sys.platform.startswith("linux"):
        found, remedy = f"not on {sys.platform}", "use a container or cloud sandbox"
    elif not shutil.which("bwrap"):
        found = "not installed: the sandbox archipelago-local needs it"
    elif (said := ask("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")).ok:
        status, found, remedy = "ok", ask("bwrap", "--version").text, None
    else:
        status, found = "fail", f"installed, but cannot make a sandbox: {said.text}"
        remedy = "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
    return machine("bubblewrap", status, found, remedy)


def check_docker() -> Check:
    """Needed by the sandbox ``archipelago-docker``."""
    install = "apt-get install -y docker.io docker-compose-v2, then start dockerd"
    if not shutil.which("docker"):
        return machine(
            "docker", "warn", "not installed (only archipelago-docker needs it)", install
        )
    server = ask("docker", "version", "--format", "{{.Server.Version}}")
    if not server.ok:
        return machine("docker", "warn", f"no engine answers: {server.text}", "start dockerd")
    compose = ask("docker", "compose", "version", "--short")
    if not compose.ok:
        return machine("docker", "warn", f"engine {server.text} without compose v2", install)
    return machine("docker", "ok", f"engine {server.text}, compose {compose.text}")


def check_gpu() -> Check:
    """Needed for anything but the laptop mode."""
    if not shutil.which("nvidia-smi"):
        return machine("gpu", "warn", "none: training runs in the laptop mode, on the CPU")
    said = ask("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    if not said.ok:
        return machine("gpu", "fail", f"nvidia-smi fails: {said.text}", "repair the driver")
    vllm = next(package for package in installed_cell() if package.name == "vllm")
    if vllm.installed is None:
        return machine("gpu", "warn", f"{said.text}; no inference engine for it", vllm.install)
    return machine("gpu", "ok", said.text)


def machine(name: str, status: Status, found: str, remedy: str | None = None) -> Check:
    return Check(area="Machine", name=name, status=status, found=found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed, on one line, and whether it succeeded."""

    ok: bool
    text: str


def ask(*command: str) -> Answer:
    """Run a program for what it prints."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(False, f"{type(error).__name__}: {error}")
    lines = (result.stdout if result.returncode == 0 else result.stderr).split("\n")
    return Answer(result.returncode == 0, "; ".join(line.strip() for line in lines if line.strip()))
