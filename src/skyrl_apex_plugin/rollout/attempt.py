"""One harbor trial, and what it left behind."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
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
        return Path(self.config.trials_dir) / self.config.trial_name


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
    except Exception as caught:
        # harbor names faults of a running trial in its result; this one kept it from running.
        logger.warning("trial %s did not run", attempt.config.trial_name, exc_info=True)
        error = caught
    seconds = asyncio.get_running_loop().time() - started
    return await asyncio.to_thread(read_ended_trial, attempt, result, error, seconds)


def read_ended_trial(
    attempt: Attempt, result: TrialResult | None, error: Exception | None, total_seconds: float
) -> EndedTrial:
    """What the files of a trial's directory and harbor's result say of it. Blocks on files."""
    from skyrl_apex_plugin.agent.record import read_outcome
    from skyrl_apex_plugin.grading.verdict_file import read_verdict

    record = read_outcome(attempt.trial_dir)
    error_type, error_message = _harbor_error(result, error)
    if record is None:
        outcome, answer, seconds = Outcome.SETUP_ERROR, None, {}
    else:
        outcome, answer, seconds = record.outcome, record.answer, dict(record.seconds)
        if record.error_type or outcome is not Outcome.COMPLETE:
            error_type = record.error_type or error_type
            error_message = record.error_message or error_message
    verdict = read_verdict(attempt.trial_dir) if outcome in GRADED else None
    if outcome in GRADED and (verdict is None or verdict.score is None):
        outcome = Outcome.VERIFIER_ERROR
        if verdict is not None:
            error_type, error_message = "VerifierError", verdict.error
    trajectory = None
    try:
        trajectory = _trajectory(attempt, outcome, answer, verdict)
    except TokenError as fault:
        outcome, error_type, error_message = Outcome.TOKEN_ERROR, type(fault).__name__, str(fault)
    return EndedTrial(
        task=attempt.task,
        outcome=outcome,
        attempt=attempt.number,
        error_type=error_type,
        error_message=error_message,
        trajectory=trajectory,
        verdict=verdict,
        seconds={**seconds, **_harbor_seconds(result), "total": total_seconds},
    )


def _trajectory(
    attempt: Attempt, outcome: Outcome, answer: str | None, verdict: Verdict | None
) -> Trajectory | None:
    """The token record; ``None`` for a trial that ended before its first token.

    Raises ``TokenError`` when a graded trial has none, or it is damaged.
    """
    from skyrl_apex_plugin.agent.record import TOKENS
    from skyrl_apex_plugin.tito.ledger import TokenLedger

    path = attempt.trial_dir / TOKENS
    if not path.exists():
        if outcome in GRADED:
            raise TokenError(
                f"{path}: no token record. Training needs an agent in TITO mode that writes one"
            )
        return None
    return TokenLedger.load(path).to_trajectory(
        task=attempt.task,
        outcome=outcome,
        answer=answer,
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
