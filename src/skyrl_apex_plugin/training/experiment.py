"""SkyRL's experiment with this package's dataset, generator, trainer and tracker."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from skyrl.train.entrypoints.main_base import BasePPOExp

from skyrl_apex_plugin import embedded
from skyrl_apex_plugin.data.dataset import TaskDataset
from skyrl_apex_plugin.rollout.record import RunRecord

from .checks import check_apex_config
from .config import ApexTrainConfig
from .run_dir import run_dir_of
from .secrets import redacted
from .tracking import ApexTracking


def prepare_config(cfg: ApexTrainConfig) -> ApexTrainConfig:
    """Settle what the user left open and check the rest. Safe to repeat.

    Raises as :func:`~skyrl_apex_plugin.training.checks.check_apex_config` does.
    """
    if is_embedded(cfg):
        embedded.apply_settings(cfg)
    check_apex_config(cfg)
    run_dir_of(cfg)
    return cfg


def is_embedded(cfg: ApexTrainConfig) -> bool:
    """Whether a CPU engine and CPU workers stand in for GPUs."""
    return cfg.apex.sampler.name == "embedded"


class ApexExperiment(BasePPOExp):  # type: ignore[misc]
    """Everything that a training or an evaluation run of ``apex_tito`` overrides in SkyRL."""

    cfg: ApexTrainConfig

    def __init__(self, cfg: ApexTrainConfig) -> None:
        super().__init__(prepare_config(cfg))
        self.record = RunRecord(Path(run_dir_of(cfg)), keep=cfg.apex.record.keep)
        self.record.describe({"config": redacted(asdict(cfg))})

    @staticmethod
    def get_cfg_as_str(cfg: ApexTrainConfig) -> str:
        return str(yaml.safe_dump(redacted(asdict(cfg))))

    def get_train_dataset(self) -> TaskDataset:
        """Raises ``ValueError`` when there are fewer tasks than a batch needs."""
        dataset = self._dataset(self.cfg.data.train_data, self.cfg.apex.tasks.curriculum)
        if len(dataset) < self.cfg.trainer.train_batch_size:
            raise ValueError(
                f"data.train_data={self.cfg.data.train_data} holds {len(dataset)} tasks, fewer "
                f"than trainer.train_batch_size={self.cfg.trainer.train_batch_size}"
            )
        return dataset

    def get_eval_dataset(self) -> TaskDataset | None:
        if self.cfg.trainer.eval_interval <= 0 or not self.cfg.data.val_data:
            return None
        return self._dataset(self.cfg.data.val_data, None)

    def _dataset(self, sources: list[str], curriculum: str | None) -> TaskDataset:
        tasks = self.cfg.apex.tasks
        return TaskDataset(
            sources,
            cache_dir=Path(tasks.cache_dir).expanduser() if tasks.cache_dir else None,
            where=tasks.where,
            curriculum=curriculum,
        )

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        from .factory import apex_tito

        return apex_tito(cfg, tokenizer, inference_engine_client)

    def get_tracker(self) -> ApexTracking:
        trainer = self.cfg.trainer
        return ApexTracking(
            project_name=trainer.project_name,
            experiment_name=trainer.run_name,
            backend=trainer.logger,
            config=self.cfg,
            tags=trainer.tags,
            record=self.record,
        )

    def get_inference_client(self) -> Any:
        if is_embedded(self.cfg):
            return embedded.build_inference_client(self.cfg, self.tokenizer)
        return super().get_inference_client()

    def get_trainer(self, **parts: Any) -> Any:
        """The fully asynchronous trainer where ``trainer.fully_async.enabled`` asks for it."""
        from .trainer import ApexAsyncTrainer, ApexTrainer

        trainer_class = ApexAsyncTrainer if self.cfg.trainer.fully_async.enabled else ApexTrainer
        return trainer_class(**parts)

    def run(self) -> None:
        try:
            super().run()
        finally:
            embedded.stop_engines()
