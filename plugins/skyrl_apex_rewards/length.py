"""Terms that price tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from skyrl_apex_hookspecs import RewardTerm, Trajectory, VerifierError

from .settings import require_at_least_zero, require_positive


@dataclass(kw_only=True)
class AdaptiveLength:
    """A price for tokens that follows how often a task is solved.

    ``- weight * tokens / scale * max(solve rate, floor)``, never below ``-cap``: where the policy
    already succeeds, length is dear; on a task that it cannot solve yet, thinking stays cheap.
    Assistant tokens (sampled) and environment tokens (tool output) have a weight each and give a
    term each: ``length_assistant`` and ``length_environment``.

    The solve rate of a task is the moving average of its scores in this process, the current one
    included; scores outside 0 to 1 count as 0 or 1.

    :param assistant: weight of assistant tokens; 0 leaves the term out.
    :param environment: weight of environment tokens; 0 leaves the term out.
    :param scale: tokens that cost one weight at a solve rate of 1.
    :param memory: number of trials that the moving average looks back on.
    :param floor: least solve rate that is priced.
    :param cap: most that each term takes.
    """

    assistant: float = 0.1
    environment: float = 0.0
    scale: int = 32_768
    memory: int = 16
    floor: float = 0.125
    cap: float = 0.5
    _solve_rates: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_at_least_zero(
            assistant=self.assistant, environment=self.environment, floor=self.floor
        )
        require_positive(scale=self.scale, memory=self.memory, cap=self.cap)

    def __call__(self, trajectory: Trajectory) -> list[RewardTerm]:
        price = max(self._solve_rate(trajectory), self.floor) / self.scale
        response = len(trajectory.tokens) - trajectory.prompt_length
        sampled = sum(trajectory.loss_mask)
        parts = (
            ("length_assistant", self.assistant, sampled),
            ("length_environment", self.environment, response - sampled),
        )
        return [
            RewardTerm(name=name, value=-min(weight * price * tokens, self.cap))
            for name, weight, tokens in parts
            if weight
        ]

    def _solve_rate(self, trajectory: Trajectory) -> float:
        task, score = trajectory.task.task_id, min(max(_score(trajectory), 0.0), 1.0)
        before = self._solve_rates.get(task, score)
        self._solve_rates[task] = before + (score - before) / self.memory
        return self._solve_rates[task]


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """A soft limit on the whole trajectory: 0 up to ``limit - buffer`` tokens, then down in a
    straight line to ``-weight`` at ``limit`` and beyond.

    :param limit: tokens, prompt included; by default the context window of the trajectory.
    :param buffer: tokens over which the penalty grows.
    :param weight: the whole penalty.
    """

    limit: int | None = None
    buffer: int = 4096
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_positive(limit=self.limit, buffer=self.buffer, weight=self.weight)

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        limit = self.limit or trajectory.max_context
        if limit is None:
            raise VerifierError(
                "the trajectory does not say how large its context window is: set "
                "apex.rewards.terms.overlong.limit"
            )
        over = (len(trajectory.tokens) - (limit - self.buffer)) / self.buffer
        return RewardTerm(name="overlong", value=-self.weight * min(max(over, 0.0), 1.0))


def _score(trajectory: Trajectory) -> float:
    verdict = trajectory.verdict
    if verdict is None or verdict.score is None:
        raise VerifierError("reward terms need a graded trajectory")
    return verdict.score
