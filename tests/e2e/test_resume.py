"""A run that is resumed loses no prompt and trains none twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]


def run(checkpoints: Path, run_dir: Path, steps: int) -> list[dict[str, Any]]:
    """Train up to ``steps`` with a checkpoint after each; returns the lines of ended trials."""
    settings = [
        f"trainer.max_training_steps={steps}",
        f"trainer.ckpt_path={checkpoints}",
        "trainer.ckpt_interval=1",
        "trainer.hf_save_interval=-1",
        "trainer.resume_mode=latest",
    ]
    command = [sys.executable, "-m", "skyrl_apex_plugin.cli.main", "train", "--preset", "smoke"]
    subprocess.run([*command, "--run-dir", str(run_dir), *settings], check=True)
    lines = map(json.loads, (run_dir / "trials.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "ended"]


def consumed(checkpoints: Path) -> set[str]:
    """The prompts of the newest checkpoint. SkyRL numbers the one that it writes at a run's end a
    step higher than the last one trained, and counts on from there."""
    import torch

    step = (checkpoints / "latest_ckpt_global_step.txt").read_text()
    state = torch.load(
        checkpoints / f"global_step_{step}" / "fully_async_state.pt", weights_only=False
    )
    return set(state["consumed_uids"])


def test_prompts_are_trained_once_across_a_restart(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    run(checkpoints, tmp_path / "first", steps=1)
    before = consumed(checkpoints)
    assert len(before) == 4

    second = run(checkpoints, tmp_path / "second", steps=2)
    after = consumed(checkpoints)
    assert before < after
    assert len(after) == 8
    rolled_out = {line["task_id"] for line in second}
    assert not rolled_out & before, "a trained prompt was rolled out again"
    assert after - before <= rolled_out

    first_names, second_names = (
        {path.name for path in (tmp_path / run_dir / "trials").iterdir()}
        for run_dir in ("first", "second")
    )
    assert not first_names & second_names
