"""A run learns, and by its rewards: some minutes of training against the same without advantages.

Both arms answer every held-out task once, greedily. Under the hypothesis that training does
nothing, a task that only one arm solves is as likely to be the one's as the other's: the exact
sign test over those tasks raises a false alarm, a rise that is none, in one run of a hundred.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(2400)]

STEPS = 16
"""Some five minutes of training on two cores; after eight steps the rise is not certain yet."""
FALSE_ALARMS = 0.01


def sign_test(won: int, lost: int) -> float:
    """Probability of at least ``won`` heads in ``won + lost`` tosses of a fair coin.

    >>> sign_test(5, 0)
    0.03125
    """
    tosses = won + lost
    return sum(math.comb(tosses, heads) for heads in range(won, tosses + 1)) / 2**tosses


def solved_after_training(run_dir: Path, *settings: str) -> dict[str, bool]:
    """Train for :data:`STEPS` steps; whether each held-out task is solved then."""
    command = [sys.executable, "-m", "skyrl_apex_plugin.cli.main", "train", "--preset", "laptop"]
    command += ["--run-dir", str(run_dir), f"trainer.max_training_steps={STEPS}"]
    command += [f"trainer.eval_interval={STEPS}", "trainer.eval_before_train=false"]
    command += ["trainer.ckpt_interval=-1", "trainer.hf_save_interval=-1", *settings]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:]
    lines = map(json.loads, (run_dir / "trials.jsonl").read_text().splitlines())
    return {
        line["task_id"]: line["score"] == 1.0
        for line in lines
        if line["event"] == "ended" and line["phase"] == "eval"
    }


def test_training_beats_the_same_run_without_advantages(tmp_path: Path) -> None:
    trained = solved_after_training(tmp_path / "trained")
    control = solved_after_training(tmp_path / "control", "apex.control=zero_advantages")
    assert trained.keys() == control.keys() and len(trained) >= 64
    won = sum(trained[task] and not control[task] for task in trained)
    lost = sum(control[task] and not trained[task] for task in trained)
    chance = sign_test(won, lost)
    print(
        f"held-out tasks solved: {sum(trained.values())} of {len(trained)} after training, "
        f"{sum(control.values())} without advantages; by one arm only: {won} against {lost}, "
        f"p = {chance:.1e}"
    )
    assert chance < FALSE_ALARMS
