"""Every bundled preset against SkyRL's own config classes and validators."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyrl_apex_plugin.training.preset import (
    Preset,
    PresetError,
    load_preset,
    preset_names,
    stock_arguments,
    stock_command,
)

PLACES = {"run_dir": "/runs/a b", "tasks": "/data/tasks", "model": "/models/some-model"}


def test_the_presets_of_the_documentation_are_there() -> None:
    expected = {"smoke", "laptop", "smoke-1gpu", "qwen3-35b-a3b", "397b-a17b", "eval"}
    assert expected <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_skyrl_accepts_the_preset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from skyrl.train.utils.utils import validate_cfg, validate_generator_cfg

    from skyrl_apex_plugin.training.config import ApexTrainConfig
    from skyrl_apex_plugin.training.experiment import prepare_config

    monkeypatch.setenv("WANDB_API_KEY", "not-a-key")
    preset = load_preset(name)
    cfg = ApexTrainConfig.from_cli_overrides(stock_arguments(preset.settings, PLACES))
    prepare_config(cfg)
    (validate_cfg if preset.purpose == "train" else validate_generator_cfg)(cfg)
    assert cfg.trainer.policy.model.path == PLACES["model"]
    assert cfg.apex.record.dir == PLACES["run_dir"]


def figures(preset: Preset, *keys: str) -> list[object]:
    return [preset.settings[key] for key in keys]


def test_the_recipes_have_the_published_figures() -> None:
    small, large = load_preset("qwen3-35b-a3b"), load_preset("397b-a17b")
    engines = "generator.inference_engine.num_engines"
    tensor = "generator.inference_engine.tensor_parallel_size"
    nodes = "trainer.placement.policy_num_nodes"
    trials = "apex.runner.max_concurrent_trials"
    assert figures(small, engines, tensor, nodes, trials) == [10, 8, 4, 550]
    assert figures(large, engines, tensor, nodes, trials) == [12, 8, 8, 300]
    megatron = "trainer.policy.megatron_config."
    sizes = [f"{megatron}{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert")]
    assert figures(large, *sizes, f"{megatron}context_parallel_size") == [4, 4, 16, 2]
    for preset in (small, large):
        assert figures(
            preset,
            "trainer.algorithm.policy_loss_type",
            "trainer.algorithm.dppo.delta_low",
            "trainer.algorithm.dppo.delta_high",
            "trainer.algorithm.loss_reduction",
            "trainer.algorithm.zero_variance_filter",
            "trainer.policy.optimizer_config.lr",
            "trainer.policy.optimizer_config.adam_betas",
            "trainer.fully_async.max_staleness_steps",
            "apex.agent.max_context",
        ) == ["dppo", 0.15, 0.15, "prompt_mean", True, 1e-6, [0.9, 0.98], 3, 160000]
    evaluation = load_preset("eval")
    assert figures(evaluation, "apex.agent.max_context", "generator.max_turns") == [262144, 250]


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(PresetError, match="no preset is called 'smok'; known: 397b-a17b, "):
        load_preset("smok")


def test_a_place_without_a_value_names_its_option() -> None:
    with pytest.raises(PresetError, match=r"needs model: give --model"):
        stock_arguments({"trainer.policy.model.path": "${model}"}, {})


def test_values_arrive_as_they_were_written() -> None:
    from omegaconf import OmegaConf

    settings = {
        "a.text": "x y, z",
        "a.path": "${run_dir}/x",
        "a.list": [0.9, 0.98],
        "a.none": None,
        "a.yes": True,
        "a.small": 1e-6,
        "a.empty": {},
    }
    parsed = OmegaConf.from_cli(stock_arguments(settings, PLACES))
    assert OmegaConf.to_container(parsed) == {
        "a": {
            "text": "x y, z",
            "path": "/runs/a b/x",
            "list": [0.9, 0.98],
            "none": None,
            "yes": True,
            "small": 1e-6,
            "empty": {},
        }
    }


def test_the_generator_stands_last_on_the_stock_command_line() -> None:
    command = stock_command("train", ["a=1"])
    assert command[1:] == ["-m", "skyrl.train.entrypoints.main_base", "a=1", "generator=apex_tito"]


def test_without_the_shim_the_spelled_out_form_is_used() -> None:
    assert "trainer.override_entrypoint=skyrl_apex_plugin.training.train" in stock_command(
        "train", [], shim=False
    )
    assert stock_command("eval", [], shim=False)[2] == "skyrl_apex_plugin.training.evaluate"


def test_every_preset_is_small_enough_to_read(pytestconfig: pytest.Config) -> None:
    folder = Path(pytestconfig.rootpath) / "src/skyrl_apex_plugin/training/presets"
    assert all(len(path.read_text().splitlines()) < 90 for path in folder.glob("*.yaml"))
