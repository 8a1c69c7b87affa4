"""A local Ray on which SkyRL's actor groups find the GPUs that they ask for."""

from __future__ import annotations

import logging
import os
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyrl.train.config import SkyRLTrainConfig

OBJECT_STORE_BYTES = 256 * 2**20
"""Batches of a laptop run are a few megabytes; Ray's default is 30% of the memory."""

logger = logging.getLogger(__name__)


def logical_gpus(cfg: SkyRLTrainConfig) -> int:
    """How many GPUs SkyRL's actor groups will ask Ray for."""
    placement, algorithm = cfg.trainer.placement, cfg.trainer.algorithm
    ranks: int = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    if cfg.trainer.critic.model.path:
        ranks += placement.critic_num_nodes * placement.critic_num_gpus_per_node
    uses_ref = algorithm.use_kl_loss or algorithm.use_kl_in_reward
    if uses_ref and not placement.colocate_policy_ref:
        ranks += placement.ref_num_nodes * placement.ref_num_gpus_per_node
    return ranks


def initialize_ray(
    cfg: SkyRLTrainConfig, *, env_vars: dict[str, str] | None, setup_hook: str
) -> None:
    """What ``skyrl.train.utils.initialize_ray`` does, with logical GPUs.

    SkyRL's own function leaves the resources to Ray's detection, which finds no GPU and as many
    CPUs as cores, while each rank and the experiment itself ask for a CPU: on two cores a run
    with a reference model would wait for ever.
    """
    import ray
    from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries

    gpus = logical_gpus(cfg)
    environment = _worker_environment(cfg) | (env_vars or {})
    ray.init(
        address="local",  # a Ray that runs here for something else lacks these resources
        num_gpus=gpus,
        num_cpus=max(os.cpu_count() or 1, gpus + 2),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        runtime_env={
            "env_vars": environment,
            "worker_process_setup_hook": setup_hook,
        },
        log_to_driver=True,
    )
    sync_registries()


def _worker_environment(cfg: SkyRLTrainConfig) -> dict[str, str]:
    """SkyRL's own variables, its log file, and thread counts that fit a laptop."""
    from skyrl.env_vars import SKYRL_DUMP_INFRA_LOG_TO_STDOUT
    from skyrl.train.utils.utils import prepare_runtime_environment

    # For more than one GPU a node SkyRL looks for peer access on real ones.
    one_gpu = deepcopy(cfg)
    for role in ("policy", "critic", "ref"):
        setattr(one_gpu.trainer.placement, f"{role}_num_gpus_per_node", 1)
    environment: dict[str, Any] = prepare_runtime_environment(one_gpu)
    environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    if not SKYRL_DUMP_INFRA_LOG_TO_STDOUT:
        os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
        directory = Path(cfg.trainer.log_path).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        log_file = directory / f"infra-{datetime.now():%y%m%d_%H%M%S}.log"
        environment["SKYRL_LOG_FILE"] = os.environ["SKYRL_LOG_FILE"] = str(log_file)
        logger.info("infrastructure logs are written to %s", log_file)
    return environment
