"""The hooks. One purpose each; ``docs/hooks.md`` shows every one with an example.

pluggy does not await, so combining and classifying hooks are plain functions. Observers may
return an awaitable, which is awaited in order. Unless said otherwise an implementation that
raises fails the one trial it was called for, by name, and never the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import pluggy

from .types import (
    EndedTrial,
    Failure,
    Observation,
    RewardTerm,
    Task,
    Trajectory,
    TrialFinished,
    TrialStarted,
    TurnFinished,
    Verdict,
)

PROJECT = "skyrl_apex"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """Callable handed to registration hooks.

    :param name: what users write in the configuration.
    :param target: ``module:Class``, imported only when the name is used.
    :param extra: extra of this distribution that brings what ``target`` imports.
    :param summary: one line for ``skyrl-apex plugins list``.
    """

    def __call__(
        self, name: str, target: str, *, extra: str | None = None, summary: str = ""
    ) -> None: ...


@hookspec
def apex_register_sandboxes(register: Register) -> None:
    """Register sandbox backends (harbor ``BaseEnvironment`` classes) by name.

    Called once in each process, before the first name is looked up. A name that is taken
    twice is an error that names both owners.

    :param register: see :class:`Register`.
    """


@hookspec
def apex_register_graders(register: Register) -> None:
    """Register graders (:class:`~skyrl_apex_hookspecs.Grader` classes) by name.

    Called once in each process, before the first name is looked up.

    :param register: see :class:`Register`.
    """


@hookspec
def apex_register_samplers(register: Register) -> None:
    """Register inference transports (:class:`~skyrl_apex_hookspecs.Sampler` classes) by name.

    Called once in each process, before the first name is looked up.

    :param register: see :class:`Register`.
    """


@hookspec
def apex_register_rewards(register: Register) -> None:
    """Register configurable reward terms (:class:`~skyrl_apex_hookspecs.RewardRule` classes).

    A name under ``apex.rewards.terms`` is looked up here and built with the keyword arguments
    that stand there. Called once in each process, before the first name is looked up.

    :param register: see :class:`Register`.
    """


@hookspec
def apex_reward_terms(trajectory: Trajectory) -> RewardTerm | Sequence[RewardTerm] | None:
    """Give additive reward terms for a graded trajectory.

    Called once for each trained trajectory after grading, in plugin order; results of all
    plugins are collected. ``None`` means no term. Synchronous. Raising fails the trial as
    ``verifier_error``. A term name given twice is an error that names it.

    :param trajectory: the finished rollout; ``trajectory.verdict.score`` is a number.
    """


@hookspec(firstresult=True)
def apex_combine_reward(verdict: Verdict, terms: Sequence[RewardTerm]) -> float | None:
    """Replace the default reward, which is ``verdict.score`` plus the sum of all terms.

    The first result that is not ``None`` is used. Synchronous. Raising, or a result that is
    not a finite number, fails the trial as ``verifier_error``.

    :param verdict: the grader's verdict; it has a score.
    :param terms: all collected terms, in plugin order.
    """


@hookspec(firstresult=True)
def apex_classify_failure(outcome: EndedTrial) -> Failure | None:
    """Decide whether an ended trial is trained, masked, retried or discarded.

    The first result that is not ``None`` replaces the configured table. Synchronous. Raising
    masks the trial as ``verifier_error``.

    :param outcome: the ended trial, with its outcome, attempt number and what is known of it.
    """


@hookspec
def apex_prepare_world(environment: Any, task: Task) -> Awaitable[None] | None:
    """Prepare the sandbox after it started and before the world's servers start.

    Implementations run one after the other in plugin order and each is awaited. Raising fails
    the trial as ``setup_error``.

    :param environment: the live harbor ``BaseEnvironment`` (``exec``, ``upload_file``, …).
    :param task: the task whose world is about to start.
    """


@hookspec
def apex_transform_observation(observation: Observation) -> Observation | None:
    """Change a tool's output before it reaches the model.

    A fold in plugin order: each implementation sees what the one before it returned; ``None``
    leaves it unchanged. Synchronous. Raising fails the trial as ``setup_error``. Truncation to
    the configured token budget comes afterwards.

    :param observation: the tool call and its output.
    """


@hookspec
def apex_trial_started(event: TrialStarted) -> Awaitable[None] | None:
    """Observe the start of a trial. Raising only warns.

    :param event: task, trial name, attempt number and start time.
    """


@hookspec
def apex_turn_finished(event: TurnFinished) -> Awaitable[None] | None:
    """Observe a finished turn, its tool calls included. Raising only warns.

    :param event: task, trial name and turn.
    """


@hookspec
def apex_trial_finished(event: TrialFinished) -> Awaitable[None] | None:
    """Observe the end of a trial, once treatment and reward are decided. Raising only warns.

    :param event: the ended trial with its failure class, reward and reward terms.
    """
