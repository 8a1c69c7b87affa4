"""One judge: a model that is asked until it gives a valid judgement, within bounds."""

from __future__ import annotations

import asyncio
import math
import random
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from .cache import JudgementCache
from .endpoint import Endpoint, PermanentFault, Reply, TransientFault
from .prompt import BadReply, Judgement, read_reply

Messages = list[dict[str, str]]

_limits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = (
    weakref.WeakKeyDictionary()
)


class JudgeFailed(Exception):
    """No judgement could be had. The message says why; there is no score then."""


@dataclass(slots=True)
class Usage:
    """What grading one trial took. Times in seconds, cost in US dollars."""

    calls: int = 0
    faults: int = 0
    cache_hits: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def metrics(self) -> dict[str, float]:
        return {
            "judge_calls": float(self.calls),
            "judge_faults": float(self.faults),
            "judge_cache_hits": float(self.cache_hits),
            "judge_seconds": self.seconds,
            "judge_prompt_tokens": float(self.prompt_tokens),
            "judge_completion_tokens": float(self.completion_tokens),
            "judge_cost_usd": self.cost_usd,
        }


def whole_number(name: str, value: object) -> int:
    """``value``, when it is a whole number of at least 1; else raises ``ValueError``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"grader rubric: {name}={value!r}: expected a whole number of at least 1")
    return value


def real_number(name: str, value: Any) -> float:
    """``value``, when it is finite and not below 0; else raises ``ValueError``."""
    # Bounds that ``nan`` does not hold either.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise ValueError(f"grader rubric: {name}={value!r}: expected a number of at least 0")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a judge is asked. Times in seconds. Raises ``ValueError`` for what is no bound."""

    tries: int = 10
    timeout: float = 120.0
    """For one call, from sending to the last byte."""
    deadline: float = 600.0
    """For one criterion, from its first call. Waiting for a free slot does not count: it says how
    many criteria there are, not that the judge is in trouble, and it ends since each that holds a
    slot has a deadline itself."""
    first_wait: float = 1.0
    longest_wait: float = 30.0

    def __post_init__(self) -> None:
        whole_number("patience.tries", self.tries)
        for name in ("timeout", "deadline"):
            if real_number(f"patience.{name}", getattr(self, name)) == 0:
                raise ValueError(f"grader rubric: patience.{name}=0: expected more than 0 seconds")
        for name in ("first_wait", "longest_wait"):
            real_number(f"patience.{name}", getattr(self, name))


@dataclass(slots=True, kw_only=True)
class Judge:
    """One seat of the panel.

    :param concurrency: criteria asked at once of this endpoint, over all trials of the process."""

    endpoint: Endpoint
    patience: Patience
    usage: Usage
    concurrency: int = 10
    temperature: float = 0.0
    price: tuple[float, float] = (0.0, 0.0)
    """US dollars for a million prompt and completion tokens."""
    cache: JudgementCache | None = None
    seat: int = 0
    """Tells apart judges of a panel that are the same model."""
    _random: random.Random = field(default_factory=random.Random)

    async def judge(self, messages: Messages) -> Judgement:
        """A valid judgement. Raises ``JudgeFailed`` naming the last fault; never guesses."""
        if self.cache is None:
            return await self._ask_in_time(messages)
        key = self.cache.key(
            judge=self.endpoint.identity,
            seat=self.seat,
            temperature=self.temperature,
            messages=messages,
        )
        known = await asyncio.to_thread(self.cache.get, key)
        if known is not None:
            self.usage.cache_hits += 1
            return known
        judgement = await self._ask_in_time(messages)
        await asyncio.to_thread(self.cache.put, key, judgement)
        return judgement

    async def _ask_in_time(self, messages: Messages) -> Judgement:
        """A slot is held while waiting to ask again: an endpoint in trouble is asked less."""
        faults: list[str] = []
        try:
            async with (
                _limit(self.endpoint.identity, self.concurrency),
                asyncio.timeout(self.patience.deadline),
            ):
                return await self._ask_again(messages, faults)
        except TimeoutError as error:
            last = faults[-1] if faults else "no call ended"
            raise JudgeFailed(
                f"judge {self.endpoint.identity}: nothing valid within "
                f"{self.patience.deadline:g} s; last fault: {last}"
            ) from error

    async def _ask_again(self, messages: Messages, faults: list[str]) -> Judgement:
        for number in range(self.patience.tries):
            wait = min(
                self.patience.first_wait * 2.0 ** min(number, 60), self.patience.longest_wait
            )
            wait *= self._random.uniform(0.5, 1.0)
            try:
                return read_reply((await self._ask_once(messages)).text)
            except PermanentFault as error:
                raise JudgeFailed(str(error)) from error
            except BadReply as error:
                # Asking a model again helps as it is; there is no load to wait for.
                faults.append(str(error))
                wait = 0.0
            except TransientFault as error:
                faults.append(str(error))
                if error.retry_after is not None:
                    wait = min(error.retry_after, self.patience.longest_wait)
            self.usage.faults += 1
            if number + 1 < self.patience.tries:
                await asyncio.sleep(wait)
        raise JudgeFailed(
            f"judge {self.endpoint.identity}: nothing valid in {self.patience.tries} tries; "
            f"last fault: {faults[-1]}"
        )

    async def _ask_once(self, messages: Messages) -> Reply:
        self.usage.calls += 1
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.patience.timeout):
                reply = await self.endpoint.ask(messages, self.temperature)
        except TimeoutError as error:
            raise TransientFault(f"no whole answer in {self.patience.timeout:g} s") from error
        finally:
            self.usage.seconds += time.monotonic() - started
        self.usage.prompt_tokens += reply.prompt_tokens
        self.usage.completion_tokens += reply.completion_tokens
        counted = reply.prompt_tokens * self.price[0] + reply.completion_tokens * self.price[1]
        self.usage.cost_usd += reply.cost_usd if reply.cost_usd is not None else counted / 1e6
        return reply


def _limit(identity: str, concurrency: int) -> asyncio.Semaphore:
    """The process's limit for one endpoint; graders come and go with trials, it stays."""
    of_loop = _limits.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(f"{identity} {concurrency}", asyncio.Semaphore(concurrency))
