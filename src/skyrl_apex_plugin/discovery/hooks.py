"""Calling hooks: in plugin order, awaited where the contract says so, errors named.

pluggy does not await, and a coroutine is never ``None``, so every hook is called through the
functions of this module. ``APEX_TRACE_HOOKS=1`` prints each call to standard error.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from skyrl_apex_hookspecs import (
    EndedTrial,
    Failure,
    Observation,
    Outcome,
    RewardTerm,
    SetupError,
    Task,
    Trajectory,
    Treatment,
    TrialFinished,
    TrialStarted,
    TurnFinished,
    Verdict,
    VerifierError,
)

from .entry_points import entry_points_of, owner_of
from .manager import GROUP, plugin_manager

logger = logging.getLogger(__name__)

TRACE = "APEX_TRACE_HOOKS"

OBSERVERS = {
    "apex_trial_started": TrialStarted,
    "apex_turn_finished": TurnFinished,
    "apex_trial_finished": TrialFinished,
}
"""Observer hooks and the event that each takes."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One plugin's implementation of one hook."""

    hook: str
    plugin: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    """The hook's arguments that this implementation asks for; it may leave some out."""

    @property
    def owner(self) -> str:
        """``plugin (distribution version)``, for messages."""
        for point in entry_points_of(GROUP):
            if point.name == self.plugin:
                return f"{self.plugin} ({owner_of(point)})"
        return self.plugin

    def call(self, **arguments: Any) -> Any:
        """Call the implementation, traced when ``APEX_TRACE_HOOKS=1``. An awaitable result is
        returned as it is."""
        chosen = [arguments[name] for name in self.arguments]
        if os.environ.get(TRACE) != "1":
            return self.function(*chosen)
        started = time.perf_counter()
        result: Any = "raised"
        try:
            result = self.function(*chosen)
            return result
        finally:
            milliseconds = 1000 * (time.perf_counter() - started)
            shown = ", ".join(f"{name}={_brief(value)}" for name, value in arguments.items())
            print(
                f"apex hook {self.hook}({shown}) in {self.plugin} -> {_brief(result)} "
                f"[{milliseconds:.2f} ms]",
                file=sys.stderr,
                flush=True,
            )


def implementations_of(
    hook: str, manager: pluggy.PluginManager | None = None
) -> list[Implementation]:
    """Every plugin's implementation of ``hook``, in plugin order.

    :param manager: by default the process's own.
    """
    caller = getattr((manager or plugin_manager()).hook, hook)
    return [
        Implementation(hook, found.plugin_name, found.function, tuple(found.argnames))
        for found in reversed(caller.get_hookimpls())
    ]


async def notify(hook: str, event: TrialStarted | TurnFinished | TrialFinished) -> None:
    """Tell every observer, one after the other. An observer that raises only warns.

    :raises ValueError: ``hook`` is no observer hook, or ``event`` is not its event.
    """
    expected = OBSERVERS.get(hook)
    if expected is None or not isinstance(event, expected):
        raise ValueError(f"{hook!r} is no observer hook that takes a {type(event).__name__}")
    for implementation in implementations_of(hook):
        try:
            result = implementation.call(event=event)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            logger.warning(
                "%s failed and was skipped", _named(implementation, error), exc_info=error
            )


async def prepare_world(environment: Any, task: Task) -> None:
    """Run every plugin's preparation steps, each awaited before the next starts.

    :raises SetupError: one of them raised; names the plugin.
    """
    for implementation in implementations_of("apex_prepare_world"):
        try:
            result: Awaitable[None] | None = implementation.call(environment=environment, task=task)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raise SetupError(_named(implementation, error)) from error


def transform_observation(observation: Observation) -> Observation:
    """Fold an observation through every plugin; each sees what the one before it returned.

    :raises SetupError: a plugin raised, or returned something that is no ``Observation``.
    """
    for implementation in implementations_of("apex_transform_observation"):
        try:
            result = _synchronous(implementation.call(observation=observation))
        except Exception as error:
            raise SetupError(_named(implementation, error)) from error
        if result is None:
            continue
        if not isinstance(result, Observation):
            raise SetupError(_named(implementation, TypeError(f"returned {_brief(result)}")))
        observation = result
    return observation


def classify_failure(ended: EndedTrial) -> Failure | None:
    """What a plugin decides for an ended trial; ``None`` leaves it to the configured table.

    A plugin that raises masks the trial as ``verifier_error``.
    """
    for implementation in implementations_of("apex_classify_failure"):
        try:
            result = _synchronous(implementation.call(outcome=ended))
            if result is not None and not isinstance(result, Failure):
                raise TypeError(f"returned {_brief(result)}, not a Failure")
        except Exception as error:
            reason = _named(implementation, error)
            logger.error("%s; the trial is masked", reason, exc_info=error)
            return Failure(outcome=Outcome.VERIFIER_ERROR, treatment=Treatment.MASK, reason=reason)
        if result is not None:
            return result
    return None


def reward_terms(
    trajectory: Trajectory, configured: Sequence[Implementation] = ()
) -> tuple[RewardTerm, ...]:
    """Every configured reward term in the order given, then every plugin's, in plugin order.

    :raises VerifierError: a plugin raised, gave something that is no ``RewardTerm``, a name that
        is taken, a value that is not finite, or a per-token reward that does not fit.
    """
    terms: list[RewardTerm] = []
    givers: dict[str, str] = {}
    response_length = len(trajectory.tokens) - trajectory.prompt_length
    for implementation in (*configured, *implementations_of("apex_reward_terms")):
        try:
            for term in _as_terms(_synchronous(implementation.call(trajectory=trajectory))):
                _check_term(term, response_length)
                giver = givers.setdefault(term.name, implementation.owner)
                if any(term.name == other.name for other in terms):
                    raise ValueError(f"the term {term.name!r} was already given by {giver}")
                terms.append(term)
        except Exception as error:
            raise VerifierError(_named(implementation, error)) from error
    return tuple(terms)


def combine_reward(verdict: Verdict, terms: Sequence[RewardTerm]) -> float:
    """The reward: the first plugin's answer, else the verdict's score plus the sum of all terms.

    :raises VerifierError: the verdict has no score, a plugin raised, or the result is no finite
        number.
    """
    if verdict.score is None:
        raise VerifierError(f"verdict of {verdict.grader!r} has no score: {verdict.error}")
    for implementation in implementations_of("apex_combine_reward"):
        try:
            result = _synchronous(implementation.call(verdict=verdict, terms=terms))
            if result is not None:
                return _finite(result, "reward")
        except Exception as error:
            raise VerifierError(_named(implementation, error)) from error
    try:
        return _finite(math.fsum((verdict.score, *(term.value for term in terms))), "reward")
    except (TypeError, ValueError, OverflowError) as error:
        raise VerifierError(f"score {verdict.score!r} plus terms: {error}") from error


def _as_terms(result: Any) -> Iterator[RewardTerm]:
    if result is None:
        return
    for term in (result,) if isinstance(result, RewardTerm) else result:
        if not isinstance(term, RewardTerm):
            raise TypeError(f"returned {_brief(term)}, not a RewardTerm")
        yield term


def _check_term(term: RewardTerm, response_length: int) -> None:
    value = _finite(term.value, f"term {term.name!r}")
    if term.per_token is None:
        return
    if len(term.per_token) != response_length:
        raise ValueError(
            f"term {term.name!r} gives {len(term.per_token)} per-token rewards for a response of "
            f"{response_length} tokens"
        )
    total = math.fsum(term.per_token)
    if not math.isclose(total, value, rel_tol=1e-4, abs_tol=1e-4):
        raise ValueError(f"term {term.name!r}: value {value} is not its per-token sum {total}")


def _finite(value: Any, what: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}, not a finite number")
    return number


def _synchronous(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("returned an awaitable, but this hook is synchronous")


def _named(implementation: Implementation, error: BaseException) -> str:
    return (
        f"{implementation.hook} of plugin {implementation.owner}: {type(error).__name__}: {error}"
    )


def _brief(value: Any) -> str:
    """A value as the trace shows it. Class and size only: values may hold secrets."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Outcome | Treatment):
        return value.value
    return f"{value:.80}" if value == "raised" else type(value).__name__
