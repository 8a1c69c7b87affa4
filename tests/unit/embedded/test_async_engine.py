"""Pausing, weight swaps and failures around running steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from skyrl_apex_plugin.embedded.async_engine import (
    AsyncEngine,
    EngineFailed,
    PauseMode,
    WeightUpdateError,
)
from skyrl_apex_plugin.embedded.request import Request
from skyrl_apex_plugin.embedded.scheduler import Scheduler

Ask = Callable[..., Request]


@pytest.fixture
async def engine(scheduler: Scheduler) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(scheduler)
    running = asyncio.ensure_future(engine.run())
    yield engine
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def start(engine: AsyncEngine, request: Request) -> asyncio.Task[None]:
    """Returns once the request has sampled something."""
    task = asyncio.create_task(engine.generate([request]))
    await until(lambda: bool(request.output))
    return task


async def test_keep_freezes_and_resume_continues_to_the_same_end(
    engine: AsyncEngine, ask: Ask
) -> None:
    undisturbed = ask(range(10), 100, temperature=1.0, seed=4)
    await engine.generate([undisturbed])
    request = ask(range(10), 100, temperature=1.0, seed=4)
    task = await start(engine, request)
    await engine.pause(PauseMode.KEEP, clear_cache=False)
    frozen = len(request.output)
    late = asyncio.create_task(engine.generate([ask([1], 1)]))
    await asyncio.sleep(0.05)
    assert len(request.output) == frozen < 100
    assert not task.done() and not late.done()
    await engine.resume()
    await asyncio.gather(task, late)
    assert request.output_ids == undisturbed.output_ids


async def test_abort_ends_requests_with_what_they_have(engine: AsyncEngine, ask: Ask) -> None:
    request = ask(range(10), 200)
    task = await start(engine, request)
    await engine.pause(PauseMode.ABORT, clear_cache=False)
    await task
    assert request.finish_reason == "abort"
    assert 0 < len(request.output) < 200
    late = asyncio.create_task(engine.generate([ask([1], 1)]))
    await asyncio.sleep(0.05)
    assert not late.done()
    await engine.resume()
    await late


async def test_wait_finishes_what_runs_and_holds_what_is_new(engine: AsyncEngine, ask: Ask) -> None:
    request = ask(range(10), 200)
    task = await start(engine, request)
    pausing = asyncio.create_task(engine.pause(PauseMode.WAIT, clear_cache=False))
    await until(lambda: engine.paused is PauseMode.WAIT)
    late = asyncio.create_task(engine.generate([ask([1], 1)]))
    await pausing
    assert task.done() and request.finish_reason == "length"
    await asyncio.sleep(0.05)
    assert not late.done()
    await engine.resume()
    await late


async def test_a_sleeping_engine_samples_nothing_until_all_tags_are_awake(
    engine: AsyncEngine, ask: Ask
) -> None:
    await engine.sleep([])
    task = asyncio.create_task(engine.generate([ask([1], 1)]))
    for tags in (["weights"], ["kv_cache"]):
        await asyncio.sleep(0.03)
        assert not task.done()
        await engine.wake_up(tags)
    await task


async def test_a_cancelled_request_stops_using_the_engine(engine: AsyncEngine, ask: Ask) -> None:
    request = ask(range(10), 200)
    task = await start(engine, request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert request.finish_reason == "abort"
    assert engine.in_flight == 0
    await until(lambda: not engine.scheduler.busy)


async def test_a_request_cancelled_while_paused_never_starts(engine: AsyncEngine, ask: Ask) -> None:
    await engine.pause(PauseMode.KEEP, clear_cache=False)
    request = ask(range(10), 5)
    task = asyncio.create_task(engine.generate([request]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.resume()
    await engine.generate([ask([1], 1)])
    assert request.output == []


async def test_a_step_that_fails_is_told_to_everybody(
    scheduler: Scheduler, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = AsyncEngine(scheduler)

    def broken() -> list[Request]:
        raise MemoryError("no room")

    monkeypatch.setattr(scheduler, "step", broken)
    running = asyncio.ensure_future(engine.run())
    with pytest.raises(EngineFailed, match="no room"):
        await engine.generate([ask([1], 1)])
    with pytest.raises(MemoryError):
        await running
    with pytest.raises(EngineFailed, match="no room"):
        await engine.generate([ask([1], 1)])


async def test_a_weight_update_out_of_order_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(WeightUpdateError, match="no weight update was started"):
        await engine.finish_weight_update()
    engine.start_weight_update()
    with pytest.raises(WeightUpdateError, match="missing"):
        await engine.finish_weight_update()
    assert engine.scheduler.weight_version == 0
