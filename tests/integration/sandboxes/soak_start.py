"""The start of one cycle of a soak, which may be called off."""

from __future__ import annotations

import asyncio
from typing import Any


async def started(environment: Any, cancel_after: float | None) -> bool:
    """Start a sandbox, or cancel its start after so many seconds; whether it runs now.

    A cancelled start may have been too far to be called off. One that fails otherwise fails the
    test.
    """
    starting = asyncio.create_task(environment.start(force_build=False))
    if cancel_after is not None:
        await asyncio.sleep(cancel_after)
        starting.cancel()
    await asyncio.wait([starting])
    if starting.cancelled() or starting.exception() is not None:
        assert cancel_after is not None, starting.exception()
        return False
    return True
