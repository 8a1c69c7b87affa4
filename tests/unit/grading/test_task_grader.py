"""Grader ``task``: a score is what the task's verifier left, and a fault is never one."""

from __future__ import annotations

from typing import Any

import pytest

from skyrl_apex_hookspecs import VerifierError
from skyrl_apex_plugin.grading.task import TaskGrader


def runner_result(status: str, score: float, *criteria: tuple[str, float | None, str]) -> Any:
    return {
        "grading_run_status": status,
        "verifier_results": [
            {
                "verifier_id": name,
                "score": value,
                "status": state,
                "verifier_result_values": {"grade_rationale": f"because {name}"},
            }
            for name, value, state in criteria
        ],
        "scoring_results": {"final_score": score},
    }


@pytest.mark.parametrize(
    ("script", "score"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt", 0.5),
        ('echo \'{"reward": 0.25, "steps": 3}\' > /logs/verifier/reward.json', 0.25),
        ("echo '{\"only\": 1}' > /logs/verifier/reward.json", 1.0),
        ("echo '{\"reward\": 0}' > /logs/verifier/reward.json; exit 1", 0.0),
    ],
)
async def test_reward_file_is_the_score(bench: Any, script: str, score: float) -> None:
    bench.test_script(script)
    verdict = await TaskGrader().grade(bench.finished())
    assert verdict.score == score


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("true", "No reward file"),
        (": > /logs/verifier/reward.txt", "empty"),
        ("echo nan > /logs/verifier/reward.txt", "(?i)non-finite|not a finite"),
        ('echo \'{"reward": "high"}\' > /logs/verifier/reward.json', "valid number|Non-numeric"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', "no key 'reward'.*'a', 'b'"),
        ("echo '{' > /logs/verifier/reward.json", "parse"),
    ],
)
async def test_faulty_reward_file_is_an_error(bench: Any, script: str, message: str) -> None:
    bench.test_script(script)
    with pytest.raises(VerifierError, match=message):
        await TaskGrader().grade(bench.finished())


async def test_judge_error_is_not_zero(bench: Any) -> None:
    """The reference runner exits 0, with status error and a final score of 0.0."""
    bench.runner_script(runner_result("error", 0.0), reward='{"reward": 0.0}')
    with pytest.raises(VerifierError, match="status 'error'"):
        await TaskGrader().grade(bench.finished())


@pytest.mark.parametrize("failed", [("b", None, "error"), ("b", 0.0, "error"), ("b", None, "ok")])
async def test_one_criterion_judge_error_refuses_the_score(bench: Any, failed: Any) -> None:
    result = runner_result("completed", 0.5, ("a", 1.0, "ok"), failed, ("c", 0.0, "ok"))
    bench.runner_script(result, reward='{"reward": 0.5}')
    with pytest.raises(VerifierError, match="1 of 3 criteria: b"):
        await TaskGrader().grade(bench.finished())

    verdict = await TaskGrader(criterion_errors="skip").grade(bench.finished())
    assert verdict.score == 0.5  # of a and c alone
    assert [each.score for each in verdict.criteria] == [1.0, None, 0.0]


async def test_completed_run_brings_its_criteria(bench: Any) -> None:
    bench.verifiers(("a", "States the total", True), ("b", "Cites the memo", False))
    result = runner_result("completed", 0.5, ("a", 1.0, "ok"), ("b", 0.0, "ok"))
    bench.runner_script(result)  # no reward file: the runner's final score counts
    verdict = await TaskGrader().grade(bench.finished())
    assert verdict.score == 0.5
    first = verdict.criteria[0]
    assert (first.criteria, first.primary, first.rationale) == (
        "States the total",
        True,
        "because a",
    )


async def test_results_that_the_agent_planted_are_removed(bench: Any) -> None:
    """An agent can write to /logs/verifier; nothing there before grading may count."""
    planted = bench.sandbox.root / "logs" / "verifier"
    (planted / "reward.json").write_text('{"reward": 1.0}')
    (planted / "mine.json").write_text('{"grading_run_status": "completed"}')
    (bench.trial_dir / "verifier" / "reward.json").write_text('{"reward": 1.0}')
    bench.test_script("exit 1")
    with pytest.raises(VerifierError, match="No reward file"):
        await TaskGrader().grade(bench.finished())


async def test_cut_off_runner_result_is_an_error(bench: Any) -> None:
    bench.test_script(
        'echo \'{"grading_run_status": "comp\' > /logs/verifier/grades.json\n'
        "echo 1 > /logs/verifier/reward.txt"
    )
    with pytest.raises(VerifierError, match=r"grades\.json: not a whole grading result"):
        await TaskGrader().grade(bench.finished())


async def test_verifier_environment_arrives_byte_for_byte(bench: Any) -> None:
    value = "a b;$(touch /work/executed) \"'"
    bench.test_script('printf %s "$KEY" > /work/seen; echo 1 > /logs/verifier/reward.txt')
    await TaskGrader().grade(bench.finished(env={"KEY": value}))
    assert (bench.sandbox.root / "work" / "seen").read_text() == value
    assert not (bench.sandbox.root / "work" / "executed").exists()


def test_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="criterion_errors='average'; known: refuse, skip"):
        TaskGrader(criterion_errors="average")  # type: ignore[arg-type]
