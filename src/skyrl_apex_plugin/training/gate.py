"""The logprob gate in front of a training step."""

from __future__ import annotations

from typing import Any

from .config import GateConfig


class LogprobGate:
    """Compares the engine's logprobs with the trainer's for the first steps of a run.

    A shifted mask, another temperature, other weights or other tokens show here, before they
    train anything.
    """

    def __init__(self, settings: GateConfig) -> None:
        self._settings = settings
        self._checked = 0

    def due(self) -> bool:
        """Whether the coming step is to be checked."""
        steps = self._settings.steps
        return steps < 0 or self._checked < steps

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
        report.require(mean_limit=self._settings.mean_limit, max_limit=self._settings.max_limit)
        return {"apex/gate/mean_abs_diff": report.mean, "apex/gate/max_abs_diff": report.max}
