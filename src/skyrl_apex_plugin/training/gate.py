"""The logprob gate in front of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .config import GateConfig

if TYPE_CHECKING:
    from skyrl_apex_plugin.tito.logprob_gate import GateReport

LATER_RATE = 0.05
"""Share of later steps checked by default, where they are sampled from the recomputing weights."""


class LogprobGate:
    """Compares the engine's logprobs with the trainer's: in the first steps, then in a share.

    A shifted mask, another temperature, other weights or other tokens show here, before they
    train anything.

    :param stale: whether later steps are sampled from other weights than those that recompute
        them, so that none are checked by default.
    :param record: gets every comparison, also one that ends the run.
    """

    def __init__(
        self,
        settings: GateConfig,
        *,
        stale: bool = False,
        record: Callable[[GateReport], None] = lambda report: None,
    ) -> None:
        self._settings = settings
        self._record = record
        self._rate = (0.0 if stale else LATER_RATE) if settings.rate is None else settings.rate
        self._checked = 0

    def due(self, step: int) -> bool:
        """Whether training step ``step`` (from 1) is to be checked; by its number alone, once
        the first steps have been."""
        steps = self._settings.steps
        if steps < 0 or self._checked < steps:
            return True
        return math.floor(step * self._rate) > math.floor((step - 1) * self._rate)

    def check(self, training_input: Any, recomputed: Any) -> dict[str, float]:
        """Metrics of the comparison over trained tokens; a batch without any stays due.

        :param training_input: SkyRL's batch with ``rollout_logprobs`` and ``loss_mask``.
        :param recomputed: the policy's logprobs, of the same shape.

        Raises ``LogprobMismatch`` when a limit is exceeded.
        """
        from skyrl_apex_plugin.tito.logprob_gate import compare_logprobs

        stored, mask = training_input["rollout_logprobs"], training_input["loss_mask"] > 0
        if not bool(mask.any()):
            return {}
        report = compare_logprobs(stored, recomputed, mask)
        self._checked += 1
        self._record(report)
        report.require(mean_limit=self._settings.mean_limit, max_limit=self._settings.max_limit)
        return {"apex/gate/mean_abs_diff": report.mean, "apex/gate/max_abs_diff": report.max}
