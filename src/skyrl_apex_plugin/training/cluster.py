"""Ray for a training run: SkyRL's environment, and ours in every worker process."""

from __future__ import annotations

from typing import Any

from skyrl_apex_plugin import embedded

SETUP_HOOK = "skyrl_apex_plugin.training.worker.prepare"


def initialize_ray(cfg: Any, *, env_vars: dict[str, str], embedded_mode: bool) -> None:
    """Start or join Ray as SkyRL does, with ``env_vars`` forwarded and workers prepared.

    :param env_vars: keys that tasks and plugins need, by name. SkyRL forwards only a few.
    """
    if embedded_mode:
        embedded.initialize_ray(cfg, env_vars=env_vars, setup_hook=SETUP_HOOK)
        return
    import ray
    from skyrl.train.utils import utils

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
