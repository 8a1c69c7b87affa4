"""From a graded trajectory to the reward that is trained on.

The order, which never changes:

1. the score of the verdict,
2. the terms that ``apex.rewards.terms`` configures, in the order they are written there, then
   the terms of every plugin's ``apex_reward_terms``, in plugin order,
3. the first plugin's ``apex_combine_reward``, else score plus the sum of all terms,
4. the bounds of ``apex.rewards.clip``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skyrl_apex_hookspecs import RewardTerm, Trajectory, VerifierError
from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.discovery.hooks import Implementation, combine_reward, reward_terms
from skyrl_apex_plugin.files import write_atomic


class ShapedReward(NamedTuple):
    """``reward`` is what is trained on; ``terms`` is what it was made of beside the score."""

    reward: float
    terms: tuple[RewardTerm, ...]


class RewardShaper:
    """Shapes rewards as ``apex.rewards`` says. Built once in each process; terms may keep state.

    :param terms: name of a registered reward term (or ``module:Class``) to its keyword arguments.
    :param clip: lowest and highest reward; ``None`` leaves it unbounded.

    Raises ``ValueError`` naming the key for bounds or arguments that do not fit, and
    ``UnknownName`` for a term that nobody registered.
    """

    def __init__(
        self,
        *,
        terms: Mapping[str, Mapping[str, Any] | None] | None = None,
        clip: Sequence[float] | None = None,
    ) -> None:
        if clip is not None and (len(clip) != 2 or not clip[0] <= clip[1]):
            raise ValueError(f"apex.rewards.clip={list(clip)}: expected [lowest, highest]")
        self._clip = None if clip is None else (float(clip[0]), float(clip[1]))
        self._configured = [_configured(name, kwargs) for name, kwargs in (terms or {}).items()]

    def shape(self, trajectory: Trajectory) -> ShapedReward:
        """The reward of a trajectory whose verdict has a score.

        Raises ``VerifierError`` naming the plugin or term that is at fault.
        """
        if trajectory.verdict is None:
            raise VerifierError(f"trajectory of task {trajectory.task.task_id!r} has no verdict")
        terms = reward_terms(trajectory, configured=self._configured)
        reward = combine_reward(trajectory.verdict, terms)
        if self._clip is not None:
            low, high = self._clip
            reward = min(max(reward, low), high)
        return ShapedReward(reward, terms)


def shape_reward(trajectory: Trajectory) -> ShapedReward:
    """The reward with what plugins give and nothing configured. See :class:`RewardShaper`."""
    return RewardShaper().shape(trajectory)


def token_rewards(shaped: ShapedReward, response_length: int) -> list[float] | None:
    """Rewards by response token, or ``None`` when no term gives any (one number is enough then).

    The tokens' rewards add up to ``shaped.reward``: what no term places on a token (the score,
    plain terms, clipping) falls on the last one.
    """
    placed = [term.per_token for term in shaped.terms if term.per_token is not None]
    if not placed:
        return None
    rewards = [sum(at_token) for at_token in zip(*placed, strict=True)]
    if len(rewards) != response_length or not rewards:
        raise VerifierError(
            f"per-token rewards for {len(rewards)} tokens, the response has {response_length}"
        )
    rewards[-1] += shaped.reward - sum(rewards)
    return rewards


def write_reward(trial_dir: Path, score: float, shaped: ShapedReward) -> None:
    """Write ``verifier/reward_terms.json``: the score, each term, and the reward, atomically."""
    document = {
        "schema": 1,
        "score": score,
        "terms": [{"name": term.name, "value": term.value} for term in shaped.terms],
        "reward": shaped.reward,
    }
    write_atomic(trial_dir / "verifier" / "reward_terms.json", json.dumps(document, indent=1))


def _configured(name: str, kwargs: Mapping[str, Any] | None) -> Implementation:
    """A configured term as one more implementation of the hook: it is checked like the rest."""
    try:
        term = resolve("reward", name)(**(kwargs or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"apex.rewards.terms.{name}: {error}") from error
    return Implementation(
        hook="apex_reward_terms",
        plugin=f"apex.rewards.terms.{name}",
        function=term,
        arguments=("trajectory",),
    )
