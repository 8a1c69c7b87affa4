"""What is looked at before a step trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from skyrl_apex_plugin.rollout.record import RunRecord
from skyrl_apex_plugin.tito.logprob_gate import LogprobMismatch
from skyrl_apex_plugin.training.config import GateConfig
from skyrl_apex_plugin.training.gate import LogprobGate
from skyrl_apex_plugin.training.trainer import TooManyFailures, refuse_failed_step

MASK = torch.tensor([[1, 1, 1, 1, 0, 0, 1, 1, 1, 1]] * 4)
STORED = torch.where(MASK > 0, torch.linspace(-3.0, -0.1, 10), torch.zeros(10))


def batch(mask: torch.Tensor = MASK) -> dict[str, torch.Tensor]:
    return {"rollout_logprobs": STORED, "loss_mask": mask}


def test_a_step_with_too_many_failures_is_refused_with_their_outcomes() -> None:
    metrics = {
        "apex/sum/trials/ended": 8.0,
        "apex/sum/trials/failed": 5.0,
        "apex/sum/outcome/setup_error": 5.0,
        "apex/sum/outcome/complete": 3.0,
    }
    with pytest.raises(TooManyFailures, match=r"step 7: 5 of 8 .*'setup_error': 5"):
        refuse_failed_step(metrics, limit=0.5, step=7)
    refuse_failed_step(metrics, limit=0.7, step=7)
    refuse_failed_step({}, limit=0.0, step=7)


def test_equal_logprobs_pass_and_are_reported() -> None:
    gate = LogprobGate(GateConfig())
    assert gate.due(1)
    metrics = gate.check(batch(), STORED + 1e-4)
    assert metrics["apex/gate/mean_abs_diff"] == pytest.approx(1e-4, rel=0.01)
    assert not gate.due(2), "one step by default"


def test_the_record_has_the_differences_by_turn_also_when_they_end_the_run(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    gate = LogprobGate(GateConfig(), record=lambda report: record.gate(3, report.positions))
    with pytest.raises(LogprobMismatch):
        gate.check(batch(), torch.where(torch.arange(10) < 5, STORED, STORED - 1.0))
    line = json.loads((tmp_path / "gate.jsonl").read_text())
    assert line["step"] == 3
    first, second = line["turns"]
    assert first == {"turn": 0, "tokens": 16, "mean": 0.0, "max": 0.0}
    assert (second["turn"], second["tokens"]) == (1, 16)
    assert second["mean"] == pytest.approx(1.0) and second["max"] == pytest.approx(1.0)


def test_every_step_can_be_checked() -> None:
    gate = LogprobGate(GateConfig(steps=-1))
    gate.check(batch(), STORED)
    assert gate.due(2)
    assert not LogprobGate(GateConfig(steps=0)).due(1)


def checked_steps(gate: LogprobGate, steps: range) -> list[int]:
    found = []
    for step in steps:
        if gate.due(step):
            gate.check(batch(), STORED)
            found.append(step)
    return found


@pytest.mark.parametrize(
    ("settings", "stale", "expected"),
    [
        (GateConfig(), False, [1, 20, 40, 60]),
        (GateConfig(), True, [1]),
        (GateConfig(rate=0.5), True, [1, *range(2, 61, 2)]),
        (GateConfig(steps=3, rate=0.1), False, [1, 2, 3, 10, 20, 30, 40, 50, 60]),
        (GateConfig(steps=0, rate=0.0), False, []),
        (GateConfig(steps=0, rate=1.0), False, list(range(1, 61))),
    ],
)
def test_later_steps_are_checked_at_a_rate(
    settings: GateConfig, stale: bool, expected: list[int]
) -> None:
    assert checked_steps(LogprobGate(settings, stale=stale), range(1, 61)) == expected


def test_a_resumed_run_checks_the_same_later_steps() -> None:
    assert checked_steps(LogprobGate(GateConfig(rate=0.1)), range(35, 61)) == [35, 40, 50, 60]


def test_a_drift_that_starts_later_stops_the_run_at_the_next_checked_step() -> None:
    gate = LogprobGate(GateConfig(rate=0.1))
    checked_steps(gate, range(1, 15))
    drifted = STORED * 1.25
    for step in range(15, 20):
        assert not gate.due(step)
    assert gate.due(20)
    with pytest.raises(LogprobMismatch, match="turn 0 of row 0"):
        gate.check(batch(), drifted)


def test_other_logprobs_stop_the_step() -> None:
    with pytest.raises(LogprobMismatch, match="Nothing was trained"):
        LogprobGate(GateConfig()).check(batch(), STORED * 1.25)


def test_a_mask_that_is_late_by_one_stops_the_step() -> None:
    shifted = torch.cat([torch.zeros(4, 1, dtype=torch.long), MASK[:, :-1]], dim=1)
    recomputed = torch.where(MASK > 0, STORED, torch.full_like(STORED, -2.0))
    with pytest.raises(LogprobMismatch, match="loss mask is one token late"):
        LogprobGate(GateConfig()).check(batch(shifted), recomputed)


def test_a_batch_without_trained_tokens_leaves_the_gate_due() -> None:
    gate = LogprobGate(GateConfig())
    assert gate.check(batch(torch.zeros_like(MASK)), STORED) == {}
    assert gate.due(2)
