"""Terms that turn the mean over criteria into something stricter.

Both take the score away and put their own in its place, so use one of them, not both.
"""

from __future__ import annotations

from dataclasses import dataclass

from skyrl_apex_hookspecs import CriterionResult, RewardTerm, Trajectory, Verdict, VerifierError


@dataclass(frozen=True, kw_only=True)
class MustHave:
    """When a primary criterion fails, the score becomes ``floor``; otherwise nothing changes.

    A task that names no primary criterion is left alone.

    :param threshold: score from which a criterion holds.
    :param floor: the score of a trajectory that misses a primary criterion.
    """

    threshold: float = 1.0
    floor: float = 0.0

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        verdict = _graded(trajectory)
        missed = any(not _holds(each, self.threshold) for each in verdict.criteria if each.primary)
        lost = min(self.floor - (verdict.score or 0.0), 0.0) if missed else 0.0
        return RewardTerm(name="must_have", value=lost)


@dataclass(frozen=True, kw_only=True)
class AllOrNothing:
    """The score becomes ``full`` when every criterion holds, and 0 otherwise.

    Without criteria in the verdict its score is the one criterion.

    :param threshold: score from which a criterion holds.
    """

    threshold: float = 1.0
    full: float = 1.0

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        verdict = _graded(trajectory)
        score = verdict.score or 0.0
        if verdict.criteria:
            whole = all(_holds(each, self.threshold) for each in verdict.criteria)
        else:
            whole = score >= self.threshold
        return RewardTerm(name="all_or_nothing", value=(self.full if whole else 0.0) - score)


def _graded(trajectory: Trajectory) -> Verdict:
    if trajectory.verdict is None or trajectory.verdict.score is None:
        raise VerifierError("reward terms need a graded trajectory")
    return trajectory.verdict


def _holds(criterion: CriterionResult, threshold: float) -> bool:
    """Whether a criterion is met. One that the judge failed on cannot be told: no reward then."""
    if criterion.score is None:
        raise VerifierError(f"criterion {criterion.criterion_id!r} was not graded")
    return criterion.score >= threshold
