"""Trials packed into long-lived worker processes over a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

import ray

from skyrl_apex_hookspecs import EndedTrial, Outcome

from .attempt import Attempt, run_attempt
from .runner import start_limiter

logger = logging.getLogger(__name__)


class TrialWorker:
    """One process with an event loop that runs many attempts at once. A Ray actor."""

    async def run(self, attempt: Attempt) -> EndedTrial:
        return await run_attempt(attempt)

    async def node_id(self) -> str:
        """The node this worker was placed on."""
        return str(ray.get_runtime_context().get_node_id())


class RayRunner:
    """Spreads attempts over worker processes, ``trials_per_worker`` in each.

    Workers start when they are first needed and are placed by Ray: ``worker_cpus``, and
    ``worker_resources`` such as a custom resource of the inference nodes. One rate limit holds for
    all of them. Results come back by object reference, so no coordinator copies them twice. The
    attempts of a worker that died end as ``setup_error`` and are retried like any such trial, on
    a fresh worker; the sandboxes of a dead worker are cleaned up by their own backend.
    """

    def __init__(
        self,
        *,
        max_concurrent: int,
        starts_per_second: float | None = None,
        trials_per_worker: int = 32,
        worker_cpus: float = 1.0,
        worker_resources: Mapping[str, float] | None = None,
    ) -> None:
        self._limit = start_limiter(max_concurrent, starts_per_second)
        self._trials_per_worker = trials_per_worker
        self._actor_class = ray.remote(TrialWorker).options(
            num_cpus=worker_cpus,
            resources=dict(worker_resources or {}),
            max_concurrency=trials_per_worker,
            scheduling_strategy="SPREAD",
        )
        self._workers: list[Any | None] = [None] * math.ceil(max_concurrent / trials_per_worker)
        self._load = [0] * len(self._workers)

    async def run(self, attempt: Attempt) -> EndedTrial:
        async with self._limit:
            index = self._least_loaded()
            self._load[index] += 1
            try:
                return await self._run_on(index, attempt)
            finally:
                self._load[index] -= 1

    async def aclose(self) -> None:
        """End every worker process. Attempts that still run there were cancelled before."""
        for worker in self._workers:
            if worker is not None:
                ray.kill(worker)
        self._workers = [None] * len(self._workers)

    def _least_loaded(self) -> int:
        return min(range(len(self._workers)), key=self._load.__getitem__)

    async def _run_on(self, index: int, attempt: Attempt) -> EndedTrial:
        worker: Any = self._workers[index]
        if worker is None:
            worker = self._workers[index] = self._actor_class.remote()
        reference = worker.run.remote(attempt)
        try:
            ended: EndedTrial = await asyncio.wrap_future(reference.future())
            return ended
        except asyncio.CancelledError:
            await self._cancel(reference)
            raise
        # Ray's memory monitor kills with an error of its own.
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            logger.warning("worker of trial %s died: %s", attempt.config.trial_name, error)
            if self._workers[index] is worker:
                self._workers[index] = None
            return EndedTrial(
                task=attempt.task,
                outcome=Outcome.SETUP_ERROR,
                attempt=attempt.number,
                error_type=type(error).__name__,
                error_message=f"the worker process of this trial died: {error}",
            )

    async def _cancel(self, reference: Any) -> None:
        """Cancel the attempt in its worker and wait until it has cleaned up."""
        ray.cancel(reference)
        await asyncio.to_thread(ray.wait, [reference], timeout=60.0)
