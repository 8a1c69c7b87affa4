"""The generator's output, with attempts that end as told."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from skyrl.train.generators.base import BatchMetadata, TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output

from skyrl_apex_hookspecs import EndedTrial, Outcome, RewardTerm, Task
from skyrl_apex_plugin.grading.rewards import RewardShaper
from skyrl_apex_plugin.rollout.attempt import Attempt
from skyrl_apex_plugin.rollout.generator import (
    ApexGenerator,
    GeneratorSettings,
    invert_rewards,
)
from skyrl_apex_plugin.rollout.outcomes import FailurePolicy
from skyrl_apex_plugin.rollout.record import RunRecord
from skyrl_apex_plugin.rollout.runner import LocalRunner
from skyrl_apex_plugin.rollout.trial_config import TrialConfigBuilder

MakeEnded = Callable[..., EndedTrial]
FILLER = 99


class Told:
    """Ends each attempt with the next of the given endings of its row's trial."""

    def __init__(self, endings: Sequence[Sequence[EndedTrial]]) -> None:
        self._endings = endings
        self.attempts: list[Attempt] = []

    async def run(self, attempt: Attempt) -> EndedTrial:
        self.attempts.append(attempt)
        found = re.search(r"-r(\d+)-", attempt.config.trial_name)
        assert found is not None
        attempt.trial_dir.mkdir(parents=True)
        await asyncio.sleep(0)
        return self._endings[int(found[1])][attempt.number]

    async def aclose(self) -> None:
        pass


@pytest.fixture
def generator(tmp_path: Path) -> Callable[..., ApexGenerator]:
    def build(
        runner: Any,
        *,
        keep: str = "all",
        policy: FailurePolicy | None = None,
        **settings: Any,
    ) -> ApexGenerator:
        return ApexGenerator(
            settings=GeneratorSettings(filler_id=FILLER, **settings),
            runner=runner,
            policy=policy or FailurePolicy(),
            trials=TrialConfigBuilder(sandbox="archipelago-local"),
            shaper=RewardShaper(),
            record=RunRecord(tmp_path / "run", keep=keep),
        )

    return build


def batch(task: Task, rows: int, *, phase: Any = "train", groups: Sequence[str] = ()) -> Any:
    names = groups or ["task-1"] * rows
    return {
        "prompts": [[{"role": "user", "content": task.instruction}]] * rows,
        "env_classes": ["apex_tito"] * rows,
        "env_extras": [{"task_dir": str(task.directory), "data_source": "law"}] * rows,
        "sampling_params": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16},
        "trajectory_ids": [TrajectoryID(name, i) for i, name in enumerate(names)],
        "batch_metadata": BatchMetadata(global_step=3, training_phase=phase),
    }


async def test_a_trained_row_holds_exactly_the_ledger(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told([[make_ended(score=1.0)], [make_ended(score=0.0)]])
    output = await generator(told).generate(batch(task, 2))
    validate_generator_output(2, output)
    assert output["prompt_token_ids"][0] == [1, 2, 3]
    assert output["response_ids"][0] == [10, 11, 12, 20, 21, 10, 11, 12]
    assert output["loss_masks"][0] == [1, 1, 1, 0, 0, 1, 1, 1]
    assert output["rollout_logprobs"][0] == [-0.5] * 3 + [0.0] * 2 + [-0.5] * 3
    assert output["rewards"] == [1.0, 0.0]
    assert output["stop_reasons"] == ["complete", "complete"]


async def test_a_masked_row_costs_one_token_and_leaves_the_mean(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told(
        [
            [make_ended(score=1.0)],
            [make_ended(score=0.0)],
            [make_ended(Outcome.AGENT_TIMEOUT, None)],
            [make_ended(Outcome.TOKEN_ERROR, None, tokens=False)],
        ]
    )
    output = await generator(told).generate(batch(task, 4))
    validate_generator_output(4, output)
    assert output["rewards"] == [1.0, 0.0, 0.5, 0.5]
    assert output["loss_masks"][2:] == [[0], [0]]
    assert output["response_ids"][2:] == [[FILLER], [FILLER]]
    assert output["prompt_token_ids"][2:] == [[1, 2, 3], [FILLER]]


async def test_a_fault_is_run_again_in_a_directory_of_its_own(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    fault = make_ended(Outcome.SETUP_ERROR, None, tokens=False)
    told = Told([[fault, make_ended(score=1.0, attempt=1)], [make_ended(score=0.0)]])
    output = await generator(told).generate(batch(task, 2))
    assert output["rewards"] == [1.0, 0.0]
    assert sum(output["loss_masks"][0]) == 6
    assert len({attempt.trial_dir for attempt in told.attempts}) == 3
    metrics = output["rollout_metrics"]
    assert metrics["apex/sum/retried/setup_error"] == 1
    assert metrics["apex/sum/outcome/complete"] == 2


async def test_used_up_retries_end_in_a_masked_group(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    faults = [
        make_ended(Outcome.ENGINE_ERROR, None, tokens=False, attempt=attempt)
        for attempt in range(3)
    ]
    told = Told([faults, [make_ended(score=1.0)]])
    output = await generator(told).generate(batch(task, 2))
    assert len(told.attempts) == 4
    assert [sum(mask) for mask in output["loss_masks"]] == [0, 0], "one survivor has no baseline"
    assert output["rollout_metrics"]["apex/sum/groups/all_masked"] == 1
    assert output["rewards"] == [0.0, 0.0]


@pytest.mark.parametrize(
    "masked",
    [
        pytest.param(((Outcome.TOKEN_ERROR, None), (Outcome.TOKEN_ERROR, None)), id="ungraded"),
        pytest.param(((Outcome.COMPLETE, 1.0), (Outcome.TOKEN_ERROR, None)), id="lone survivor"),
        pytest.param(((Outcome.CONTEXT_LENGTH, 1.0), (Outcome.LENGTH, 1.0)), id="overlong"),
    ],
)
async def test_all_masked_groups_are_left_out_of_our_reward(
    task: Task,
    make_ended: MakeEnded,
    generator: Callable[..., ApexGenerator],
    masked: tuple[tuple[Outcome, float | None], ...],
) -> None:
    told = Told(
        [
            *([make_ended(outcome, score)] for outcome, score in masked),
            [make_ended(score=0.5)],
            [make_ended(score=0.0)],
        ]
    )
    built = generator(told, policy=FailurePolicy.from_settings(mask_overlong=True))
    output = await built.generate(batch(task, 4, groups=["a", "a", "b", "b"]))
    assert output["rewards"] == [0.0, 0.0, 0.5, 0.0]
    metrics = output["rollout_metrics"]
    assert metrics["apex/sum/groups/all_masked"] == 1
    assert metrics["apex/sum/rewarded/trials"] == 2
    assert metrics["apex/sum/rewarded/reward"] == 0.5


async def test_evaluation_averages_only_graded_trials(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told(
        [
            [make_ended(score=1.0)],
            [make_ended(score=0.0)],
            [make_ended(Outcome.AGENT_TIMEOUT, None)],
        ]
    )
    names = ["a", "b", "c"]
    output = await generator(told).generate(batch(task, 3, phase="eval", groups=names))
    assert output["rewards"] == [1.0, 0.0, 0.5]
    assert len(output["response_ids"][2]) == 8, "evaluation shows what there is"


async def test_the_length_policy_sets_the_reward(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told([[make_ended(Outcome.LENGTH, 1.0)], [make_ended(score=1.0)]])
    settings = {"zero_reward_outcomes": frozenset({Outcome.LENGTH})}
    output = await generator(told, **settings).generate(batch(task, 2))
    assert output["rewards"] == [0.0, 1.0]
    assert output["stop_reasons"] == ["length", "complete"]


async def test_a_reward_term_that_fails_masks_its_row(
    task: Task,
    make_ended: MakeEnded,
    generator: Callable[..., ApexGenerator],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from skyrl_apex_hookspecs import VerifierError

    built = generator(Told([[make_ended()] for _ in range(3)]))
    shape = built._shaper.shape
    calls: list[int] = []

    def sometimes(trajectory: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise VerifierError("plugin acme: boom")
        return shape(trajectory)

    monkeypatch.setattr(built._shaper, "shape", sometimes)
    output = await built.generate(batch(task, 3))
    assert sorted(output["stop_reasons"]) == ["complete", "complete", "verifier_error"]
    assert sorted(sum(mask) for mask in output["loss_masks"]) == [0, 6, 6]


async def test_token_rewards_keep_their_sum(
    task: Task,
    make_ended: MakeEnded,
    generator: Callable[..., ApexGenerator],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from array import array

    built = generator(Told([[make_ended()] for _ in range(2)]), token_level_rewards=True)
    per_token = array("f", [0.0, 0.25] + [0.0] * 7 + [0.5])
    term = RewardTerm(name="early", value=0.75, per_token=per_token)
    shape = built._shaper.shape
    monkeypatch.setattr(
        built._shaper,
        "shape",
        lambda trajectory: shape(trajectory)._replace(reward=1.75, terms=(term,)),
    )
    output = await built.generate(batch(task, 2))
    validate_generator_output(2, output)
    assert output["rewards"][0] == pytest.approx([0.0, 0.25] + [0.0] * 5 + [1.5])


async def test_inverted_rewards_turn_the_order_around(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told([[make_ended(score=1.0)], [make_ended(score=0.0)]])
    output = await generator(told, controls=(invert_rewards,)).generate(batch(task, 2))
    assert output["rewards"] == [-1.0, 0.0]


async def test_a_shifted_mask_is_shifted_by_one(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told([[make_ended(score=1.0)], [make_ended(score=0.0)]])
    output = await generator(told, shift_mask=True).generate(batch(task, 2))
    assert output["loss_masks"][0] == [0, 1, 1, 1, 0, 0, 1, 1]


async def test_the_record_names_every_trial_and_keeps_what_it_should(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator]
) -> None:
    told = Told([[make_ended()], [make_ended()], [make_ended(Outcome.AGENT_TIMEOUT, None)]])
    built = generator(told, keep="failed")
    await built.generate(batch(task, 3))
    lines = [
        json.loads(line)
        for line in (built.record.directory / "trials.jsonl").read_text().splitlines()
    ]
    ended = [line for line in lines if line["event"] == "ended"]
    assert len(lines) - len(ended) == 3
    assert {line["treatment"] for line in ended} == {"train", "mask"}
    kept = [path.name for path in built.record.trials_dir.iterdir()]
    assert kept == [line["trial"] for line in ended if line["treatment"] == "mask"]


async def test_cancelling_waits_until_every_attempt_has_cleaned_up(
    task: Task, generator: Callable[..., ApexGenerator]
) -> None:
    cleaned: list[str] = []
    started: list[str] = []
    all_running = asyncio.Event()

    class Slow:
        async def run(self, attempt: Attempt) -> EndedTrial:
            try:
                started.append(attempt.config.trial_name)
                if len(started) == 4:
                    all_running.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                cleaned.append(attempt.config.trial_name)
            raise AssertionError("unreachable")

        async def aclose(self) -> None:
            pass

    built = generator(Slow())
    going = asyncio.create_task(built.generate(batch(task, 4)))
    await all_running.wait()
    await built.aclose()
    assert len(set(cleaned)) == 4
    with pytest.raises(asyncio.CancelledError):
        await going


async def test_no_trial_starts_once_the_generator_is_closed(
    task: Task, generator: Callable[..., ApexGenerator]
) -> None:
    """SkyRL's generation workers ask for the next group while its training loop is failing."""
    started: list[str] = []

    class Counting:
        async def run(self, attempt: Attempt) -> EndedTrial:
            started.append(attempt.config.trial_name)
            raise AssertionError("a trial of a closed generator")

        async def aclose(self) -> None:
            pass

    built = generator(Counting())
    await built.aclose()
    with pytest.raises(asyncio.CancelledError, match="closed"):
        await built.generate(batch(task, 2))
    assert started == []


async def test_no_more_trials_at_once_than_allowed(
    task: Task, make_ended: MakeEnded, generator: Callable[..., ApexGenerator], monkeypatch: Any
) -> None:
    now, most = 0, 0

    async def attempt_takes_time(attempt: Attempt) -> EndedTrial:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        attempt.trial_dir.mkdir(parents=True)
        return make_ended()

    monkeypatch.setattr("skyrl_apex_plugin.rollout.runner.run_attempt", attempt_takes_time)
    await generator(LocalRunner(max_concurrent=3)).generate(batch(task, 12))
    assert most == 3
