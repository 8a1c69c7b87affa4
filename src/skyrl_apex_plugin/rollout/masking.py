"""Rewards of masked rows, so that they move nothing.

SkyRL averages the rewards of all rows of a group, whatever their loss mask. A masked row that
carries the mean of the others leaves that mean where it is, which is exact for estimators that
only subtract or divide by it. Estimators that also count the rows need SkyRL's trainer to leave
masked rows out (``training/trainer.py``); for the others no exact treatment exists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import fsum

EXACT_WITH_MEAN = frozenset({"maxrl"})
"""Estimators for which the mean of the survivors is exact; ``grpo`` without std is another."""

EXACT_WITH_LIVE_ROWS = frozenset({"grpo", "rloo", "maxrl"})
"""Estimators that depend on nothing but the rewards of a group's rows."""


def check_estimator(estimator: str, *, masks: bool) -> None:
    """Refuse an estimator for which masked rows would move other rows' advantages.

    Raises ``ValueError`` that says what to do.
    """
    if masks and estimator not in EXACT_WITH_LIVE_ROWS:
        known = ", ".join(sorted(EXACT_WITH_LIVE_ROWS))
        raise ValueError(
            f"trainer.algorithm.advantage_estimator={estimator!r}: masked rows would move the "
            f"advantages of trained ones. Use one of {known}."
        )


def needs_live_rows(estimator: str, *, norm_by_std: bool) -> bool:
    """Whether the estimator counts rows, so that masked ones must be left out altogether."""
    return estimator not in EXACT_WITH_MEAN and (estimator != "grpo" or norm_by_std)


def mask_small_groups(
    groups: Sequence[Hashable], trained: Sequence[bool], minimum: int
) -> list[bool]:
    """Which rows stay trained when a group needs ``minimum`` of them.

    ``groups`` and ``trained`` are parallel: the group of each row, and whether it is trained.
    """
    survivors: dict[Hashable, int] = defaultdict(int)
    for group, is_trained in zip(groups, trained, strict=True):
        survivors[group] += is_trained
    return [
        is_trained and survivors[group] >= minimum
        for group, is_trained in zip(groups, trained, strict=True)
    ]


def fill_masked_rewards(groups: Sequence[Hashable], rewards: Sequence[float | None]) -> list[float]:
    """Rewards with each ``None`` replaced by the mean over its group's other rows.

    A group without any reward gets 0.0 throughout: all its rows are masked, so it moves nothing.
    """
    known: dict[Hashable, list[float]] = defaultdict(list)
    for group, reward in zip(groups, rewards, strict=True):
        if reward is not None:
            known[group].append(reward)
    means = {group: fsum(values) / len(values) for group, values in known.items()}
    return [
        means.get(group, 0.0) if reward is None else reward
        for group, reward in zip(groups, rewards, strict=True)
    ]
