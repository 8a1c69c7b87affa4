"""Training through SkyRL's own door for integrations.

``main_base`` calls :func:`main` when ``trainer.override_entrypoint`` names this module;
``generator=NAME`` on a stock command line becomes exactly that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg

from skyrl_apex_plugin.discovery.generators import (
    config_from_command_line,
    experiment_class_of,
    split_command_line,
)

from .cluster import initialize_ray
from .config import ApexTrainConfig
from .experiment import is_embedded, prepare_config
from .keys import needed_keys, optional_keys, plugin_classes, require_keys
from .running import run_to_the_end


@ray.remote(num_cpus=1)
def experiment_entrypoint(cfg: Any, generator: str) -> None:
    """Run the generator's experiment in a worker, as SkyRL does, so not on the head node."""
    experiment_class_of(generator, BasePPOExp)(cfg).run()


def main(arguments: list[str] | None = None) -> None:
    """Train with the generator that the command line names (``apex_tito`` when it names none)."""
    generator, rest = split_command_line(sys.argv[1:] if arguments is None else arguments)
    cfg = config_from_command_line(generator, rest, SkyRLTrainConfig)
    env_vars = prepare(cfg)
    embedded_mode = isinstance(cfg, ApexTrainConfig) and is_embedded(cfg)
    initialize_ray(cfg, env_vars=env_vars, embedded_mode=embedded_mode)
    run_to_the_end(experiment_entrypoint, cfg, generator)


def prepare(cfg: Any) -> dict[str, str]:
    """Check a configuration as far as that goes without a GPU; returns the keys to forward.

    Another package's configuration only goes through SkyRL's own validation.
    """
    if isinstance(cfg, ApexTrainConfig):
        prepare_config(cfg)
    validate_cfg(cfg)
    return forwarded_keys(cfg) if isinstance(cfg, ApexTrainConfig) else {}


def forwarded_keys(cfg: ApexTrainConfig, sources: list[str] | None = None) -> dict[str, str]:
    """Keys that the run's tasks and plugins need, with their values from the environment.

    Raises ``MissingKeys`` naming every one that is not set and who needs it.
    """
    from skyrl_apex_plugin.data.dataset import TaskDataset

    if sources is None:
        evaluates = cfg.trainer.eval_interval > 0
        sources = [*cfg.data.train_data, *(cfg.data.val_data if evaluates else ())]
    tasks = cfg.apex.tasks
    cache = Path(tasks.cache_dir).expanduser() if tasks.cache_dir else None
    dataset = TaskDataset(sources, cache_dir=cache, where=tasks.where)
    directories = [Path(dataset[i]["env_extras"]["task_dir"]) for i in range(len(dataset))]
    plugins = plugin_classes(cfg.apex)
    needed = needed_keys(directories, plugins=plugins, env=os.environ)
    return {**optional_keys(plugins, os.environ), **require_keys(needed, os.environ)}


if __name__ == "__main__":
    main()
