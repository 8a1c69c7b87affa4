"""Grader ``task``: the task's own ``tests/test.sh``, run in its sandbox by harbor's verifier."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, Literal

from skyrl_apex_hookspecs import CriterionResult, FinishedTrial, Verdict, VerifierError
from skyrl_apex_plugin.grading.runner_result import RunnerResult, find_runner_result, runner_files

STALE_RESULTS = (
    "mkdir -p /logs/verifier; rm -f /logs/verifier/reward.json /logs/verifier/reward.txt; "
    "grep -lsF grading_run_status /logs/verifier/*.json | tr '\\n' '\\0' | xargs -0 -r rm -f"
)
"""Whatever looks like a result before grading began was not written by the grader: an agent can
write to ``/logs/verifier`` too."""


class TaskGrader:
    """Reads the score that the task's verifier leaves in ``/logs/verifier``.

    The reward file (``reward.json``, else ``reward.txt``) holds the score. Where the grading
    runner's JSON lies beside it (any ``*.json`` with a ``grading_run_status``), its status comes
    first: a run that did not complete has no score, whatever number stands in the files.

    :param criterion_errors: ``refuse`` gives no score when the judge failed on any criterion;
        ``skip`` scores the mean of the other ones.
    :param reward_key: key of ``reward.json`` that holds the score, when it has several.
    """

    def __init__(
        self,
        *,
        criterion_errors: Literal["refuse", "skip"] = "refuse",
        reward_key: str = "reward",
    ) -> None:
        if criterion_errors not in ("refuse", "skip"):
            raise ValueError(
                f"grader task: criterion_errors={criterion_errors!r}; known: refuse, skip"
            )
        self._skip_failed_criteria = criterion_errors == "skip"
        self._reward_key = reward_key

    async def grade(self, trial: FinishedTrial) -> Verdict:
        """Run the task's verifier and read its result. Raises ``VerifierError`` without one."""
        verifier_dir = trial.trial_dir / "verifier"
        await self._remove_stale_results(trial, verifier_dir)
        failure: Exception | None = None
        rewards: dict[str, Any] = {}
        try:
            rewards = await _run_harbor_verifier(trial)
        except Exception as error:
            # The runner's own JSON, when there is one, says more than a missing reward file.
            failure = error
        runner = await asyncio.to_thread(find_runner_result, verifier_dir, trial.task.directory)
        if runner is not None:
            return self._judge_runner(runner, rewards, failure)
        if failure is not None:
            raise VerifierError(f"{type(failure).__name__}: {failure}") from failure
        return Verdict(grader="task", score=self._reward(rewards))

    async def _remove_stale_results(self, trial: FinishedTrial, verifier_dir: Path) -> None:
        result = await trial.environment.exec(command=STALE_RESULTS, user="root")
        if result.return_code != 0:
            raise VerifierError(
                "cannot clear old results in /logs/verifier of the sandbox "
                f"(exit code {result.return_code}): {result.stderr or result.stdout}"
            )
        await asyncio.to_thread(_unlink_results, verifier_dir)

    def _judge_runner(
        self, runner: RunnerResult, rewards: dict[str, Any], failure: Exception | None
    ) -> Verdict:
        if runner.status != "completed":
            raise VerifierError(
                f"{runner.path.name}: the grading run ended with status {runner.status!r}"
                + (f": {runner.message}" if runner.message else "")
            )
        failed = [each for each in runner.criteria if each.status == "error"]
        if failed and not self._skip_failed_criteria:
            names = ", ".join(each.criterion_id for each in failed)
            raise VerifierError(
                f"{runner.path.name}: the judge failed on {len(failed)} of "
                f"{len(runner.criteria)} criteria: {names}"
            )
        if failed:
            score = _mean_of_graded(runner.criteria)
        elif failure is None:
            score = self._reward(rewards)
        elif runner.final_score is not None:
            score = runner.final_score
        else:
            raise VerifierError(f"{type(failure).__name__}: {failure}") from failure
        metrics = {"criteria_failed": float(len(failed))}
        return Verdict(grader="task", score=score, criteria=runner.criteria, metrics=metrics)

    def _reward(self, rewards: dict[str, Any]) -> float:
        """The one score in harbor's reward dictionary. Raises ``VerifierError`` without one."""
        key = self._reward_key
        if key not in rewards and len(rewards) == 1:
            (key,) = rewards
        if key not in rewards:
            raise VerifierError(
                f"the reward file has no key {key!r}, only {sorted(rewards)}; "
                "name one with apex.grader.kwargs.reward_key"
            )
        value = rewards[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise VerifierError(f"the reward file's {key!r} is {value!r}, not a number")
        if not math.isfinite(value):
            raise VerifierError(f"the reward file's {key!r} is {value!r}, not a finite number")
        return float(value)


def _unlink_results(verifier_dir: Path) -> None:
    for path in (*verifier_dir.glob("reward.*"), *runner_files(verifier_dir)):
        path.unlink()


def _mean_of_graded(criteria: tuple[CriterionResult, ...]) -> float:
    scores = [each.score for each in criteria if each.score is not None]
    if not scores:
        raise VerifierError("the judge failed on every criterion")
    return sum(scores) / len(scores)


async def _run_harbor_verifier(trial: FinishedTrial) -> dict[str, Any]:
    from harbor.models.trial.paths import TrialPaths
    from harbor.verifier.verifier import Verifier

    verifier = Verifier(
        task=trial.harbor_task,
        trial_paths=TrialPaths(trial.trial_dir),
        environment=trial.environment,
        override_env=dict(trial.env),
    )
    result = await verifier.verify()
    return dict(result.rewards or {})
