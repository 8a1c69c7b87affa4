"""The scheduler on an event loop: one step at a time in a thread, all else between steps.

Pausing, aborting, new weights and new requests touch the scheduler only while no step runs
(``_between_steps``), which is what makes a weight swap atomic: a token is sampled with the old
weights or with the new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

import torch

from .request import Request
from .scheduler import Scheduler
from .transfer import TransferGroup, WeightMetadata

logger = logging.getLogger(__name__)

SLEEP_TAGS = frozenset({"weights", "kv_cache"})


class PauseMode(StrEnum):
    """What happens to requests in flight when generation is paused; the names are vllm's."""

    KEEP = "keep"
    """They freeze, and continue where they were after a resume."""
    ABORT = "abort"
    """They end at once with the tokens they have (``finish_reason="abort"``)."""
    WAIT = "wait"
    """They are finished first."""


class EngineFailed(RuntimeError):
    """A step raised; the engine serves no more requests."""


class WeightUpdateError(ValueError):
    """The weight transfer was called out of order, or its weights do not fit the model."""


class AsyncEngine:
    """Requests in, finished requests out. All methods run on one event loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.failure: Exception | None = None
        self.paused: PauseMode | None = None
        self.asleep: frozenset[str] = frozenset()
        self._between_steps = asyncio.Condition()
        self._wake = asyncio.Event()
        self._incoming: list[Request] = []
        self._answers: dict[Request, asyncio.Future[None]] = {}
        self._step_thread = ThreadPoolExecutor(1, thread_name_prefix="step")
        self._group: TransferGroup | None = None
        self._staged: dict[str, torch.Tensor] | None = None

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet answered, those held back by a pause included."""
        return len(self._answers)

    async def run(self) -> None:
        """Step while there is work. Returns only by raising what a step raised."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            async with self._between_steps:
                if not self._may_step():
                    self._wake.clear()
                    continue
                try:
                    ended = await loop.run_in_executor(self._step_thread, self.scheduler.step)
                except Exception as error:
                    self._fail(error)
                    raise
                self._answer(ended)
                self._between_steps.notify_all()

    async def generate(self, requests: Sequence[Request]) -> None:
        """Run requests to their end, however long a pause lasts. Cancelling aborts them.

        Raises :class:`EngineFailed` when the engine has died.
        """
        if self.failure is not None:
            raise EngineFailed(f"the engine has stopped: {self.failure!r}")
        loop = asyncio.get_running_loop()
        for request in requests:
            self._answers[request] = loop.create_future()
        answers = [self._answers[request] for request in requests]
        self._incoming.extend(requests)
        self._wake.set()
        try:
            await asyncio.gather(*answers)
        except asyncio.CancelledError:
            await self._withdraw(requests)
            raise

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop sampling. Requests that arrive later wait for :meth:`resume`, in every mode."""
        async with self._between_steps:
            self._take_in()
            self.paused = mode
            if mode is PauseMode.ABORT:
                self._answer(self.scheduler.abort_all())
            if mode is PauseMode.WAIT:
                self._wake.set()
                await self._between_steps.wait_for(
                    lambda: self.paused is not mode or not self.scheduler.busy
                )
            if clear_cache:
                self.scheduler.reset_prefix_cache(running=True)

    async def resume(self) -> None:
        async with self._between_steps:
            self.paused = None
            self._between_steps.notify_all()
        self._wake.set()

    async def sleep(self, tags: Sequence[str]) -> None:
        """Stop sampling and forget cached keys until every tag is woken. Weights are kept."""
        async with self._between_steps:
            self.asleep |= frozenset(tags) or SLEEP_TAGS
            self.scheduler.reset_prefix_cache(running=True)

    async def wake_up(self, tags: Sequence[str]) -> None:
        self.asleep -= frozenset(tags) or SLEEP_TAGS
        self._wake.set()

    async def reset_prefix_cache(self, *, running: bool) -> None:
        async with self._between_steps:
            self.scheduler.reset_prefix_cache(running=running)

    async def finish_session(self, session_id: str) -> None:
        async with self._between_steps:
            self.scheduler.finish_session(session_id)

    async def join_transfer_group(
        self, *, address: str, port: int, rank: int, world_size: int
    ) -> None:
        """Returns when all members have joined; replaces an earlier group."""
        self._group = await asyncio.to_thread(
            lambda: TransferGroup(address=address, port=port, rank=rank, world_size=world_size)
        )
        self._staged = None

    def start_weight_update(self) -> None:
        """Begin to collect weights; what an unfinished update had collected is dropped."""
        self._staged = {}

    async def receive_weights(self, metadata: WeightMetadata) -> None:
        """Receive tensors from the trainer beside running steps. May be called several times."""
        group, staged = self._group, self._staged
        if group is None:
            raise WeightUpdateError("the engine has joined no weight transfer group yet")
        if staged is None:
            raise WeightUpdateError("no weight update was started")
        staged |= await asyncio.to_thread(lambda: dict(group.receive(metadata)))

    async def finish_weight_update(self) -> int:
        """Swap the collected weights in between two steps; returns the new weight version."""
        if self._staged is None:
            raise WeightUpdateError("no weight update was started")
        staged, self._staged = self._staged, None
        async with self._between_steps:
            try:
                self.scheduler.update_weights(staged)
            except ValueError as error:
                raise WeightUpdateError(str(error)) from error
        return self.scheduler.weight_version

    def _may_step(self) -> bool:
        if self.asleep or self.paused in (PauseMode.KEEP, PauseMode.ABORT):
            return False
        if self.paused is None:
            self._take_in()
        return self.scheduler.busy

    def _take_in(self) -> None:
        for request in self._incoming:
            self.scheduler.submit(request)
        self._incoming.clear()

    def _answer(self, ended: Sequence[Request]) -> None:
        for request in ended:
            future = self._answers.pop(request, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def _withdraw(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._answers.pop(request, None)
            if request in self._incoming:
                self._incoming.remove(request)
        async with self._between_steps:
            for request in requests:
                self.scheduler.abort(request)

    def _fail(self, error: Exception) -> None:
        """Answer everybody with the failure; nobody waits for an engine that is gone."""
        logger.exception("a step failed; the engine stops")
        self.failure = error
        failed = EngineFailed(f"the engine has stopped: {error!r}")
        for future in self._answers.values():
            if not future.done():
                future.set_exception(failed)
        self._answers.clear()
