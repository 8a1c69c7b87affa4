"""What a CPU run changes in SkyRL's configuration, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from skyrl_apex_plugin import embedded


@pytest.fixture
def cfg() -> Any:
    from skyrl.train.config import SkyRLTrainConfig

    return SkyRLTrainConfig()


def test_settings_are_applied_once(cfg: Any) -> None:
    changed = embedded.apply_settings(cfg)
    assert changed["trainer.flash_attn"] is False
    assert cfg.trainer.flash_attn is False
    assert cfg.generator.inference_engine.model_dtype == "float32"
    assert cfg.trainer.policy.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert embedded.apply_settings(cfg) == {}


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("trainer", "strategy", "megatron"),
        ("trainer.policy.model.lora", "rank", 8),
        ("trainer.policy", "sequence_parallel_size", 2),
    ],
)
def test_other_experiments_are_refused_by_name(
    cfg: Any, section: str, field: str, value: object
) -> None:
    part = cfg
    for name in section.split("."):
        part = getattr(part, name)
    setattr(part, field, value)
    with pytest.raises(ValueError, match=rf"{section}\.{field}={value!r} cannot run on a CPU"):
        embedded.apply_settings(cfg)


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 1),
        ({"trainer.algorithm.use_kl_loss": True}, 1),
        (
            {
                "trainer.algorithm.use_kl_loss": True,
                "trainer.placement.colocate_policy_ref": False,
            },
            2,
        ),
        ({"trainer.critic.model.path": "x"}, 2),
        ({"trainer.placement.policy_num_gpus_per_node": 2}, 2),
    ],
)
def test_one_logical_gpu_for_each_rank(changes: dict[str, Any], gpus: int) -> None:
    from skyrl.train.config import SkyRLTrainConfig

    from skyrl_apex_plugin.embedded.cluster import logical_gpus

    one = {f"trainer.placement.{role}_num_gpus_per_node": 1 for role in ("policy", "critic", "ref")}
    overrides = {**one, "trainer.algorithm.use_kl_loss": False, **changes}
    cfg = SkyRLTrainConfig.from_cli_overrides([f"{k}={v}" for k, v in overrides.items()])
    assert logical_gpus(cfg) == gpus
