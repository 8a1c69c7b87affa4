"""A run learns, and by its rewards: two minutes of training against the same without advantages.

Two kinds of tasks are trained and evaluated, of which the sample model solves none greedily. Both
arms answer each held-out task once, greedily. If training did nothing, a task that only one arm
solves would be as likely to be the one's as the other's: the exact sign test over those tasks
decides.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS = 8
TWO_MINUTES = (
    'apex.tasks.where=kind in ("budget", "referral")',
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=4",
    "trainer.fully_async.num_parallel_generation_workers=8",
    "trainer.policy.optimizer_config.lr=2e-4",
    f"trainer.max_training_steps={STEPS}",
    f"trainer.eval_interval={STEPS}",
    "trainer.eval_before_train=false",
    "trainer.ckpt_interval=-1",
    "trainer.hf_save_interval=-1",
)
"""The ``laptop`` preset with two of its seven kinds of tasks and half the batch: on two cores."""

FALSE_ALARMS = 0.0005
"""How often the test may see a rise that is none, by the sign test. Drift alone can win a whole
kind of ten tasks (it did in a run with shuffled rewards): that gives 0.001, which is not enough."""


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
    command += ["--run-dir", str(run_dir), *TWO_MINUTES, *settings]
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
    assert trained.keys() == control.keys() and len(trained) == 20
    won = sum(trained[task] and not control[task] for task in trained)
    lost = sum(control[task] and not trained[task] for task in trained)
    chance = sign_test(won, lost)
    print(
        f"held-out tasks solved: {sum(trained.values())} of {len(trained)} after training, "
        f"{sum(control.values())} without advantages; by one arm only: {won} against {lost}, "
        f"p = {chance:.1e}"
    )
    assert chance < FALSE_ALARMS
