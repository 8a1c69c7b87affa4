"""Which faults of an engine are worth another try, how often, and after how long."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from skyrl_apex_hookspecs import ContextLengthExceeded, EngineError

logger = logging.getLogger(__name__)

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
LONGEST_RETRY_AFTER = 300.0

CONTEXT_TYPES = ("context_length_exceeded", "ContextWindowExceededError", "input_too_long")
CONTEXT_MESSAGES = (
    "maximum context length",
    "maximum model length",
    "max_model_len",
    "context length exceeded",
    "context window",
    "prompt is too long",
    "input is too long",
    "exceeds the maximum number of tokens",
    "maximum input length",
)


class Fault(StrEnum):
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate_limit"
    TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class Budgets:
    """Retries of one call, by class of fault: one does not eat into another."""

    timeout: int
    rate_limit: int
    transient: int

    def of(self, fault: Fault) -> int:
        return {
            Fault.TIMEOUT: self.timeout,
            Fault.RATE_LIMIT: self.rate_limit,
            Fault.TRANSIENT: self.transient,
        }[fault]


class Retrier:
    """Runs requests, repeats those that may succeed later, and counts."""

    def __init__(
        self, budgets: Budgets, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self._budgets = budgets
        self._sleep = sleep
        self._counts: Counter[str] = Counter()
        self._waited = 0.0

    def metrics(self) -> dict[str, float]:
        names = ("requests", "aborted", *(f"retries_{fault.value}" for fault in Fault))
        return {
            **{name: float(self._counts[name]) for name in names},
            "seconds_waited": self._waited,
        }

    def aborted(self) -> None:
        self._counts["aborted"] += 1

    async def run(self, request: Callable[[], Awaitable[bytes]]) -> bytes:
        """The request's answer.

        :raises ContextLengthExceeded: the engine says that the window is full; never repeated.
        :raises EngineError: a fault that cannot pass by itself, or a budget used up.
        """
        used: Counter[Fault] = Counter()
        while True:
            self._counts["requests"] += 1
            try:
                return await request()
            except httpx.HTTPError as error:
                fault = classify(error)
                if used[fault] >= self._budgets.of(fault):
                    raise EngineError(
                        f"{fault.value} fault, {used[fault]} retries used up: {_name(error)}"
                    ) from error
                delay = _delay(error, used[fault])
                used[fault] += 1
            self._counts[f"retries_{fault.value}"] += 1
            logger.warning("%s fault of the engine, retry in %.1f s", fault.value, delay)
            started = time.perf_counter()
            await self._sleep(delay)
            self._waited += time.perf_counter() - started


def classify(error: httpx.HTTPError) -> Fault:
    """The class of a fault that is worth a retry.

    :raises ContextLengthExceeded: recognised by the error's type or message.
    :raises EngineError: everything that would only fail again.
    """
    if isinstance(error, httpx.HTTPStatusError):
        return _classify_status(error.response)
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return Fault.TRANSIENT
    if isinstance(error, httpx.TimeoutException):
        return Fault.TIMEOUT
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Fault.TRANSIENT
    raise EngineError(f"the request cannot be sent: {_name(error)}") from error


def says_context_is_full(text: str) -> bool:
    """Whether an error's type or message says that the prompt or the turn does not fit."""
    lowered = text.lower()
    return any(kind.lower() in lowered for kind in (*CONTEXT_TYPES, *CONTEXT_MESSAGES))


def _classify_status(response: httpx.Response) -> Fault:
    status, text = response.status_code, response.text[:2000]
    if status == 429:
        return Fault.RATE_LIMIT
    # Some servers answer 500 to a prompt that is too long: the message counts, not the status.
    if status == 413 or says_context_is_full(text):
        raise ContextLengthExceeded(f"the engine says ({status}): {text[:500]}")
    if status in (408, 504):
        return Fault.TIMEOUT
    if status in (409, 425) or status >= 500:
        return Fault.TRANSIENT
    raise EngineError(f"the engine refuses the request ({status}): {text[:500]}")


def _delay(error: httpx.HTTPError, used: int) -> float:
    """Seconds to wait: what the server asks for, else doubling with jitter."""
    if isinstance(error, httpx.HTTPStatusError):
        asked = retry_after(error.response.headers.get("retry-after"))
        if asked is not None:
            return min(asked, LONGEST_RETRY_AFTER)
    return min(FIRST_DELAY * 2.0**used, LONGEST_DELAY) * random.uniform(0.5, 1.0)


def retry_after(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header, which holds seconds or a date.

    ``None`` for anything else. A sleep of ``nan`` would break the order of the event loop's timers.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _name(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {error.response.text[:300]}"
    return f"{type(error).__name__}: {error}"
