"""Commands in sandboxes that only have a plain exec."""

from __future__ import annotations

import asyncio
import time

import pytest

from skyrl_apex_sandbox_kit.remote import exec_and_kill


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_command_that_starts_late_is_killed_all_the_same(how: str) -> None:
    """The first look for its processes may come before there are any."""
    started, killed = asyncio.Event(), asyncio.Event()

    async def run(variables: dict[str, str]) -> None:
        await asyncio.sleep(0.2)
        started.set()
        await killed.wait()

    async def kill(command: str) -> None:
        if started.is_set():
            killed.set()

    begin = time.monotonic()
    if how == "timeout":
        with pytest.raises(RuntimeError, match="timed out"):
            await exec_and_kill(run, kill, 0.05)
    else:
        going = asyncio.create_task(exec_and_kill(run, kill, None))
        await asyncio.sleep(0.05)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    assert killed.is_set() and time.monotonic() - begin < 5
