"""``--dry-run`` says what would stop a run, and passes for no run that does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.training import dry_run


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """``train/`` with three tasks and ``heldout/`` with one."""
    for name, count in (("train", 3), ("heldout", 1)):
        for number in range(count):
            directory = tmp_path / name / f"{name}-{number}"
            directory.mkdir(parents=True)
            (directory / "archipelago.json").write_text(json.dumps({"task_id": directory.name}))
            (directory / "instruction.md").write_text("add")
            (directory / "task.toml").write_text("")
    return tmp_path


def checked(
    tasks: Path, *settings: str, purpose: Any = "train", environment: dict[str, str] | None = None
) -> dict[str, dry_run.DryCheck]:
    arguments = [
        "trainer.policy.model.path=/models/m",
        "trainer.logger=console",
        f"data.train_data=[{tasks}/train]",
        f"data.val_data=[{tasks}/heldout]",
        "trainer.train_batch_size=2",
        "trainer.policy_mini_batch_size=2",
        *settings,
    ]
    return {
        check.name: check for check in dry_run.run_checks(purpose, arguments, environment or {})
    }


def test_training_and_validation_tasks_are_counted_apart(tasks: Path) -> None:
    data = checked(tasks)["data"]
    assert (data.status, data.detail) == ("ok", "3 training tasks, 1 validation tasks")
    data = checked(tasks, "trainer.eval_interval=-1")["data"]
    assert (data.status, data.detail) == ("ok", "3 training tasks")
    data = checked(tasks, purpose="eval")["data"]
    assert (data.status, data.detail) == ("ok", "1 validation tasks")


@pytest.mark.parametrize(
    "settings",
    [
        ["trainer.train_batch_size=4", "trainer.policy_mini_batch_size=4"],
        ["trainer.train_batch_size=4", "trainer.policy_mini_batch_size=4", "data.train_data=[]"],
        ['apex.tasks.where=\'task_id == "train-1" or task_id == "heldout-0"\''],
    ],
)
def test_a_run_without_a_whole_batch_fails(tasks: Path, settings: list[str]) -> None:
    data = checked(tasks, *settings)["data"]
    assert data.status == "failed"
    assert "training tasks are fewer than trainer.train_batch_size=" in data.detail


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("apex.tasks.where=criteria/0", "division by zero"),
        ("apex.tasks.curriculum=criteria/0", "division by zero"),
        ("apex.tasks.where=nobody > 1", "Known names"),
        ("apex.tasks.where=criteria > 99", "leaves none"),
    ],
)
def test_an_expression_that_fails_on_a_task_is_named(tasks: Path, setting: str, says: str) -> None:
    data = checked(tasks, setting)["data"]
    assert data.status == "failed" and says in data.detail
    assert setting.partition("=")[2] in data.detail


class OfAList:
    """A grader whose keys depend on an argument."""

    def __init__(self, *, judges: list[dict[str, str]]) -> None: ...

    @staticmethod
    def needed_env(env: dict[str, str], *, judges: list[dict[str, str]]) -> list[str]:
        return [judge["key"] for judge in judges]


def test_arguments_that_a_plugin_chokes_on_are_an_answer(tasks: Path) -> None:
    settings = "apex.grader.kwargs.judges={key: a, api_key: sk-1}"
    keys = checked(tasks, f"apex.grader.name={__name__}:OfAList", settings)["keys"]
    assert keys.status == "failed" and "TypeError" in keys.detail and "OfAList" in keys.detail
    assert "'key': 'a'" in keys.detail and "sk-1" not in keys.detail


def test_a_missing_key_of_the_logger_does_not_hide_the_others(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    found = checked(tasks, "trainer.logger=wandb", "apex.grader.name=rubric")
    assert found["config"].status == "failed" and "WANDB_API_KEY" in found["config"].detail
    assert found["keys"].status == "failed" and "GOOGLE_API_KEY" in found["keys"].detail


def test_nothing_is_looked_at_after_a_configuration_that_is_none(tasks: Path) -> None:
    found = checked(tasks, "apex.record.keep=nope")
    assert found["config"].status == "failed"
    assert not {"data", "keys", "sandbox"} & found.keys()
