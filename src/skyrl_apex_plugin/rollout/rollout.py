"""A trial as a row of SkyRL's batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skyrl_apex_hookspecs import EndedTrial, Failure, RewardTerm, Trajectory, Treatment

from .runner import Finished


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One finished trial with what is made of it. ``trained`` may still be taken back when too
    few of its group survive."""

    finished: Finished
    failure: Failure
    group: str
    """The prompt's ``uid``: rows of one group share a baseline."""
    kind: str
    """The world kind, for reports."""
    seconds: float
    """Wall time with all attempts, waiting included."""
    reward: float | None = None
    """What is trained on; ``None`` for a row without a verdict."""
    token_rewards: list[float] | None = None
    """By response token, where a reward term gives them."""
    terms: tuple[RewardTerm, ...] = ()
    trained: bool = False

    @property
    def ended(self) -> EndedTrial:
        return self.finished.ended

    @property
    def retried(self) -> Sequence[Failure]:
        return self.finished.retried

    @property
    def score(self) -> float | None:
        """The grader's score, unless the row's treatment says that there is nothing to count."""
        if self.failure.treatment not in (Treatment.TRAIN, Treatment.MASK):
            return None
        verdict = self.ended.verdict
        return verdict.score if verdict is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens of a batch row; the three response fields have equal, non-zero length."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]


def trained_row(trajectory: Trajectory) -> Row:
    """All tokens up to the last sampled one: what was observed after it predicts nothing."""
    start, end = trajectory.prompt_length, trajectory.loss_mask.rindex(1) + 1
    return Row(
        prompt_ids=list(trajectory.tokens[:start]),
        response_ids=list(trajectory.tokens[start:end]),
        loss_mask=list(trajectory.loss_mask[start:end]),
        logprobs=list(trajectory.logprobs[start:end]),
    )


def masked_row(trajectory: Trajectory | None, filler_id: int) -> Row:
    """The shortest row that stands for a masked trial: its prompt, and one token that is not
    trained on. The whole trajectory stays in the trial's directory; a full window here would
    cost a forward and a backward pass for nothing."""
    prompt = list(trajectory.tokens[: trajectory.prompt_length]) if trajectory else [filler_id]
    return Row(prompt_ids=prompt, response_ids=[filler_id], loss_mask=[0], logprobs=[0.0])


def fit_token_rewards(rewards: Sequence[float], length: int) -> list[float]:
    """Rewards of a response cut to ``length``: what fell on the tail goes to the last token."""
    fitted = list(rewards[:length])
    fitted[-1] += sum(rewards[length:])
    return fitted
