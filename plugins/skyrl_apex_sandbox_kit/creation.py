"""Creating sandboxes no faster than their backend takes it."""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

TooMany = Callable[[Exception], bool]
"""Whether an error is the backend's own way to say "too many"; such a creation is tried again."""


@dataclass(slots=True)
class CreationLimiter:
    """Bounds how many creations run at once and how many begin in a second.

    When the backend says "too many", nobody begins another creation until a pause is over; the
    pause doubles each time up to ``longest_pause_sec``.
    """

    concurrent: int
    per_second: float | None = None
    attempts: int = 8
    first_pause_sec: float = 1.0
    longest_pause_sec: float = 60.0
    _slots: asyncio.Semaphore = field(init=False)
    _next_start: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.concurrent < 1 or (self.per_second is not None and self.per_second <= 0):
            raise ValueError(
                f"creation limits must be positive, got concurrent={self.concurrent} and "
                f"per_second={self.per_second}"
            )
        self._slots = asyncio.Semaphore(self.concurrent)

    async def create(self, create: Callable[[], Awaitable[None]], too_many: TooMany) -> None:
        """Await ``create()`` in turn. It must leave nothing behind when it raises.

        :raises Exception: what ``create`` raised, when it was something else than "too many" or
            the attempts are used up.
        """
        pause = self.first_pause_sec
        for attempt in range(1, self.attempts + 1):
            async with self._slots:
                await self._wait_for_turn()
                try:
                    return await create()
                except Exception as error:
                    if attempt == self.attempts or not too_many(error):
                        raise
                    # Jitter, so that the runs of one account do not come back together.
                    wait = pause * random.uniform(0.5, 1.0)
                    logger.warning("too many sandboxes (%s): pausing %.1f s", error, wait)
                    now = asyncio.get_running_loop().time()
                    self._next_start = max(self._next_start, now + wait)
                    pause = min(2 * pause, self.longest_pause_sec)

    async def _wait_for_turn(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait = self._next_start - loop.time()
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        if self.per_second is not None:
            self._next_start = loop.time() + 1 / self.per_second


_limiters: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, int, float | None], CreationLimiter]
] = weakref.WeakKeyDictionary()


def limiter_for(backend: str, concurrent: int, per_second: float | None = None) -> CreationLimiter:
    """The limiter that all sandboxes of a backend with these limits share in this event loop."""
    limiters = _limiters.setdefault(asyncio.get_running_loop(), {})
    key = (backend, concurrent, per_second)
    if key not in limiters:
        limiters[key] = CreationLimiter(concurrent, per_second)
    return limiters[key]
