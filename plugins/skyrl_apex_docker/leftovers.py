"""Containers whose run was killed. Each carries a label that names its owner process."""

from __future__ import annotations

from collections.abc import Sequence

from skyrl_apex_sandbox_kit import OWNER_LABEL, Leftover, owner_is_gone

from .engine import engine

PROJECT_LABEL = "com.docker.compose.project"


async def list_leftovers(program: Sequence[str]) -> list[Leftover]:
    """Compose projects of ours whose owner process is gone.

    :raises EngineError: when the engine cannot be asked.
    """
    listing = [*program, "ps", "--all", "--filter", f"label={OWNER_LABEL}"]
    fields = f'{{{{.Label "{OWNER_LABEL}"}}}} {{{{.Label "{PROJECT_LABEL}"}}}}'
    rows = (await engine([*listing, "--format", fields])).splitlines()
    projects = {project for owner, project in map(str.split, rows) if owner_is_gone(owner)}
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
