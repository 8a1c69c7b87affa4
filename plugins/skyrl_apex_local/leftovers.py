"""Finding and removing the sandboxes of owners that were killed."""

from __future__ import annotations

import asyncio
import os
import signal

from skyrl_apex_sandbox_kit import Leftover, is_alive

from . import cgroups
from .state import SandboxState, leftover_sandboxes


def list_leftovers() -> list[Leftover]:
    """Sandboxes whose owner process is gone, oldest directory names first."""
    return [_leftover(state) for state in leftover_sandboxes()]


def _leftover(state: SandboxState) -> Leftover:
    async def remove() -> None:
        await asyncio.to_thread(_remove, state)

    return Leftover(
        name=state.name,
        description=f"{state.directory} (owner {state.recorded().get('owner')} is gone)",
        remove=remove,
    )


def _remove(state: SandboxState) -> None:
    record = state.recorded()
    init = record.get("init")
    if isinstance(init, str) and is_alive(init):
        os.kill(int(init.partition("-")[0]), signal.SIGKILL)
    groups = record.get("cgroups")
    cgroups.remove(tuple(groups) if isinstance(groups, list) else ())
    state.remove()
