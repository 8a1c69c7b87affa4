"""The engine of a training run, behind SkyRL's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .launch import EngineHandle, EngineOptions, start_engine

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )
    from skyrl.train.config import SkyRLTrainConfig

_engines: list[EngineHandle] = []


def build_inference_client(cfg: SkyRLTrainConfig, tokenizer: Any) -> RemoteInferenceClient:
    """Start an engine for the policy model; SkyRL sees an external server for both planes."""
    from skyrl.backends.skyrl_train.inference_servers.setup import build_new_inference_client

    inference = cfg.generator.inference_engine
    options: dict[str, Any] = {"served_model_name": inference.served_model_name}
    if (apex := getattr(cfg, "apex", None)) is not None:  # absent from SkyRL's own config class
        options |= apex.sampler.kwargs
    engine = start_engine(cfg.trainer.policy.model.path, EngineOptions.from_mapping(options))
    _engines.append(engine)
    inference.external_proxy_url = engine.url
    inference.external_server_urls = None
    client, _ = build_new_inference_client(cfg, tokenizer)
    return client


def stop_engines() -> None:
    """Stop the engines that were started in this process."""
    while _engines:
        _engines.pop().stop()
