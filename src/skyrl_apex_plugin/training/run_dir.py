"""Where a run keeps its record."""

from __future__ import annotations

from pathlib import Path

from skyrl_apex_plugin.rollout.record import new_run_dir

from .config import ApexTrainConfig


def run_dir_of(cfg: ApexTrainConfig) -> str:
    """``apex.record.dir``, fixed in ``cfg`` the first time, so every process of the run agrees."""
    if cfg.apex.record.dir is None:
        cfg.apex.record.dir = str(new_run_dir(Path(cfg.trainer.export_path) / "apex"))
    cfg.apex.record.dir = str(Path(cfg.apex.record.dir).expanduser().resolve())
    return cfg.apex.record.dir
