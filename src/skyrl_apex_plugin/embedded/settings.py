"""The configuration that a CPU run of SkyRL's trainer needs, one reason for each value."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyrl.train.config import SkyRLTrainConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """``path`` is dotted from the root of SkyRL's config."""

    path: str
    value: Any
    why: str


CPU_SETTINGS: tuple[Setting, ...] = (
    Setting("trainer.flash_attn", False, "flash attention is a CUDA kernel"),
    Setting("trainer.remove_microbatch_padding", False, "needs flash attention"),
    Setting("trainer.policy.use_torch_compile", False, "compiling costs more than the run"),
    Setting("trainer.gradient_checkpointing", False, "memory is no limit at this size"),
    Setting("trainer.bf16", False, "the reference model is compared in fp32"),
    Setting("trainer.use_expandable_segments", False, "a setting of the CUDA allocator"),
    Setting("trainer.enable_ray_gpu_monitor", False, "there is no GPU to watch"),
    Setting("trainer.placement.colocate_all", False, "the engine is a server of its own"),
    Setting("data.dataloader.num_workers", 0, "two cores: no loader processes"),
    Setting("generator.inference_engine.model_dtype", "float32", "weights are sent in this type"),
    Setting("generator.inference_engine.num_engines", 1, "one process serves all requests"),
    Setting("generator.inference_engine.tensor_parallel_size", 1, "one process"),
    Setting("generator.inference_engine.data_parallel_size", 1, "one process"),
    Setting(
        "generator.inference_engine.enable_ray_prometheus_stats",
        False,
        "scrapes vllm's metrics; with external engines a port number overflows after a step",
    ),
)

FP32_ROLES = ("policy", "critic", "ref")
"""FSDP's default mixed precision computes in bfloat16, which no engine in fp32 can match."""

REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("trainer.strategy", "fsdp", "Megatron has no CPU backend"),
    ("trainer.policy.model.lora.rank", 0, "the CPU engine serves full weights only"),
    ("trainer.policy.sequence_parallel_size", 1, "Ulysses needs flash attention"),
    ("generator.inference_engine.enable_return_routed_experts", False, "dense models only"),
)
"""Choices of the experiment itself: ``(path, the value a CPU run can have, reason)``."""


def apply_settings(cfg: SkyRLTrainConfig) -> dict[str, Any]:
    """Set :data:`CPU_SETTINGS` in ``cfg``; returns the changed values by dotted path.

    Raises ``ValueError`` naming the first of :data:`REFUSED` that does not hold.
    """
    from skyrl.train.config.config import MixedPrecisionConfig

    for path, possible, why in REFUSED:
        if (value := _get(cfg, path)) != possible:
            raise ValueError(
                f"{path}={value!r} cannot run on a CPU ({why}); set {path}={possible!r} or "
                "choose another sampler than apex.sampler.name=embedded"
            )
    wanted = {setting.path: setting.value for setting in CPU_SETTINGS}
    fp32 = MixedPrecisionConfig(param_dtype="fp32", reduce_dtype="fp32", buffer_dtype="fp32")
    wanted |= {f"trainer.{role}.fsdp_config.mixed_precision": fp32 for role in FP32_ROLES}
    changed = {path: value for path, value in wanted.items() if _get(cfg, path) != value}
    for path, value in changed.items():
        parent, _, name = path.rpartition(".")
        setattr(_get(cfg, parent), name, value)
    logger.info("settings for a CPU run: %s", changed)
    return changed


def _get(cfg: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), cfg)
