"""Terms that look at what the agent did, turn by turn."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from skyrl_apex_hookspecs import RewardTerm, Trajectory, Turn

from .settings import require_at_least_zero, require_positive


@dataclass(frozen=True, kw_only=True)
class ToolSuccess:
    """``weight`` times the share of tool calls that succeeded; 0 without any call.

    A share, not a count: calling more tools does not earn more. Calls that never reached a tool
    (unknown name, missing argument) count as failed.
    """

    weight: float = 0.05

    def __post_init__(self) -> None:
        require_positive(weight=self.weight)

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        calls = [call for turn in trajectory.turns for call in turn.calls]
        good = sum(call.ok and call.dispatched for call in calls)
        return RewardTerm(name="tool_success", value=self.weight * good / max(len(calls), 1))


@dataclass(frozen=True, kw_only=True)
class Turns:
    """``-weight`` for each turn after the first ``free`` ones, at most ``-cap`` in all.

    :param per_token: place each turn's penalty on its last sampled token, which gives the
        trajectory token-level rewards.
    """

    weight: float = 0.01
    free: int = 0
    cap: float = 0.5
    per_token: bool = False

    def __post_init__(self) -> None:
        require_positive(weight=self.weight, cap=self.cap)
        require_at_least_zero(free=self.free)

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        return _penalty(
            "turns",
            trajectory,
            trajectory.turns[self.free :],
            self.weight,
            self.cap,
            self.per_token,
        )


@dataclass(frozen=True, kw_only=True)
class Format:
    """``-weight`` for each malformed turn (one that drew a correction), at most ``-cap`` in all.

    :param per_token: place each penalty on the faulty turn's last sampled token.
    """

    weight: float = 0.1
    cap: float = 0.5
    per_token: bool = False

    def __post_init__(self) -> None:
        require_positive(weight=self.weight, cap=self.cap)

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        faulty = [turn for turn in trajectory.turns if turn.malformed]
        return _penalty("format", trajectory, faulty, self.weight, self.cap, self.per_token)


def _penalty(
    name: str,
    trajectory: Trajectory,
    turns: Iterable[Turn],
    weight: float,
    cap: float,
    per_token: bool,
) -> RewardTerm:
    """The penalty for ``turns``; spread over their last tokens where that is asked for."""
    turns = list(turns)
    total = min(weight * len(turns), cap)
    if not per_token or not turns:
        return RewardTerm(name=name, value=-total)
    rewards = array("f", bytes(4 * (len(trajectory.tokens) - trajectory.prompt_length)))
    for turn in turns:
        rewards[turn.end - 1 - trajectory.prompt_length] -= total / len(turns)
    return RewardTerm(name=name, value=sum(rewards), per_token=rewards)
