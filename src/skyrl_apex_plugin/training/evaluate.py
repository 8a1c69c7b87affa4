"""Evaluation with this package's generator; SkyRL's ``main_generate`` without the name shim."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.entrypoints.main_generate import EvalOnlyEntrypoint
from skyrl.train.utils.utils import validate_generator_cfg

from skyrl_apex_plugin.discovery.generators import (
    config_from_command_line,
    joined_experiment_class,
    split_command_line,
)

from .cluster import initialize_ray
from .config import ApexTrainConfig
from .experiment import is_embedded, prepare_config
from .report import evaluation_report
from .running import run_to_the_end
from .train import forwarded_keys


@ray.remote(num_cpus=1)
def evaluation_entrypoint(cfg: Any, generator: str) -> dict[str, Any]:
    """Evaluate in a worker; returns SkyRL's metrics."""
    experiment = joined_experiment_class(generator, EvalOnlyEntrypoint, BasePPOExp)(cfg)
    client = experiment.get_inference_client()
    metrics: dict[str, Any] = asyncio.run(experiment.run(client))
    return metrics


def main(arguments: list[str] | None = None) -> None:
    """Evaluate with the generator that the command line names, and print the report."""
    generator, rest = split_command_line(sys.argv[1:] if arguments is None else arguments)
    cfg = config_from_command_line(generator, rest, SkyRLTrainConfig)
    env_vars: dict[str, str] = {}
    embedded_mode = False
    if isinstance(cfg, ApexTrainConfig):
        prepare_config(cfg)
        env_vars = forwarded_keys(cfg, sources=cfg.data.val_data)
        embedded_mode = is_embedded(cfg)
    validate_generator_cfg(cfg)
    initialize_ray(cfg, env_vars=env_vars, embedded_mode=embedded_mode)
    metrics = run_to_the_end(evaluation_entrypoint, cfg, generator)
    print(evaluation_report(metrics))


if __name__ == "__main__":
    main()
