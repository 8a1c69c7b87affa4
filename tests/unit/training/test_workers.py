"""Which worker classes a run trains with."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from skyrl_apex_plugin.training.worker import CHATTY, prepare


@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_gpu_workers_under_fsdp_keep_tied_weights(strategy: str) -> None:
    from skyrl_apex_plugin.embedded import bert_padding

    bert_padding.lend()
    from skyrl_apex_plugin.training.config import ApexTrainConfig
    from skyrl_apex_plugin.training.fsdp_workers import Tied
    from skyrl_apex_plugin.training.trainer import ApexTrainerMixin

    built: list[Any] = []

    class Stock:
        def build_models(self, *workers: Any) -> None:
            built.extend(workers)

    class Trainer(ApexTrainerMixin, Stock):
        def __init__(self) -> None:
            self.cfg = ApexTrainConfig()
            self.cfg.trainer.strategy = strategy

    Trainer().build_models("policy", "critic", "ref")
    if strategy == "fsdp":
        kinds = [worker.__ray_metadata__.modified_class for worker in built]
        assert all(issubclass(kind, Tied) for kind in kinds) and len(kinds) == 3
    else:
        assert built == ["policy", "critic", "ref"]


def test_a_worker_process_does_not_log_every_request() -> None:
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)
    prepare()
    for name in ("httpx", "httpx2._client", "mcp.client.streamable_http"):
        logger = logging.getLogger(name)
        assert not logger.isEnabledFor(logging.INFO) and logger.isEnabledFor(logging.WARNING)
