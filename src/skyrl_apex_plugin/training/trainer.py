"""SkyRL's two trainers with what exact masking and the logprob gate need of them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer

from skyrl_apex_plugin import embedded
from skyrl_apex_plugin.data.dataset import in_dataset_order
from skyrl_apex_plugin.rollout.masking import needs_live_rows
from skyrl_apex_plugin.rollout.metrics import PREFIX
from skyrl_apex_plugin.rollout.record import RunRecord

from .config import ApexTrainConfig
from .experiment import is_embedded
from .gate import LogprobGate
from .run_dir import run_dir_of


class TooManyFailures(RuntimeError):
    """A step in which more trials failed than ``apex.failures.max_failed_fraction`` allows."""


class ApexTrainerMixin:
    """Overrides common to the synchronous and the fully asynchronous trainer."""

    cfg: ApexTrainConfig
    all_metrics: dict[str, Any]
    generator: Any
    global_step: int
    train_dataloader: Any
    train_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        record = RunRecord(Path(run_dir_of(self.cfg)), keep=self.cfg.apex.record.keep)
        self._gate = LogprobGate(
            self.cfg.apex.sampler.gate,
            stale=self.cfg.trainer.fully_async.enabled,
            record=lambda report: record.gate(self.global_step, report.positions),
        )

    async def train(self) -> None:
        """SkyRL's loop. Trials that still run when it ends, however it ends, are stopped first:
        a closing event loop would cancel their clean-up along with them."""
        gc.freeze()  # looking through all modules again and again stops every trial for a second
        try:
            await super().train()  # type: ignore[misc]
        finally:
            await self.generator.aclose()

    def build_models(self, *stock_workers: Any) -> None:
        """SkyRL's workers: on a CPU their counterparts, under FSDP with tied weights kept tied."""
        if is_embedded(self.cfg):
            stock_workers = embedded.workers()
        elif self.cfg.trainer.strategy == "fsdp":
            from .fsdp_workers import workers

            stock_workers = workers()
        super().build_models(*stock_workers)  # type: ignore[misc]

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()  # type: ignore[misc]
        if self.train_dataset is not None and self.train_dataset.ordered:
            self.train_dataloader = in_dataset_order(self.train_dataloader)

    def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
        """The last stop before a step trains: too many failures, or wrong logprobs, end here.

        Raises :class:`TooManyFailures`, and ``LogprobMismatch`` from the gate.
        """
        refuse_failed_step(
            self.all_metrics,
            limit=self.cfg.apex.failures.max_failed_fraction,
            step=self.global_step,
        )
        training_input = super().fwd_logprobs_values_reward(training_input)  # type: ignore[misc]
        if self._gate.due(self.global_step):
            recomputed = training_input.get("action_log_probs")
            if recomputed is None:  # the loss needs none, so SkyRL skipped that forward pass
                recomputed = self._policy_logprobs(training_input)
            self.all_metrics.update(self._gate.check(training_input, recomputed))
        return training_input

    def _policy_logprobs(self, training_input: Any) -> torch.Tensor:
        forward = training_input.select(
            keys=["sequences", "attention_mask"], metadata_keys=["response_length"]
        )
        boundaries = training_input.metadata.get("policy_mini_batch_boundaries")
        logprobs: torch.Tensor = self._execute_forward_pass(  # type: ignore[attr-defined]
            "policy", forward, key="logprobs", mini_batch_boundaries=boundaries
        )
        return logprobs[: len(training_input["sequences"])]

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """SkyRL's advantages, of trained rows alone where the estimator counts rows."""
        algorithm = self.cfg.trainer.algorithm
        data = super().compute_advantages_and_returns(data)  # type: ignore[misc]
        if needs_live_rows(algorithm.advantage_estimator, norm_by_std=algorithm.grpo_norm_by_std):
            leave_out_masked_rows(data, algorithm)
        if self.cfg.apex.control == "zero_advantages":
            data["advantages"] = torch.zeros_like(data["advantages"])
        return data


class ApexTrainer(ApexTrainerMixin, RayPPOTrainer):  # type: ignore[misc]
    """SkyRL's synchronous trainer."""


class ApexAsyncTrainer(ApexTrainerMixin, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """SkyRL's fully asynchronous trainer."""


def leave_out_masked_rows(data: Any, algorithm: Any) -> None:
    """Recompute the advantages of ``data`` with SkyRL's own estimator over rows that train.

    Rows whose loss mask is all zero get advantage 0 and influence no other row. Changes
    ``data["advantages"]`` and ``data["returns"]``.
    """
    live = data["loss_mask"].sum(dim=-1) > 0
    if bool(live.all()):
        return
    advantages = torch.zeros_like(data["advantages"])
    returns = torch.zeros_like(data["returns"])
    if bool(live.any()):
        advantages[live], returns[live] = ppo_utils.compute_advantages_and_returns(
            token_level_rewards=data["rewards"][live],
            response_mask=data["response_mask"][live],
            index=np.array(data.metadata["uids"])[live.numpy()],
            adv_estimator=algorithm.advantage_estimator,
            config=algorithm,
            gamma=algorithm.gamma,
            lambd=algorithm.lambd,
            grpo_norm_by_std=algorithm.grpo_norm_by_std,
        )
    data["advantages"], data["returns"] = advantages, returns


def refuse_failed_step(metrics: dict[str, Any], *, limit: float, step: int) -> None:
    """Raise :class:`TooManyFailures` when the step's metrics say so."""
    ended = metrics.get(f"{PREFIX}trials/ended", 0.0)
    failed = metrics.get(f"{PREFIX}trials/failed", 0.0)
    if not ended or failed / ended <= limit:
        return
    outcomes = {
        key.removeprefix(f"{PREFIX}outcome/"): int(value)
        for key, value in metrics.items()
        if key.startswith(f"{PREFIX}outcome/")
    }
    raise TooManyFailures(
        f"step {step}: {failed:g} of {ended:g} trials failed, more than "
        f"apex.failures.max_failed_fraction={limit} allows; outcomes: {outcomes}. The reasons are "
        "in trials.jsonl of the run's directory."
    )
