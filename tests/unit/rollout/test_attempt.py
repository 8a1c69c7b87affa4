"""What the files of a trial's directory say of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyrl_apex_hookspecs import CriterionResult, Outcome, Task, Treatment, Verdict
from skyrl_apex_plugin.agent.record import OUTCOME, TOKENS, Recorder, TrialOutcome
from skyrl_apex_plugin.grading.verdict_file import write_verdict
from skyrl_apex_plugin.rollout.attempt import Attempt, read_ended_trial, run_attempt
from skyrl_apex_plugin.rollout.outcomes import FailurePolicy
from skyrl_apex_plugin.tito.ledger import TokenLedger


class Trial:
    """A trial directory, filled bit by bit."""

    def __init__(self, task: Task, root: Path) -> None:
        config: Any = SimpleNamespace(trials_dir=root, trial_name="t")
        self.attempt = Attempt(task=task, config=config, number=0, max_context=100)
        self.directory = self.attempt.trial_dir
        (self.directory / "agent").mkdir(parents=True)

    def tokens(self) -> None:
        ledger = TokenLedger([1, 2])
        ledger.append_sampled([5, 6], [-0.1, -0.2], finish_reason="stop")
        ledger.save(self.directory / TOKENS)

    def outcome(self, outcome: Outcome, message: str | None = None) -> None:
        Recorder(self.directory).write_outcome(
            TrialOutcome(outcome=outcome, answer="42", error_message=message)
        )

    def read(self, result: Any = None, error: Exception | None = None) -> Any:
        return read_ended_trial(self.attempt, result, error, 1.0)


@pytest.fixture
def trial(task: Task, tmp_path: Path) -> Trial:
    return Trial(task, tmp_path)


def test_an_answered_and_graded_trial(trial: Trial) -> None:
    trial.tokens()
    trial.outcome(Outcome.COMPLETE)
    write_verdict(trial.directory, Verdict(grader="task", score=0.75))
    ended = trial.read()
    assert ended.outcome is Outcome.COMPLETE
    assert ended.trajectory.verdict.score == 0.75
    assert list(ended.trajectory.tokens) == [1, 2, 5, 6]
    assert ended.trajectory.answer == "42"
    assert ended.trajectory.max_context == 100
    assert FailurePolicy().classify(ended).treatment is Treatment.TRAIN


@pytest.mark.parametrize("outcome", [Outcome.LENGTH, Outcome.MAX_TURNS, Outcome.CONTEXT_LENGTH])
def test_cut_off_trials_stay_apart_and_keep_their_tokens(trial: Trial, outcome: Outcome) -> None:
    trial.tokens()
    trial.outcome(outcome)
    write_verdict(trial.directory, Verdict(grader="task", score=0.0))
    ended = trial.read()
    assert ended.outcome is outcome
    assert sum(ended.trajectory.loss_mask) == 2


def test_a_judge_error_is_no_zero(trial: Trial) -> None:
    trial.tokens()
    trial.outcome(Outcome.COMPLETE)
    failed = CriterionResult(criterion_id="c2", score=None, status="error")
    graded = CriterionResult(criterion_id="c1", score=1.0)
    write_verdict(
        trial.directory,
        Verdict(grader="rubric", error="the judge timed out", criteria=(graded, failed)),
    )
    ended = trial.read()
    assert ended.outcome is Outcome.VERIFIER_ERROR
    assert ended.error_message == "the judge timed out"
    assert FailurePolicy(max_retries=0).classify(ended).treatment is Treatment.MASK


def test_no_verdict_at_all_is_a_verifier_error(trial: Trial) -> None:
    trial.tokens()
    trial.outcome(Outcome.COMPLETE)
    exception = SimpleNamespace(exception_type="VerifierTimeoutError", exception_message="60 s")
    ended = trial.read(SimpleNamespace(exception_info=exception))
    assert (ended.outcome, ended.error_type) == (Outcome.VERIFIER_ERROR, "VerifierTimeoutError")


def test_a_trial_that_never_ran_is_a_setup_error(trial: Trial) -> None:
    ended = trial.read(error=OSError("no space left"))
    assert (ended.outcome, ended.error_type) == (Outcome.SETUP_ERROR, "OSError")
    assert ended.trajectory is None


def test_harbors_time_limit_is_a_timeout_and_not_a_cancellation(trial: Trial) -> None:
    trial.tokens()
    trial.outcome(Outcome.CANCELLED)
    (trial.directory / "result.json").write_text(
        '{"exception_info": {"exception_type": "AgentTimeoutError"}}'
    )
    ended = trial.read()
    assert ended.outcome is Outcome.AGENT_TIMEOUT
    assert FailurePolicy().classify(ended).treatment is Treatment.MASK


def test_a_graded_trial_without_tokens_is_a_token_error(trial: Trial) -> None:
    trial.outcome(Outcome.COMPLETE)
    write_verdict(trial.directory, Verdict(grader="task", score=1.0))
    ended = trial.read()
    assert ended.outcome is Outcome.TOKEN_ERROR
    assert "no token record" in ended.error_message


def test_a_damaged_token_record_is_a_token_error(trial: Trial) -> None:
    trial.tokens()
    path = trial.directory / TOKENS
    path.write_bytes(path.read_bytes()[:-1])
    trial.outcome(Outcome.COMPLETE)
    write_verdict(trial.directory, Verdict(grader="task", score=1.0))
    assert trial.read().outcome is Outcome.TOKEN_ERROR


def test_an_unreadable_outcome_is_a_setup_error_and_not_an_exception(trial: Trial) -> None:
    (trial.directory / OUTCOME).write_text("{")
    ended = trial.read()
    assert ended.outcome is Outcome.SETUP_ERROR
    assert "not JSON" in ended.error_message


async def test_a_cancellation_that_harbor_swallows_while_it_stops_the_sandbox_stands(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """harbor shields the stop, takes the cancellation for itself and returns as if nothing were."""
    stopped: list[bool] = []
    stopping = asyncio.Event()

    class Stopping:
        config = SimpleNamespace(environment=SimpleNamespace(delete=True))

        def __init__(self) -> None:
            self.agent_environment = self

        @classmethod
        async def create(cls, config: Any) -> Stopping:
            return cls()

        async def run(self) -> None:
            stopping.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

        async def stop(self, delete: bool) -> None:
            await asyncio.sleep(0.05)
            stopped.append(delete)

    monkeypatch.setattr("harbor.trial.trial.Trial", Stopping)
    going = asyncio.create_task(run_attempt(trial.attempt))
    await stopping.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert stopped == [True]
