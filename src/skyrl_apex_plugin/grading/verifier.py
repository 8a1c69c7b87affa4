"""The bridge from harbor's verifier to the graders of this package.

harbor loads it by import path (``verifier.import_path`` in a config,
``harbor run --verifier skyrl_apex_plugin.grading.verifier:ApexVerifier`` on a command line), so
the same graders serve training and a plain ``harbor run``.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import is_sensitive_env_key, resolve_env_vars
from harbor.verifier.base import BaseVerifier

from skyrl_apex_hookspecs import (
    ApexError,
    FinishedTrial,
    Grader,
    Outcome,
    Task,
    Trajectory,
    Verdict,
    VerifierError,
)
from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.grading.trial_record import AgentRecord, read_agent_record
from skyrl_apex_plugin.grading.verdict_file import write_verdict

UNGRADED = frozenset(
    {
        Outcome.SETUP_ERROR,
        Outcome.TOOL_SESSION_LOST,
        Outcome.ENGINE_ERROR,
        Outcome.TOKEN_ERROR,
    }
)
"""Outcomes with nothing to grade: a score for them would blame the policy for a fault. An agent
that was cancelled is graded: harbor verifies only those that it stopped at their time limit."""

SHORTEST_SECRET = 8
"""Characters of a secret that is taken out of texts; shorter values are switches and numbers."""


class ApexVerifier(BaseVerifier):
    """Grades a harbor trial with the named grader and writes ``verifier/verdict.json``.

    :param grader: name of the grader (``task``, ``rubric``, ``exact``, a registered one or
        ``module:Class``), or ``{"name": …, "kwargs": {…}}``. On harbor's command line:
        ``--verifier-kwarg grader=rubric``.
    """

    def __init__(self, *, grader: str | Mapping[str, Any] = "task", **harbor: Any) -> None:
        super().__init__(**harbor)
        spec: dict[str, Any] = {"name": grader} if isinstance(grader, str) else dict(grader)
        unknown = spec.keys() - {"name", "kwargs"}
        if unknown or "name" not in spec:
            raise ValueError(
                f"verifier kwarg grader={grader!r}: expected a name or "
                '{"name": …, "kwargs": {…}}'
            )
        self._name: str = spec["name"]
        self._kwargs: dict[str, Any] = dict(spec.get("kwargs") or {})
        self._secrets: list[str] = []

    async def verify(self) -> VerifierResult:
        """Grade the trial.

        Raises ``VerifierError`` for whatever keeps the grader from a score, so harbor never
        records a reward for a fault; the reason is in ``verdict.json`` as well.
        """
        verdict = await self._verdict()
        write_verdict(self.trial_paths.trial_dir, verdict)
        if verdict.score is None:
            raise VerifierError(f"grader {verdict.grader!r}: {verdict.error}")
        return VerifierResult(rewards={"reward": verdict.score})

    async def _verdict(self) -> Verdict:
        try:
            trial = await asyncio.to_thread(self._finished_trial)
            grader = cast(Grader, resolve("grader", self._name)(**self._kwargs))
            return self._shown(_checked(await grader.grade(trial), self._name))
        except asyncio.CancelledError:
            # harbor cancels a verifier that runs over its time limit.
            write_verdict(
                self.trial_paths.trial_dir,
                Verdict(grader=self._name, error="cancelled, or over the verifier's time limit"),
            )
            raise
        except Exception as error:
            trace = self._writable(traceback.format_exc())
            self.logger.warning("grader %r failed\n%s", self._name, trace)
            reason = str(error) if isinstance(error, ApexError) else repr(error)
            return Verdict(grader=self._name, error=self._writable(reason))

    def _shown(self, verdict: Verdict) -> Verdict:
        """The verdict with the secrets of ``[verifier.env]`` taken out of its texts."""
        criteria = tuple(
            replace(each, rationale=self._writable(each.rationale)) for each in verdict.criteria
        )
        error = verdict.error and self._writable(verdict.error)
        return replace(verdict, error=error, criteria=criteria)

    def _writable(self, text: str) -> str:
        """Without those secrets, and without half surrogate pairs, which no file can hold."""
        for value in self._secrets:
            text = text.replace(value, "***").replace(repr(value)[1:-1], "***")
        return text.encode("utf-8", "backslashreplace").decode()

    def _finished_trial(self) -> FinishedTrial:
        from skyrl_apex_plugin.agent.task import load_task

        trial_dir = self.trial_paths.trial_dir
        task = load_task(Path(self.task.paths.task_dir))
        record = read_agent_record(trial_dir)
        if record.outcome in UNGRADED:
            raise VerifierError(f"the trial ended as {record.outcome}: there is nothing to grade")
        return FinishedTrial(
            task=task,
            trial_dir=trial_dir,
            environment=self.environment,
            answer=record.answer,
            trajectory=_trajectory(trial_dir, task, record),
            harbor_task=self.task,
            env=self._resolved_env(),
        )

    def _resolved_env(self) -> dict[str, str]:
        templates = {
            **self.task.config.verifier.env,
            **(self.verifier_env or {}),
            **self.override_env,
        }
        try:
            env = dict(resolve_env_vars(templates))
        except ValueError as error:
            raise VerifierError(
                f"{error}; [verifier.env] of {self.task.paths.config_path} asks for it"
            ) from error
        secrets = (
            value
            for name, value in env.items()
            if is_sensitive_env_key(name) and len(value) >= SHORTEST_SECRET
        )
        self._secrets = sorted(secrets, key=len, reverse=True)  # one may be part of another
        return env


def _trajectory(trial_dir: Path, task: Task, record: AgentRecord) -> Trajectory | None:
    """The trial's token record, or ``None`` when its agent keeps none."""
    path = trial_dir / "agent" / "tokens.apex"
    if not path.exists():
        return None
    from skyrl_apex_plugin.tito.ledger import TokenLedger

    return TokenLedger.load(path).to_trajectory(
        task=task, outcome=record.outcome or Outcome.COMPLETE, answer=record.answer
    )


def _checked(verdict: Any, grader: str) -> Verdict:
    """Refuse what only looks like a verdict."""
    if not isinstance(verdict, Verdict):
        raise VerifierError(f"grader {grader!r} returned {type(verdict).__name__}, not a Verdict")
    if verdict.score is not None and not math.isfinite(verdict.score):
        raise VerifierError(f"grader {grader!r} returned the score {verdict.score!r}")
    return verdict
