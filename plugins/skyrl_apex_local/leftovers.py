"""Finding and removing the sandboxes of owners that were killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from skyrl_apex_sandbox_kit import Leftover, is_alive

from . import cgroups
from .state import SandboxState, leftover_sandboxes


def list_leftovers() -> list[Leftover]:
    """Sandboxes whose owner process is gone, and control groups without a sandbox."""
    leftovers = [_leftover(state) for state in leftover_sandboxes()]
    recorded = {path for state in leftover_sandboxes() for path in _groups(state)}
    orphans = [path for path in cgroups.without_sandbox() if str(path) not in recorded]
    return leftovers + [_group_leftover(path) for path in orphans]


def _group_leftover(path: Path) -> Leftover:
    async def remove() -> None:
        await asyncio.to_thread(cgroups.remove, (str(path),))

    return Leftover(name=path.name, description=f"{path} (no process in it)", remove=remove)


def _groups(state: SandboxState) -> tuple[str, ...]:
    groups = state.recorded().get("cgroups")
    return tuple(groups) if isinstance(groups, list) else ()


def _leftover(state: SandboxState) -> Leftover:
    async def remove() -> None:
        await asyncio.to_thread(_remove, state)

    return Leftover(
        name=state.name,
        description=f"{state.directory} (owner {state.recorded().get('owner')} is gone)",
        remove=remove,
    )


def _remove(state: SandboxState) -> None:
    init = state.recorded().get("init")
    if isinstance(init, str) and is_alive(init):
        os.kill(int(init.partition("-")[0]), signal.SIGKILL)
    cgroups.remove(_groups(state))
    state.remove()
