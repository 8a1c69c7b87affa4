"""The laptop mode's Ray is its own, whatever else runs on the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl_apex_plugin import embedded

cfg = SkyRLTrainConfig.from_cli_overrides(["trainer.placement.policy_num_gpus_per_node=1"])
embedded.apply_settings(cfg)
embedded.initialize_ray(cfg)
print("gpus", ray.cluster_resources()["GPU"])
"""


@pytest.mark.timeout(290)
def test_a_ray_that_runs_for_something_else_is_left_alone(tmp_path: Path, python: Any) -> None:
    done = python.run("-c", SCRIPT, cwd=tmp_path, timeout=280, RAY_ADDRESS="127.0.0.1:9")
    assert "gpus 1.0" in done.stdout
