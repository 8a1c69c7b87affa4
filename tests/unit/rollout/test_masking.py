"""Masked rows against SkyRL's own advantage code."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config.config import AlgorithmConfig

from skyrl_apex_plugin.rollout.masking import (
    check_estimator,
    fill_masked_rewards,
    mask_small_groups,
    needs_live_rows,
)
from skyrl_apex_plugin.training.trainer import leave_out_masked_rows

LENGTH = 4


def advantages(
    rewards: list[float], groups: list[str], estimator: str, *, std: bool
) -> list[float]:
    """SkyRL's advantage of each row; the same at every token for outcome estimators."""
    token_rewards = torch.zeros(len(rewards), LENGTH)
    token_rewards[:, -1] = torch.tensor(rewards)
    result, _ = ppo_utils.compute_advantages_and_returns(
        token_level_rewards=token_rewards,
        response_mask=torch.ones(len(rewards), LENGTH),
        index=np.array(groups),
        adv_estimator=estimator,
        config=AlgorithmConfig(),
        grpo_norm_by_std=std,
    )
    return result[:, 0].tolist()


def batch(rewards: list[float], groups: list[str], trained: list[bool]) -> Any:
    """What the trainer's ``compute_advantages_and_returns`` leaves, as far as it matters."""
    token_rewards = torch.zeros(len(rewards), LENGTH)
    token_rewards[:, -1] = torch.tensor(rewards)

    class Batch(dict[str, Any]):
        metadata: dict[str, Any]

    made = Batch(
        rewards=token_rewards,
        response_mask=torch.ones(len(rewards), LENGTH),
        loss_mask=torch.tensor([[int(bit)] * LENGTH for bit in trained]),
        advantages=torch.full((len(rewards), LENGTH), torch.nan),
        returns=torch.full((len(rewards), LENGTH), torch.nan),
    )
    made.metadata = {"uids": groups}
    return made


def test_masked_sample_does_not_vote() -> None:
    filled = fill_masked_rewards(["g"] * 3, [1.0, 3.0, None])
    assert filled == [1.0, 3.0, 2.0]
    assert advantages(filled, ["g"] * 3, "grpo", std=False) == pytest.approx([-1.0, 1.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("estimator", "std"), [("grpo", False), ("grpo", True), ("rloo", False), ("maxrl", False)]
)
def test_masked_rows_are_as_if_they_were_not_there(seed: int, estimator: str, std: bool) -> None:
    rng = random.Random(seed)
    groups = [f"g{i}" for i in range(5) for _ in range(6)]
    rewards = [rng.choice([0.0, 0.25, 1.0, rng.random()]) for _ in groups]
    trained = mask_small_groups(groups, [rng.random() < 0.6 for _ in groups], 2)
    kept = [i for i, bit in enumerate(trained) if bit]
    alone = advantages([rewards[i] for i in kept], [groups[i] for i in kept], estimator, std=std)

    filled = fill_masked_rewards(
        groups, [r if bit else None for r, bit in zip(rewards, trained, strict=True)]
    )
    if needs_live_rows(estimator, norm_by_std=std):
        data = batch(filled, groups, trained)
        algorithm = SimpleNamespace(
            advantage_estimator=estimator, grpo_norm_by_std=std, gamma=1.0, lambd=1.0
        )
        leave_out_masked_rows(data, algorithm)
        together = data["advantages"][:, 0].tolist()
        assert all(together[i] == 0.0 for i, bit in enumerate(trained) if not bit)
    else:
        together = advantages(filled, groups, estimator, std=std)

    assert [together[i] for i in kept] == pytest.approx(alone, abs=1e-4)


def test_the_mean_alone_would_be_wrong_where_rows_are_counted() -> None:
    """The reason for leaving rows out: with std and with RLOO the filled mean still counts."""
    groups, filled = ["g"] * 3, [1.0, 3.0, 2.0]
    for estimator, std in (("grpo", True), ("rloo", False)):
        alone = advantages([1.0, 3.0], ["g"] * 2, estimator, std=std)
        assert advantages(filled, groups, estimator, std=std)[:2] != pytest.approx(alone, rel=0.05)


def test_a_group_without_survivors_moves_nothing() -> None:
    filled = fill_masked_rewards(["a", "a", "b", "b"], [None, None, 1.0, 0.0])
    assert filled == [0.0, 0.0, 1.0, 0.0]
    data = batch(filled, ["a", "a", "b", "b"], [False, False, True, True])
    leave_out_masked_rows(
        data,
        SimpleNamespace(advantage_estimator="rloo", grpo_norm_by_std=False, gamma=1, lambd=1),
    )
    assert data["advantages"][:, 0].tolist() == [0.0, 0.0, 1.0, -1.0]


def test_a_lone_survivor_has_no_baseline() -> None:
    assert mask_small_groups(["a", "a", "b", "b"], [True, False, True, True], 2) == [
        False,
        False,
        True,
        True,
    ]


def test_estimators_without_an_exact_treatment_are_refused() -> None:
    for estimator in ("gae", "reinforce++", "somebody-elses"):
        with pytest.raises(ValueError, match="masked rows would move"):
            check_estimator(estimator, masks=True)
        check_estimator(estimator, masks=False)
    for estimator in ("grpo", "rloo", "maxrl"):
        check_estimator(estimator, masks=True)


def test_rewards_of_other_groups_stay_what_they_are() -> None:
    rewards = json.loads("[0.1, 0.2, null, 0.7]")
    assert fill_masked_rewards(["a", "a", "a", "b"], rewards)[3] == 0.7
