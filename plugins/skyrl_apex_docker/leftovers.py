"""Containers whose run was killed. Each carries a label that names its owner process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from skyrl_apex_sandbox_kit import Leftover

from .engine import engine

OWNER_LABEL = "skyrl-apex.owner"
PROJECT_LABEL = "com.docker.compose.project"


def owner_label() -> str:
    """This process: host name, PID and the start time that tells it from a reused PID."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_time(os.getpid())}"


def _start_time(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _owner_is_gone(label: str) -> bool:
    """Only for processes of this host: those of another one cannot be seen from here."""
    host, _, process = label.partition("/")
    pid, _, started = process.partition("/")
    return host == socket.gethostname() and pid.isdecimal() and _start_time(int(pid)) != started


async def list_leftovers(program: Sequence[str]) -> list[Leftover]:
    """Compose projects of ours whose owner process is gone.

    :raises EngineError: when the engine cannot be asked.
    """
    listing = [*program, "ps", "--all", "--filter", f"label={OWNER_LABEL}"]
    fields = f'{{{{.Label "{OWNER_LABEL}"}}}} {{{{.Label "{PROJECT_LABEL}"}}}}'
    rows = (await engine([*listing, "--format", fields])).splitlines()
    projects = {project for owner, project in map(str.split, rows) if _owner_is_gone(owner)}
    return [_leftover(program, project) for project in sorted(projects)]


def _leftover(program: Sequence[str], project: str) -> Leftover:
    async def remove() -> None:
        of_project = ["--quiet", "--filter", f"label={PROJECT_LABEL}={project}"]
        for kind, list_command, remove_command in (
            ("container", ["ls", "--all"], ["rm", "--force", "--volumes"]),
            ("network", ["ls"], ["rm"]),
            ("volume", ["ls"], ["rm", "--force"]),
        ):
            found = (await engine([*program, kind, *list_command, *of_project])).split()
            if found:
                await engine([*program, kind, *remove_command, *found])

    return Leftover(name=project, description=f"compose project {project}", remove=remove)
