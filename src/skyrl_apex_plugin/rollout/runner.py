"""Many trials at once, each retried as the failure policy says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from skyrl_apex_hookspecs import EndedTrial, Failure, Treatment

from .attempt import Attempt, run_attempt
from .outcomes import FailurePolicy

logger = logging.getLogger(__name__)


class AttemptRunner(Protocol):
    """Where single attempts run."""

    async def run(self, attempt: Attempt) -> EndedTrial:
        """Run one attempt to its end. Cancelling it leaves no sandbox behind."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial with all its attempts: the last one decides."""

    ended: EndedTrial
    failure: Failure
    attempt: Attempt
    retried: tuple[Failure, ...] = field(default=())
    """Why earlier attempts were not the last."""


class LocalRunner:
    """Runs attempts on the calling event loop, a limited number at a time.

    :param max_concurrent: trials at once.
    :param starts_per_second: limit on how fast they start; ``None`` for no limit.
    """

    def __init__(self, *, max_concurrent: int, starts_per_second: float | None = None) -> None:
        self._limit = start_limiter(max_concurrent, starts_per_second)

    async def run(self, attempt: Attempt) -> EndedTrial:
        async with self._limit:
            return await run_attempt(attempt)

    async def aclose(self) -> None:
        """Nothing outlives an attempt here."""


async def run_with_retries(
    runner: AttemptRunner, policy: FailurePolicy, prepare: Callable[[int], Attempt]
) -> Finished:
    """Run a trial until its treatment is no longer ``retry``.

    :param prepare: builds the attempt of a given number; each has a directory, and so a sandbox
        and a session, of its own.
    """
    retried: list[Failure] = []
    while True:
        attempt = prepare(len(retried))
        ended = await runner.run(attempt)
        failure = policy.classify(ended)
        if failure.treatment is not Treatment.RETRY:
            return Finished(ended=ended, failure=failure, attempt=attempt, retried=tuple(retried))
        logger.warning(
            "trial %s ended as %s and is run again: %s",
            attempt.config.trial_name,
            failure.outcome,
            failure.reason,
        )
        retried.append(failure)


def start_limiter(max_concurrent: int, starts_per_second: float | None) -> Any:
    """SkyRL's rate limiter, an async context manager around each attempt.

    Raises ``ValueError`` for a limit below 1.
    """
    from skyrl.train.utils.rate_limiter import RateLimiterConfig, create_rate_limiter

    return create_rate_limiter(
        RateLimiterConfig(
            enabled=True,
            trajectories_per_second=starts_per_second,
            max_concurrency=max_concurrent,
        )
    )
