"""Pacing of sandbox creation."""

from __future__ import annotations

import asyncio

import pytest

from skyrl_apex_sandbox_kit import CreationLimiter, limiter_for


class Busy(Exception):
    """The backend's "too many"."""


def is_busy(error: Exception) -> bool:
    return isinstance(error, Busy)


class Backend:
    """Counts creations; refuses the first ``refusals``."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.running = self.most = self.made = 0
        self.starts: list[float] = []

    async def create(self) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        if self.refusals:
            self.refusals -= 1
            raise Busy
        self.made += 1


async def test_no_more_than_the_limit_at_once() -> None:
    backend = Backend()
    limiter = CreationLimiter(3)
    await asyncio.gather(*(limiter.create(backend.create, is_busy) for _ in range(20)))
    assert (backend.most, backend.made) == (3, 20)


async def test_starts_keep_their_distance() -> None:
    backend = Backend()
    limiter = CreationLimiter(10, per_second=50)
    await asyncio.gather(*(limiter.create(backend.create, is_busy) for _ in range(6)))
    assert backend.starts[-1] - backend.starts[0] >= 0.095


async def test_too_many_pauses_everybody_and_is_tried_again() -> None:
    backend = Backend(refusals=2)
    limiter = CreationLimiter(1, first_pause_sec=0.2)
    await asyncio.gather(*(limiter.create(backend.create, is_busy) for _ in range(3)))
    assert backend.made == 3
    gaps = [
        later - earlier for earlier, later in zip(backend.starts, backend.starts[1:], strict=False)
    ]
    assert len(gaps) == 4 and all(gap >= 0.1 for gap in gaps[:2])
    assert min(gaps[2:]) < 0.1, "nobody waits any longer than the backend was busy"


async def test_attempts_end_with_the_backends_own_error() -> None:
    backend = Backend(refusals=99)
    limiter = CreationLimiter(1, attempts=3, first_pause_sec=0.01)
    with pytest.raises(Busy):
        await limiter.create(backend.create, is_busy)
    assert len(backend.starts) == 3


async def test_another_error_is_not_tried_again() -> None:
    backend = Backend(refusals=1)
    with pytest.raises(Busy):
        await CreationLimiter(1).create(backend.create, lambda error: False)
    assert len(backend.starts) == 1


async def test_a_cancelled_wait_gives_its_turn_back() -> None:
    backend = Backend()
    limiter = CreationLimiter(1)
    tasks = [asyncio.create_task(limiter.create(backend.create, is_busy)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert backend.made == 3


async def test_sandboxes_of_one_backend_share_a_limiter() -> None:
    assert limiter_for("a", 2) is limiter_for("a", 2)
    assert limiter_for("a", 2) is not limiter_for("b", 2)


def test_each_event_loop_has_its_own() -> None:
    async def both() -> CreationLimiter:
        backend = Backend()
        limiter = limiter_for("loops", 1)
        await asyncio.gather(*(limiter.create(backend.create, is_busy) for _ in range(3)))
        return limiter

    assert asyncio.run(both()) is not asyncio.run(both())


@pytest.mark.parametrize("limits", [{"concurrent": 0}, {"concurrent": 1, "per_second": 0.0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        CreationLimiter(**limits)  # type: ignore[arg-type]
