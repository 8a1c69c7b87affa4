"""SkyRL's FSDP workers on GPUs, with weights that a model shares kept shared."""

from __future__ import annotations

from typing import Any

import ray
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import (
    FSDPCriticWorkerBase,
    FSDPPolicyWorkerBase,
    FSDPRefWorkerBase,
)

from skyrl_apex_plugin.embedded.tied_weights import keep_tied_weights


class Tied:
    """What the three workers have in common."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_tied_weights()
        super().__init__(*args, **kwargs)


class TiedPolicyWorker(Tied, FSDPPolicyWorkerBase):  # type: ignore[misc]
    """Trains, and sends its weights to the engines."""


class TiedCriticWorker(Tied, FSDPCriticWorkerBase):  # type: ignore[misc]
    """Estimates values."""


class TiedRefWorker(Tied, FSDPRefWorkerBase):  # type: ignore[misc]
    """Scores with the weights that training began from."""


def workers() -> tuple[Any, Any, Any]:
    """Policy, critic and reference actor classes, as SkyRL declares its own."""
    policy, critic, ref = (
        ray.remote(num_gpus=1)(worker)
        for worker in (TiedPolicyWorker, TiedCriticWorker, TiedRefWorker)
    )
    return policy, critic, ref
