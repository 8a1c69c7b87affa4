"""The table of treatments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skyrl_apex_hookspecs import EndedTrial, Outcome, Treatment
from skyrl_apex_plugin.rollout.outcomes import GRADED, FailurePolicy

MakeEnded = Callable[..., EndedTrial]

INFRASTRUCTURE = [
    Outcome.SETUP_ERROR,
    Outcome.TOOL_SESSION_LOST,
    Outcome.ENGINE_ERROR,
    Outcome.VERIFIER_ERROR,
]


@pytest.mark.parametrize("outcome", sorted(GRADED))
def test_what_the_policy_brought_about_is_trained(outcome: Outcome, make_ended: MakeEnded) -> None:
    assert FailurePolicy().classify(make_ended(outcome)).treatment is Treatment.TRAIN


@pytest.mark.parametrize("outcome", INFRASTRUCTURE)
def test_infrastructure_is_retried_twice_then_masked(
    outcome: Outcome, make_ended: MakeEnded
) -> None:
    policy = FailurePolicy()
    treatments = [
        policy.classify(make_ended(outcome, None, attempt=attempt)).treatment
        for attempt in range(3)
    ]
    assert treatments == [Treatment.RETRY, Treatment.RETRY, Treatment.MASK]


@pytest.mark.parametrize("outcome", [Outcome.AGENT_TIMEOUT, Outcome.TOKEN_ERROR])
def test_timeouts_and_token_faults_are_masked_at_once(
    outcome: Outcome, make_ended: MakeEnded
) -> None:
    assert FailurePolicy().classify(make_ended(outcome, None)).treatment is Treatment.MASK


def test_every_outcome_has_a_treatment(make_ended: MakeEnded) -> None:
    for outcome in Outcome:
        FailurePolicy().classify(make_ended(outcome))


def test_the_config_changes_the_table(make_ended: MakeEnded) -> None:
    policy = FailurePolicy.from_settings(
        {"context_length": "mask", "agent_timeout": "retry"}, max_retries=1
    )
    assert policy.classify(make_ended(Outcome.CONTEXT_LENGTH)).treatment is Treatment.MASK
    timeout = make_ended(Outcome.AGENT_TIMEOUT, None)
    assert policy.classify(timeout).treatment is Treatment.RETRY


def test_overlong_filtering_masks_what_was_cut_off(make_ended: MakeEnded) -> None:
    policy = FailurePolicy.from_settings(mask_overlong=True)
    assert policy.classify(make_ended(Outcome.LENGTH)).treatment is Treatment.MASK
    assert policy.classify(make_ended(Outcome.COMPLETE)).treatment is Treatment.TRAIN


def test_a_graded_outcome_without_score_or_tokens_is_never_trained(make_ended: MakeEnded) -> None:
    for ended in (make_ended(score=None), make_ended(tokens=False)):
        failure = FailurePolicy().classify(ended)
        assert failure.treatment is Treatment.MASK
        assert "nothing to train on" in failure.reason


@pytest.mark.parametrize(
    ("treatments", "message"),
    [
        ({"lenght": "mask"}, "no outcome 'lenght'; known: complete"),
        ({"length": "drop"}, r"treatments\.length: no treatment 'drop'"),
        ({"verifier_error": "train"}, "no verdict to train on"),
    ],
)
def test_a_wrong_table_is_refused_with_the_key(treatments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FailurePolicy.from_settings(treatments)
