"""Ray for a training run: SkyRL's environment, and ours in every worker process."""

from __future__ import annotations

import logging
from typing import Any

import ray
from skyrl.train.utils import utils

from skyrl_apex_plugin import embedded

logger = logging.getLogger(__name__)

SETUP_HOOK = "skyrl_apex_plugin.training.worker.prepare"
SLOW_START = "timed out during startup"
"""What ray says when its own processes took longer than 30 seconds, a limit nothing can raise."""
TRIES = 3


def initialize_ray(cfg: Any, *, env_vars: dict[str, str], embedded_mode: bool) -> None:
    """Start or join Ray as SkyRL does, with ``env_vars`` forwarded and workers prepared.

    On a busy machine a start may be too slow for Ray; it is tried again.

    :param env_vars: keys that tasks and plugins need, by name. SkyRL forwards only a few.
    """
    for left in reversed(range(TRIES)):
        try:
            if embedded_mode:
                embedded.initialize_ray(cfg, env_vars=env_vars, setup_hook=SETUP_HOOK)
            else:
                _initialize(cfg, env_vars)
            return
        except Exception as error:  # ray raises just that
            ray.shutdown()
            if SLOW_START not in str(error) or not left:
                raise
            logger.warning("Ray was slow to start; trying again (%d tries left)", left)


def _initialize(cfg: Any, env_vars: dict[str, str]) -> None:
    stock_init = ray.init

    def init_with_ours(*, runtime_env: dict[str, Any], **kwargs: Any) -> Any:
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **env_vars}
        runtime_env["worker_process_setup_hook"] = SETUP_HOOK
        return stock_init(runtime_env=runtime_env, **kwargs)

    # SkyRL's function offers no way to add to the runtime environment that it builds.
    ray.init = init_with_ours  # type: ignore[assignment]
    try:
        utils.initialize_ray(cfg)
    finally:
        ray.init = stock_init
