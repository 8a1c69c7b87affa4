"""The smoke run as a user starts it: SkyRL's trainer, harbor's trials, real sandboxes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MARK = "APEX_TEST_RUN"
STEPS = 2


def start(run_dir: Path, *settings: str) -> subprocess.Popen[str]:
    """The command in a session of its own, marked so that whatever it leaves can be found."""
    command = [sys.executable, "-m", "skyrl_apex_plugin.cli.main", "train", "--preset", "smoke"]
    return subprocess.Popen(
        [*command, "--run-dir", str(run_dir), *settings],
        env={**os.environ, MARK: str(run_dir), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def left_by(run_dir: Path) -> list[str]:
    """Command lines of processes that the run started and that still live, sandboxes included."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{MARK}={run_dir}".encode() in environment or str(run_dir).encode() in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines())


def test_a_few_steps_train_the_model(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from skyrl_apex_miniworld.tiny_model import checkpoint

    run_dir = tmp_path / "run"
    child = start(run_dir, f"trainer.max_training_steps={STEPS}")
    shown, _ = child.communicate()
    assert child.returncode == 0, shown[-3000:]

    assert "python -m skyrl.train.entrypoints.main_base" in shown
    assert "generator=apex_tito" in shown
    assert f"step {STEPS} of {STEPS}" in shown

    steps: dict[int, dict[str, float]] = {}
    for line in lines(run_dir / "metrics.jsonl"):
        steps.setdefault(line["step"], {}).update(line["metrics"])
    for step in range(1, STEPS + 1):
        assert math.isfinite(steps[step]["policy/policy_loss"])
        assert steps[step]["apex/sum/trials/ended"] == 32
        assert steps[step]["apex/tool_calls"] > 0
    assert any(steps[step]["policy/grad_norm"] > 0 for step in steps)
    assert steps[1]["apex/gate/mean_abs_diff"] < 1e-3

    (exported,) = run_dir.glob("export/global_step_*/policy")
    before = AutoModelForCausalLM.from_pretrained(checkpoint(), dtype=torch.float32)
    after = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    weights = dict(before.named_parameters())
    changes = [(p - weights[name]).abs().max().item() for name, p in after.named_parameters()]
    assert max(changes) > 1e-5
    assert AutoTokenizer.from_pretrained(exported).chat_template

    outcomes = {x["outcome"] for x in lines(run_dir / "trials.jsonl") if x["event"] == "ended"}
    assert "complete" in outcomes
    assert left_by(run_dir) == []


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    child = start(run_dir)
    trials = run_dir / "trials.jsonl"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and child.poll() is None:
        if trials.exists() and trials.read_text().count("started") >= 8:
            break
        time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    shown, _ = child.communicate(timeout=120)
    assert child.returncode == 130, shown[-3000:]
    deadline = time.monotonic() + 10
    while left_by(run_dir) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_by(run_dir) == []


def test_a_shifted_mask_is_caught_before_a_step_trains(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    child = start(run_dir, "apex.control=shift_mask", "trainer.max_training_steps=1")
    shown, _ = child.communicate()
    assert child.returncode == 1
    assert "LogprobMismatch" in shown
    assert "the loss mask is one token late" in shown
    metrics = (run_dir / "metrics.jsonl").read_text()
    assert "policy/grad_norm" not in metrics
