"""A judge that fails in every way: no wrong score, no zero from a fault, bounded time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from skyrl_apex_rubric.grader import RubricGrader

RUNS = 200
AT_ONCE = 10
PATIENCE = {"tries": 4, "timeout": 1.0, "deadline": 5.0, "first_wait": 0.01, "longest_wait": 0.05}
SLACK = 1.0
"""Seconds over the deadline that connecting, closing and scheduling may take."""


class Clock:
    """Time in which the event loop could run: a machine that is busy elsewhere stops it."""

    def __init__(self) -> None:
        self.stalled = 0.0

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            self.stalled += time.monotonic() - before - 0.05

    def now(self) -> float:
        return time.monotonic() - self.stalled


def _runs() -> list[Any]:
    sampled = 3
    return [
        pytest.param(range(0, RUNS, RUNS // (AT_ONCE * sampled)), id="sample"),
        pytest.param(range(RUNS), id="all", marks=pytest.mark.full),
    ]


@pytest.mark.parametrize("seeds", _runs())
async def test_seeded_fault_runs(judge: Any, make_trial: Any, faults: Any, seeds: range) -> None:
    """Each run mixes all faults with its own rate; the right score is known beforehand."""
    scored = refused = 0
    clock = Clock()
    watcher = asyncio.create_task(clock.watch())
    trial = make_trial("true", "says 42", "false", "true")
    for start in range(0, len(seeds), AT_ONCE):
        batch = seeds[start : start + AT_ONCE]
        results = await asyncio.gather(*(_run(judge, trial, faults, seed, clock) for seed in batch))
        for seed, (verdict, seconds) in zip(batch, results, strict=True):
            assert seconds < PATIENCE["deadline"] + SLACK, f"seed {seed} took {seconds:.1f} s"
            if verdict.score is None:
                refused += 1
                assert verdict.error and any(c.status == "error" for c in verdict.criteria)
            else:
                scored += 1
                assert verdict.score == 0.75, f"seed {seed}: wrong score {verdict.score}"
    watcher.cancel()
    assert scored > len(seeds) // 4, "too few runs were scored for this to test scores"
    assert refused > len(seeds) // 20, "too few runs were refused for this to test refusals"


async def _run(judge: Any, trial: Any, faults: Any, seed: int, clock: Clock) -> Any:
    rng = random.Random(seed)
    rate = rng.uniform(0.1, 0.7)
    model = f"fake-{seed}"
    judge.faults[model] = lambda: rng.choice(faults) if rng.random() < rate else None
    grader = RubricGrader(
        judges=[{"model": model, "base_url": judge.url}],
        patience=PATIENCE,
        cache_dir=None,
    )
    started = clock.now()
    verdict = await grader.grade(trial)
    return verdict, clock.now() - started


@pytest.mark.parametrize("each", range(24))
async def test_every_single_fault_is_survived_and_never_believed(
    judge: Any, make_trial: Any, faults: Any, each: int
) -> None:
    """One fault, then health: the score is right. Only the fault: there is no score."""
    patience = {**PATIENCE, "tries": 2}
    settings = {
        "judges": [{"model": "fake", "base_url": judge.url}],
        "patience": patience,
        "cache_dir": None,
    }
    script = iter([faults[each]])
    judge.fault = lambda _: next(script, None)
    verdict = await RubricGrader(**settings).grade(make_trial("true"))
    assert verdict.score == 1.0 and verdict.metrics["judge_faults"] == 1
    judge.fault = lambda _: faults[each]
    verdict = await RubricGrader(**settings).grade(make_trial("true"))
    assert verdict.score is None and verdict.error


async def test_a_judge_that_is_not_there(make_trial: Any) -> None:
    grader = RubricGrader(
        judges=[{"model": "fake", "base_url": "http://127.0.0.1:9/v1"}],
        patience=PATIENCE,
        cache_dir=None,
    )
    verdict = await grader.grade(make_trial("true"))
    assert verdict.score is None and "ConnectError" in (verdict.error or "")
