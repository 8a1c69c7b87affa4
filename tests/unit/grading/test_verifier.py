"""``ApexVerifier`` under harbor's own factory: a verdict is written, a fault is no reward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from harbor.models.trial.config import VerifierConfig
from harbor.models.trial.paths import TrialPaths
from harbor.verifier.factory import VerifierFactory

from skyrl_apex_hookspecs import FinishedTrial, Verdict, VerifierError
from skyrl_apex_plugin.grading.verdict_file import read_verdict

IMPORT_PATH = "skyrl_apex_plugin.grading.verifier:ApexVerifier"
SEEN: list[FinishedTrial] = []


class Scripted:
    """A third party's grader: answers what its keyword argument says."""

    def __init__(self, *, answer: Any) -> None:
        self.answer = answer

    async def grade(self, trial: FinishedTrial) -> Any:
        SEEN.append(trial)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "slow":
            await asyncio.sleep(60)
        if self.answer == "nan":
            return Verdict(grader="scripted", score=float("nan"))
        if isinstance(self.answer, str):
            return Verdict(grader="scripted", error=self.answer)
        return Verdict(grader="scripted", score=self.answer) if self.answer is not None else 0.0


Verify = Callable[..., Any]


@pytest.fixture
def verify(bench: Any) -> Verify:
    SEEN.clear()

    async def run(answer: Any = None, *, grader: str | None = None) -> Any:
        scripted = {"name": f"{__name__}:Scripted", "kwargs": {"answer": answer}}
        verifier = VerifierFactory.create_verifier_from_config(
            VerifierConfig(import_path=IMPORT_PATH, kwargs={"grader": grader or scripted}),
            task=bench.finished().harbor_task,
            trial_paths=TrialPaths(bench.trial_dir),
            environment=bench.sandbox,
        )
        return await verifier.verify()

    return run


async def test_score_becomes_harbors_reward(bench: Any, verify: Verify) -> None:
    result = await verify(0.75)
    assert result.rewards == {"reward": 0.75}
    verdict = read_verdict(bench.trial_dir)
    assert verdict is not None and (verdict.grader, verdict.score) == ("scripted", 0.75)


async def test_task_grader_by_name(bench: Any, verify: Verify) -> None:
    bench.test_script("echo 0.5 > /logs/verifier/reward.txt")
    assert (await verify(grader="task")).rewards == {"reward": 0.5}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("judge is down", "judge is down"),
        (RuntimeError("boom"), "boom"),
        ("nan", "score nan"),
        (None, "returned float, not a Verdict"),
    ],
)
async def test_a_fault_is_an_error_and_written(
    bench: Any, verify: Verify, answer: Any, reason: str
) -> None:
    with pytest.raises(VerifierError, match=reason):
        await verify(answer)
    verdict = read_verdict(bench.trial_dir)
    assert verdict is not None and verdict.score is None and reason in (verdict.error or "")


async def test_an_unknown_grader_is_an_error_that_lists_the_known(verify: Verify) -> None:
    with pytest.raises(VerifierError, match=r"rubrik.*did you mean 'rubric'"):
        await verify(grader="rubrik")


async def test_over_the_time_limit_is_written_too(bench: Any, verify: Verify) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(verify("slow"), timeout=0.2)
    verdict = read_verdict(bench.trial_dir)
    assert verdict is not None and "time limit" in (verdict.error or "")


def outcome_document(outcome: str, answer: str | None = None) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": 1, "outcome": outcome, "answer": answer}
    return {**document, "error_type": None, "error_message": None, "seconds": {}, "metrics": {}}


async def test_answer_comes_from_the_outcome_file(bench: Any, verify: Verify) -> None:
    document = outcome_document("complete", answer="42")
    (bench.trial_dir / "outcome.json").write_text(json.dumps(document))
    await verify(1.0)
    assert SEEN[0].answer == "42"


async def test_answer_of_any_other_harbor_agent(bench: Any, verify: Verify) -> None:
    """Without our outcome file, the last message of harbor's own trajectory is the answer."""
    steps = [
        {"source": "user", "message": "Say 4."},
        {"source": "agent", "message": "thinking"},
        {"source": "agent", "message": [{"type": "text", "text": "It is 4."}]},
        {"source": "system", "message": "done"},
    ]
    (bench.trial_dir / "agent").mkdir()
    (bench.trial_dir / "agent" / "trajectory.json").write_text(json.dumps({"steps": steps}))
    await verify(1.0)
    assert SEEN[0].answer == "It is 4."
    assert SEEN[0].trajectory is None


@pytest.mark.parametrize("outcome", ["setup_error", "engine_error", "token_error"])
async def test_nothing_is_graded_after_a_fault(bench: Any, verify: Verify, outcome: str) -> None:
    (bench.trial_dir / "outcome.json").write_text(json.dumps(outcome_document(outcome)))
    with pytest.raises(VerifierError, match=f"ended as {outcome}"):
        await verify(1.0)
    assert not SEEN


async def test_a_damaged_outcome_file_is_an_error(bench: Any, verify: Verify) -> None:
    (bench.trial_dir / "outcome.json").write_text('{"schema": 1, "outcome"')
    with pytest.raises(VerifierError, match=r"outcome\.json: not JSON"):
        await verify(1.0)


async def test_missing_key_is_named_with_its_task(
    bench: Any, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    toml = bench.task_dir / "task.toml"
    toml.write_text(toml.read_text() + '[verifier.env]\nJUDGE_KEY = "${JUDGE_KEY}"\n')
    with pytest.raises(VerifierError, match=r"JUDGE_KEY.*task\.toml"):
        await verify(1.0)
    value = "a b;$(id)"
    monkeypatch.setenv("JUDGE_KEY", value)
    await verify(1.0)
    assert SEEN[0].env == {"JUDGE_KEY": value}
    assert value not in (bench.trial_dir / "verifier" / "verdict.json").read_text()


@pytest.mark.parametrize(
    "answer",
    [
        "refused: sk-sécret-123 \ud83d",
        RuntimeError("refused: sk-sécret-123"),
        UnicodeEncodeError("ascii", "Bearer sk-sécret-123", 10, 11, "ordinal not in range"),
    ],
)
async def test_no_secret_of_the_verifiers_environment_is_written(
    bench: Any,
    verify: Verify,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-sécret-123")
    toml = bench.task_dir / "task.toml"
    toml.write_text(toml.read_text() + '[verifier.env]\nJUDGE_KEY = "${JUDGE_KEY}"\n')
    with pytest.raises(VerifierError) as raised:
        await verify(answer)
    verdict = read_verdict(bench.trial_dir)
    assert verdict is not None and "***" in (verdict.error or "")
    for text in (str(raised.value), verdict.error or "", caplog.text):
        assert "sk-s" not in text
        text.encode()


async def test_a_misshapen_grader_setting_is_refused(verify: Verify, bench: Any) -> None:
    with pytest.raises(ValueError, match="expected a name or"):
        VerifierFactory.create_verifier_from_config(
            VerifierConfig(import_path=IMPORT_PATH, kwargs={"grader": {"nme": "task"}}),
            task=bench.finished().harbor_task,
            trial_paths=TrialPaths(bench.trial_dir),
            environment=bench.sandbox,
        )
