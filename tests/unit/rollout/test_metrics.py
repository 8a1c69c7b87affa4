"""Every metric survives SkyRL's folding of groups."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from skyrl.train.generators.utils import concatenate_generator_outputs

from skyrl_apex_hookspecs import (
    EndedTrial,
    Failure,
    Outcome,
    RewardTerm,
    Treatment,
)
from skyrl_apex_plugin.rollout.metrics import FOLDED, metric_key, rollout_sums, with_ratios
from skyrl_apex_plugin.rollout.rollout import Rollout
from skyrl_apex_plugin.rollout.runner import Finished
from skyrl_apex_plugin.training.report import evaluation_report

MakeEnded = Callable[..., EndedTrial]


def rollout(
    ended: EndedTrial, *, group: str = "g", kind: str = "admin-max", **more: Any
) -> Rollout:
    trained = ended.verdict is not None
    failure = Failure(
        outcome=ended.outcome,
        treatment=Treatment.TRAIN if trained else Treatment.MASK,
        reason="",
    )
    retried = more.pop("retried", ())
    finished = Finished(
        ended=ended,
        failure=failure,
        attempt=cast(Any, SimpleNamespace()),
        retried=retried,
    )
    reward = ended.verdict.score if ended.verdict else None
    return Rollout(
        finished=finished,
        failure=failure,
        group=group,
        kind=kind,
        seconds=1.0,
        reward=reward,
        trained=trained,
        **more,
    )


def output(sums: dict[str, float], rows: int) -> Any:
    return {
        "prompt_token_ids": [[1]] * rows,
        "response_ids": [[1]] * rows,
        "rewards": [0.0] * rows,
        "loss_masks": [[1]] * rows,
        "stop_reasons": None,
        "rollout_logprobs": None,
        "rollout_metrics": sums,
    }


def all_kinds_of_rollouts(make_ended: MakeEnded) -> list[Rollout]:
    retried = tuple(
        Failure(outcome=outcome, treatment=Treatment.RETRY, reason="") for outcome in Outcome
    )
    terms = (RewardTerm(name="min_turns", value=0.5), RewardTerm(name="mean", value=0.25))
    return [
        *(rollout(make_ended(outcome), terms=terms, retried=retried) for outcome in Outcome),
        rollout(make_ended(Outcome.ENGINE_ERROR, None, tokens=False)),
    ]


def test_no_key_holds_a_word_that_skyrl_folds(make_ended: MakeEnded) -> None:
    sums = rollout_sums(all_kinds_of_rollouts(make_ended), pass_score=1.0, training=True)
    assert len(sums) > 40
    assert [key for key in sums if FOLDED.search(key)] == []


def test_every_metric_of_two_groups_is_that_of_all_rows(make_ended: MakeEnded) -> None:
    rollouts = all_kinds_of_rollouts(make_ended)
    first, second = rollouts[:5], rollouts[5:]
    folded = concatenate_generator_outputs(
        [
            output(rollout_sums(part, pass_score=1.0, training=True), len(part))
            for part in (first, second)
        ]
    )["rollout_metrics"]
    together = rollout_sums(rollouts, pass_score=1.0, training=True)
    together |= {"apex/sum/groups/all": 2.0}  # the same group, counted by each call
    assert {key: folded[key] for key in together} == pytest.approx(together)


def test_ratios_weigh_groups_by_their_trials(make_ended: MakeEnded) -> None:
    many = [rollout(make_ended(score=0.0)) for _ in range(9)]
    one = [rollout(make_ended(score=1.0))]
    folded = concatenate_generator_outputs(
        [
            output(rollout_sums(part, pass_score=1.0, training=True), len(part))
            for part in (many, one)
        ]
    )["rollout_metrics"]
    metrics = with_ratios(folded)
    assert metrics["apex/reward"] == pytest.approx(0.1)
    assert metrics["apex/pass_at_1"] == pytest.approx(0.1)
    assert metrics["apex/turns"] == 2.0
    assert metrics["apex/tool_success"] == 0.5
    assert metrics["apex/seconds/agent"] == 1.5


def test_a_partial_score_is_no_pass(make_ended: MakeEnded) -> None:
    sums = rollout_sums([rollout(make_ended(score=0.9))], pass_score=1.0, training=True)
    assert with_ratios(sums)["apex/pass_at_1"] == 0.0
    sums = rollout_sums([rollout(make_ended(score=0.9))], pass_score=0.9, training=True)
    assert with_ratios(sums)["apex/pass_at_1"] == 1.0


def test_a_fault_counts_against_the_lower_bound_only(make_ended: MakeEnded) -> None:
    rollouts = [
        rollout(make_ended(score=1.0)),
        rollout(make_ended(Outcome.VERIFIER_ERROR, None)),
    ]
    metrics = with_ratios(rollout_sums(rollouts, pass_score=1.0, training=True))
    assert metrics["apex/pass_at_1"] == 1.0
    assert metrics["apex/pass_at_1_lower_bound"] == 0.5
    assert metrics["apex/graded_fraction"] == 0.5
    assert metrics["apex/failed_fraction"] == 0.5
    assert metrics["apex/sum/outcome/verifier_error"] == 1.0


def test_nothing_graded_is_no_rate_of_zero(make_ended: MakeEnded) -> None:
    metrics = with_ratios(
        rollout_sums(
            [rollout(make_ended(Outcome.SETUP_ERROR, None))], pass_score=1.0, training=True
        )
    )
    assert "apex/pass_at_1" not in metrics
    assert "apex/reward" not in metrics


@pytest.mark.parametrize(("training", "trials", "reward"), [(True, 1, 0.25), (False, 2, 1.25)])
def test_masked_rows_have_a_score_but_no_reward_in_training(
    make_ended: MakeEnded, training: bool, trials: int, reward: float
) -> None:
    masked = rollout(make_ended(score=1.0), terms=(RewardTerm(name="turns", value=1.0),))
    masked.trained = False
    trained = rollout(make_ended(score=0.25), terms=(RewardTerm(name="turns", value=0.5),))
    sums = rollout_sums([masked, trained], pass_score=1.0, training=training)
    assert sums["apex/sum/rewarded/trials"] == trials
    assert sums["apex/sum/rewarded/reward"] == reward
    assert sums["apex/sum/reward/turns"] == (0.5 if training else 1.5)
    assert sums["apex/sum/graded/trials"] == 2
    assert sums["apex/sum/graded/score"] == 1.25
    assert sums["apex/sum/graded/passed"] == 1


def test_ratios_are_made_behind_any_prefix() -> None:
    metrics = with_ratios(
        {
            "eval/all/apex/sum/graded/passed": 1.0,
            "eval/all/apex/sum/graded/trials": 4.0,
            "apex_kept/sum/graded/passed": 1.0,
            "apex_kept/sum/graded/trials": 2.0,
        }
    )
    assert metrics["eval/all/apex/pass_at_1"] == 0.25
    assert metrics["apex_kept/pass_at_1"] == 0.5


def test_the_evaluation_report_names_every_world_kind(make_ended: MakeEnded) -> None:
    rollouts = [
        rollout(make_ended(score=1.0), kind="law"),
        rollout(make_ended(Outcome.VERIFIER_ERROR, None), kind="law"),
        rollout(make_ended(score=0.5), kind="admin"),
    ]
    sums = rollout_sums(rollouts, pass_score=1.0, training=False)
    report = evaluation_report({f"eval/all/{key}": value for key, value in sums.items()})
    lines = {line.split()[0]: line.split()[1:] for line in report.splitlines()}
    assert lines["all"] == ["2/3", "0.500", "0.333", "0.750"]
    assert lines["law"] == ["1/2", "1.000", "0.500", "1.000"]
    assert lines["admin"] == ["1/1", "0.000", "0.000", "0.500"]
    assert "verifier_error 1" in report


def test_ratios_go_by_the_name_that_was_given(make_ended: MakeEnded) -> None:
    sums = rollout_sums([rollout(make_ended())], pass_score=1.0, training=True)
    assert "apex/kind/admin-max/pass_at_1" in with_ratios(sums)
    assert "apex/server/admin/success" in with_ratios(sums)


def test_metric_keys_stay_apart() -> None:
    names = ["admin", "maximum", "average", "mean", "mail", "m.ain"]
    assert len({metric_key(name) for name in names}) == len(names)
