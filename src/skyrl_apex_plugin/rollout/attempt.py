"""One harbor trial, and what it left behind."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyrl_apex_hookspecs import (
    EndedTrial,
    Outcome,
    Task,
    TokenError,
    Trajectory,
    TrialStarted,
    Verdict,
)
from skyrl_apex_plugin.discovery.hooks import notify

from .outcomes import GRADED

if TYPE_CHECKING:
    from harbor.models.trial.config import TrialConfig
    from harbor.models.trial.result import TrialResult

    from skyrl_apex_plugin.agent.record import TrialOutcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a trial. Pickles, so it can travel to a worker process."""

    task: Task
    config: TrialConfig
    number: int
    max_context: int | None = None

    @property
    def trial_dir(self) -> Path:
        return Path(self.config.trials_dir, self.config.trial_name)


async def run_attempt(attempt: Attempt) -> EndedTrial:
    """Run one harbor trial to its end and read its record.

    Whatever goes wrong inside is an outcome. Cancelling cancels the trial, which stops its
    sandbox before this function returns.
    """
    from harbor.trial.trial import Trial

    await notify(
        "apex_trial_started",
        TrialStarted(
            task=attempt.task,
            trial_name=attempt.config.trial_name,
            attempt=attempt.number,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ),
    )
    result: TrialResult | None = None
    error: Exception | None = None
    started = asyncio.get_running_loop().time()
    try:
        trial = await Trial.create(attempt.config)
        result = await trial.run()
        await _end_if_cancelled(trial)
    except Exception as caught:
        # harbor names faults of a running trial in its result; this one kept it from running.
        logger.warning("trial %s did not run", attempt.config.trial_name, exc_info=True)
        error = caught
    seconds = asyncio.get_running_loop().time() - started
    return await asyncio.to_thread(read_ended_trial, attempt, result, error, seconds)


async def _end_if_cancelled(trial: Any) -> None:
    """Raise the cancellation that harbor swallows when it meets a sandbox that is being stopped.

    harbor leaves that stop running on its own; stopping again waits for it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await trial.agent_environment.stop(delete=trial.config.environment.delete)
        raise asyncio.CancelledError


def read_ended_trial(
    attempt: Attempt, result: TrialResult | None, error: Exception | None, total_seconds: float
) -> EndedTrial:
    """What the files of a trial's directory and harbor's result say of it. Blocks on files."""
    from skyrl_apex_plugin.grading.verdict_file import read_verdict

    verdict, trajectory = None, None
    ending = _ending(attempt, result, error)
    try:
        verdict = read_verdict(attempt.trial_dir) if ending.outcome in GRADED else None
        if ending.outcome in GRADED and (verdict is None or verdict.score is None):
            reason = verdict.error if verdict is not None else ending.error_message
            ending = replace(ending, outcome=Outcome.VERIFIER_ERROR, error_message=reason)
        trajectory = _trajectory(attempt, ending, verdict)
    except TokenError as fault:
        ending = _ended_by(fault, Outcome.TOKEN_ERROR)
    except ValueError as fault:  # a verdict that cannot be read
        ending = _ended_by(fault, Outcome.VERIFIER_ERROR)
    return EndedTrial(
        task=attempt.task,
        outcome=ending.outcome,
        attempt=attempt.number,
        error_type=ending.error_type,
        error_message=ending.error_message,
        trajectory=trajectory,
        verdict=verdict,
        seconds={**ending.seconds, **_harbor_seconds(result), "total": total_seconds},
    )


def _ending(attempt: Attempt, result: TrialResult | None, error: Exception | None) -> TrialOutcome:
    """How the agent says that it ended, with harbor's reason where it gives none. An agent that
    says nothing never came to run."""
    from skyrl_apex_plugin.agent.record import TrialOutcome, read_outcome

    try:
        record = read_outcome(attempt.trial_dir)
    except ValueError as fault:
        return _ended_by(fault, Outcome.SETUP_ERROR)
    error_type, error_message = _harbor_error(result, error)
    if record is None:
        record = TrialOutcome(outcome=Outcome.SETUP_ERROR)
    return replace(
        record,
        error_type=record.error_type or error_type,
        error_message=record.error_message or error_message,
    )


def _ended_by(fault: Exception, outcome: Outcome) -> TrialOutcome:
    from skyrl_apex_plugin.agent.record import TrialOutcome

    return TrialOutcome(outcome=outcome, error_type=type(fault).__name__, error_message=str(fault))


def _trajectory(
    attempt: Attempt, ending: TrialOutcome, verdict: Verdict | None
) -> Trajectory | None:
    """The token record; ``None`` for a trial that ended before its first token.

    Raises ``TokenError`` when a graded trial has none, or it is damaged.
    """
    from skyrl_apex_plugin.agent.record import TOKENS
    from skyrl_apex_plugin.tito.ledger import TokenLedger

    path = attempt.trial_dir / TOKENS
    if not path.exists():
        if ending.outcome in GRADED:
            raise TokenError(
                f"{path}: no token record. Training needs an agent in TITO mode that writes one"
            )
        return None
    return TokenLedger.load(path).to_trajectory(
        task=attempt.task,
        outcome=ending.outcome,
        answer=ending.answer,
        verdict=verdict,
        max_context=attempt.max_context,
    )


def _harbor_error(
    result: TrialResult | None, error: Exception | None
) -> tuple[str | None, str | None]:
    if error is not None:
        return type(error).__name__, str(error)
    info = result.exception_info if result is not None else None
    return (info.exception_type, info.exception_message) if info is not None else (None, None)


def _harbor_seconds(result: TrialResult | None) -> dict[str, float]:
    """harbor's timings of the phases that the agent cannot see."""
    phases: dict[str, Any] = {
        "sandbox": getattr(result, "environment_setup", None),
        "verifier": getattr(result, "verifier", None),
    }
    return {
        name: (timing.finished_at - timing.started_at).total_seconds()
        for name, timing in phases.items()
        if timing is not None and timing.started_at and timing.finished_at
    }
