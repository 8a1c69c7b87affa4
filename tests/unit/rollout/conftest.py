"""Ended trials to order, without harbor."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_hookspecs import (
    EndedTrial,
    Outcome,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

PROMPT = [1, 2, 3]
TURN = [10, 11, 12]
OBSERVATION = [20, 21]

MakeEnded = Callable[..., EndedTrial]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    directory = tmp_path / "task-1"
    directory.mkdir()
    (directory / "instruction.md").write_text("Count the invoices.")
    (directory / "task.toml").write_text("")
    return Task(task_id="task-1", directory=directory, instruction="Count the invoices.")


def trajectory_of(task: Task, outcome: Outcome, verdict: Verdict | None) -> Trajectory:
    """Prompt, a turn with a successful and a failed call, observation, a last turn, and an
    observation that nothing follows."""
    tokens = [*PROMPT, *TURN, *OBSERVATION, *TURN, *OBSERVATION]
    mask = bytes([0] * 3 + [1] * 3 + [0] * 2 + [1] * 3 + [0] * 2)
    calls = (
        ToolCall(call_id="a", name="read", arguments={}, server="admin"),
        ToolCall(call_id="b", name="write", arguments={}, server="admin", ok=False),
    )
    return Trajectory(
        task=task,
        outcome=outcome,
        tokens=array("i", tokens),
        logprobs=array("f", [-0.5 if bit else 0.0 for bit in mask]),
        loss_mask=mask,
        prompt_length=3,
        turns=(
            Turn(index=0, start=3, end=6, finish_reason="stop", calls=calls, observation_end=8),
            Turn(index=1, start=8, end=11, finish_reason="stop", observation_end=13),
        ),
        verdict=verdict,
    )


@pytest.fixture
def make_ended(task: Task) -> MakeEnded:
    def make(
        outcome: Outcome = Outcome.COMPLETE,
        score: float | None = 1.0,
        *,
        attempt: int = 0,
        tokens: bool = True,
        **more: Any,
    ) -> EndedTrial:
        verdict = Verdict(grader="task", score=score) if score is not None else None
        return EndedTrial(
            task=task,
            outcome=outcome,
            attempt=attempt,
            trajectory=trajectory_of(task, outcome, verdict) if tokens else None,
            verdict=verdict,
            seconds={"total": 2.0, "agent": 1.5},
            **more,
        )

    return make
