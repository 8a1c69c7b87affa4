"""A run's directory as a training run leaves it, made with the writers that a run uses."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyrl_apex_hookspecs import (
    CriterionResult,
    EndedTrial,
    Failure,
    Outcome,
    RewardTerm,
    Task,
    ToolCall,
    Treatment,
    Verdict,
)
from skyrl_apex_plugin.agent.conversation import ModelTurn, RequestedCall
from skyrl_apex_plugin.agent.record import Recorder, TrialOutcome
from skyrl_apex_plugin.agent.toolbox import Handled
from skyrl_apex_plugin.grading.rewards import ShapedReward, write_reward
from skyrl_apex_plugin.grading.verdict_file import write_verdict
from skyrl_apex_plugin.rollout.record import RunRecord
from skyrl_apex_plugin.rollout.rollout import Rollout
from skyrl_apex_plugin.tito.ledger import TokenLedger

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
KINDS = ("law", "investment-banking", "management-consulting")


def trial(record: RunRecord, rng: random.Random, step: int, number: int, phase: str) -> None:
    name = f"{phase}{step}-{number}"
    directory = record.trials_dir / name
    outcome = rng.choices(
        [Outcome.COMPLETE, Outcome.MAX_TURNS, Outcome.SETUP_ERROR, Outcome.VERIFIER_ERROR],
        [12, 2, 1, 1],
    )[0]
    task = Task(task_id=f"task-{number % 5}", directory=directory, instruction="Sum up the P&L.")
    graded = outcome in (Outcome.COMPLETE, Outcome.MAX_TURNS)
    score = rng.choice([0.0, 0.25, 0.5, 1.0]) if graded else None
    trajectory, turns, metrics = None, 1 + number % 3, {}
    if outcome is not Outcome.SETUP_ERROR:
        trajectory, metrics = write_agent_files(directory, task, rng, turns, score)
    seconds = {"setup": 3.0, "agent": 9.0, "model": 5.0, "tools": 2.5, "verifier": 1.0, "total": 14}
    write_outcome(directory, outcome, seconds, metrics)
    terms = (RewardTerm(name="turns", value=-0.01 * turns),) if graded else ()
    reward = score + terms[0].value if score is not None else None
    verdict = write_judgement(directory, score)
    if reward is not None and score is not None:
        write_reward(directory, score, ShapedReward(reward, terms))
    treatment = Treatment.TRAIN if graded else Treatment.MASK
    failure = Failure(outcome=outcome, treatment=treatment, reason="" if graded else HOSTILE)
    ended = EndedTrial(
        task=task,
        outcome=outcome,
        attempt=0,
        trajectory=trajectory,
        verdict=verdict,
        seconds=seconds,
    )
    attempt = SimpleNamespace(config=SimpleNamespace(trial_name=name), trial_dir=directory)
    finished: Any = SimpleNamespace(attempt=attempt, ended=ended, retried=())
    rollout = Rollout(
        finished=finished,
        failure=failure,
        group=task.task_id,
        kind=KINDS[number % 3],
        seconds=14.0,
        reward=reward,
        terms=terms,
        trained=graded,
    )
    record.trial_ended(rollout, step=step, phase=phase)


def write_agent_files(
    directory: Path, task: Task, rng: random.Random, turns: int, score: float | None
) -> Any:
    recorder = Recorder(directory)
    texts = {"system": "Use the tools.", "user": HOSTILE}
    messages = [{"role": role, "content": text} for role, text in texts.items()]
    recorder.start(task, messages, model="tiny", mode="tito", tools=[])
    ledger = TokenLedger(range(10, 40))
    for index in range(turns):
        sampled = [rng.randrange(200) for _ in range(40)]
        logprobs = array("f", [-abs(rng.gauss(0, 1.5)) for _ in sampled])
        ledger.append_sampled(sampled, logprobs, finish_reason="stop", weight_version=3)
        arguments = {"path": "/Finance/pnl.xlsx", "row": index}
        asked = RequestedCall(call_id=f"c{index}", name="excel_read", arguments=arguments)
        recorder.model_turn(
            ModelTurn(content=f"Reading row {index}", reasoning="Let me look.", calls=(asked,))
        )
        call = ToolCall(
            call_id=f"c{index}",
            name="excel_read",
            arguments=arguments,
            server=("excel", "mail")[index % 2],
            ok=index != 1,
            seconds=0.2,
        )
        ledger.append_observation(rng.randrange(200) for _ in range(60))
        ledger.annotate_turn(calls=(call,), tool_seconds=0.2, malformed=False)
        recorder.tool_results(ledger.turns[-1], [Handled(call=call, text=f"row {HOSTILE}")])
    recorder.close()
    ledger.save(directory / "agent" / "tokens.apex")
    return ledger.to_trajectory(task=task, outcome=Outcome.COMPLETE), recorder.metrics()


def write_outcome(
    directory: Path, outcome: Outcome, seconds: dict[str, float], metrics: dict[str, Any]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    failed = outcome is Outcome.SETUP_ERROR
    Recorder(directory).write_outcome(
        TrialOutcome(
            outcome=outcome,
            answer=None if failed else f"The total is 42. {HOSTILE}",
            error_type="SetupError" if failed else None,
            error_message="server mail did not come up" if failed else None,
            seconds=seconds,
            metrics=metrics,
        )
    )


def write_judgement(directory: Path, score: float | None) -> Verdict:
    if score is None:
        verdict = Verdict(grader="rubric", error="judge is down")
    else:
        criteria = (
            CriterionResult(
                criterion_id="a",
                score=float(score > 0.2),
                criteria=f"States the total {HOSTILE}",
                rationale="It says 42.",
                primary=True,
            ),
            CriterionResult(criterion_id="b", score=float(score == 1), criteria="Cites the memo"),
        )
        verdict = Verdict(grader="rubric", score=score, criteria=criteria)
    write_verdict(directory, verdict)
    return verdict


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps of 8 trials, an evaluation every fourth step, and SkyRL's metrics."""
    rng = random.Random(5)
    record = RunRecord(tmp_path_factory.mktemp("run") / "20261129-demo")
    trainer = {"policy": {"model": {"path": "/models/tiny"}}}
    config = {"trainer": trainer, "apex": {"grader": {"name": "rubric"}}}
    record.describe({"name": "demo run", "config": config})
    for step in range(1, 13):
        for number in range(8):
            trial(record, rng, step, number, "train")
        if step % 4 == 0:
            for number in range(4):
                trial(record, rng, step, number, "eval")
        record.metrics(
            step,
            {
                "policy/final_loss": 1.0 / step,
                "policy/grad_norm": 0.4 + rng.random() / 10,
                "policy/rollout_train_logprobs_abs_diff_mean": 0.002,
                "async/staleness_mean": 1 + rng.random(),
                "timing/step": 20 + rng.random(),
                "timing/wait_for_generation_buffer": 12 + rng.random(),
                "reward/avg_raw_reward": step / 12,
            },
        )
    return record.directory


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer, as a model's directory holds one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["Reading the total of the row in the file"] * 9, trainer)
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    return directory
