"""What stands in for GPUs on a laptop: a CPU inference engine and CPU workers for SkyRL's trainer.

The trainer, its losses, its staleness control and its checkpoints are SkyRL's own; only the
device is replaced. A training entry point needs five calls, in this order::

    from skyrl_apex_plugin import embedded

    embedded.apply_settings(cfg)      # in the driver, before validate_cfg: what a CPU run needs
    embedded.initialize_ray(cfg)      # in place of skyrl.train.utils.initialize_ray
    ...                               # then, in the process that runs the experiment:
    client = embedded.build_inference_client(cfg, tokenizer)   # BasePPOExp.get_inference_client
    trainer.build_models(*embedded.workers())                  # CPU policy, critic, ref workers
    embedded.stop_engines()           # when the run ends (also at exit, also when killed)

``build_inference_client`` starts the engine for ``cfg.trainer.policy.model.path`` and returns
SkyRL's own ``RemoteInferenceClient``; options of the engine come from ``apex.sampler.kwargs``
(see :class:`~skyrl_apex_plugin.embedded.launch.EngineOptions`). Nothing heavy is imported until
one of these functions is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )
    from skyrl.train.config import SkyRLTrainConfig

__all__ = [
    "apply_settings",
    "build_inference_client",
    "initialize_ray",
    "stop_engines",
    "workers",
]


def apply_settings(cfg: SkyRLTrainConfig) -> dict[str, Any]:
    """Set every field of ``cfg`` that a CPU run needs; returns what was changed, by dotted path.

    The list and the reason for each value are in ``settings.py``. Raises ``ValueError`` for a
    choice that cannot be replaced without changing the experiment (``strategy=megatron``, LoRA,
    sequence parallelism).
    """
    from .settings import apply_settings as apply

    return apply(cfg)


def initialize_ray(
    cfg: SkyRLTrainConfig,
    *,
    env_vars: dict[str, str] | None = None,
    setup_hook: str = "skyrl_apex_plugin.embedded.bert_padding.lend",
) -> None:
    """Start a local Ray with one logical GPU for each training rank of ``cfg``.

    ``env_vars`` are added to those that SkyRL itself forwards to its workers. ``setup_hook``
    names what each worker process calls first; another one must also lend ``bert_padding``.
    """
    from .cluster import initialize_ray as initialize

    initialize(cfg, env_vars=env_vars, setup_hook=setup_hook)


def workers() -> tuple[Any, Any, Any]:
    """``(PolicyWorker, CriticWorker, RefWorker)``, the arguments of ``trainer.build_models``."""
    from .strategy import CriticWorker, PolicyWorker, RefWorker

    return PolicyWorker, CriticWorker, RefWorker


def build_inference_client(cfg: SkyRLTrainConfig, tokenizer: Any) -> RemoteInferenceClient:
    """Start the engine for the policy model and return SkyRL's client for it.

    The engine ends with :func:`stop_engines`, and in any case with this process. Its address is
    also written to ``cfg.generator.inference_engine.external_proxy_url``.
    """
    from .serve import build_inference_client as build

    return build(cfg, tokenizer)


def stop_engines() -> None:
    """Stop the engines that :func:`build_inference_client` started in this process."""
    from .serve import stop_engines as stop

    stop()
