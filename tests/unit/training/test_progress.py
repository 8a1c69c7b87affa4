"""What a user sees, from what a run writes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from skyrl_apex_plugin.training.progress import Follower, RunView


def append(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as stream:
        for line in lines:
            stream.write(json.dumps(line) + "\n")


def test_a_step_becomes_a_table_with_failures_by_class(tmp_path: Path) -> None:
    screen = io.StringIO()
    view = RunView(tmp_path, Console(file=screen, width=100), steps=4)
    view.refresh()
    append(
        tmp_path / "metrics.jsonl",
        {
            "step": 1,
            "metrics": {
                "apex/reward": 0.25,
                "apex/pass_at_1": 0.125,
                "apex/tool_success": 0.75,
                "apex/sum/outcome/complete": 6,
                "apex/sum/outcome/setup_error": 2,
                "policy/grad_norm": 0.5,
            },
        },
        {"step": 1, "metrics": {"timing/step": 12.0, "timing/sync_weights": 0.4}},
    )
    view.refresh()
    shown = screen.getvalue()
    for text in ("step 1 of 4", "0.250", "0.125", "0.750", "setup_error", "12.0", "0.4"):
        assert text in shown
    assert "complete" not in shown
    assert [step for step, _ in view.steps] == [1]


def test_a_number_that_was_not_finite_is_shown_as_such(tmp_path: Path) -> None:
    screen = io.StringIO()
    view = RunView(tmp_path, Console(file=screen, width=100), steps=4)
    metrics = {"apex/reward": None, "timing/step": 12.0}
    append(tmp_path / "metrics.jsonl", {"step": 1, "metrics": metrics})
    view.refresh()
    assert "nan" in screen.getvalue()


def test_the_live_line_counts_trials(tmp_path: Path) -> None:
    view = RunView(tmp_path, Console(file=io.StringIO()), steps=None)
    ended = {"event": "ended", "outcome": "complete", "retried": ["setup_error"]}
    append(tmp_path / "trials.jsonl", *[{"event": "started"}] * 4, ended)
    view.refresh()
    assert view._status() == "step 1: 2 trials running, 1 ended (1 complete)"


def test_a_line_that_a_killed_run_left_torn_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": "\n{"a": 2}\n')
    assert list(Follower(path).new_lines()) == [{"a": 1}, {"a": 2}]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    follower = Follower(path)
    assert list(follower.new_lines()) == []
    path.write_text('{"a": 1}\n{"a"')
    assert list(follower.new_lines()) == [{"a": 1}]
    with path.open("a") as stream:
        stream.write(": 2}\n")
    assert list(follower.new_lines()) == [{"a": 2}]
