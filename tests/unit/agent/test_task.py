from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_hookspecs import SetupError
from skyrl_apex_plugin.agent.task import load_task, missing_env_keys, read_hints


def write_task(directory: Path, document: Any = None, instruction: str = "Do it.") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "instruction.md").write_text(instruction)
    if document is not None:
        (directory / "archipelago.json").write_text(json.dumps(document))
    return directory


def test_reads_every_field_and_keeps_the_unknown_ones(tmp_path: Path) -> None:
    task = load_task(
        write_task(
            tmp_path / "t",
            {
                "task_id": "task_1",
                "task_name": "Quarterly",
                "task_slug": "quarterly",
                "world_id": "w",
                "world_short_name": "management-consulting-07",
                "ecr_image": "registry/world:1",
                "required_env_keys": ["A_KEY", "B_KEY", "A_KEY"],
                "needs_snapshot": True,
                "mcp_servers": ["excel", "mail"],
            },
        )
    )
    assert task.world_kind == "management-consulting"
    assert task.required_env_keys == ("A_KEY", "B_KEY")
    assert task.needs_snapshot and task.image == "registry/world:1"
    assert task.metadata == {"mcp_servers": ["excel", "mail"]}


def test_a_plain_harbor_task_has_no_world(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path / "hello"))
    assert (task.task_id, task.image, task.world_kind) == ("hello", None, "")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([1], "expected a JSON object"),
        ({"task_slug": 3}, "task_slug=3"),
        ({"required_env_keys": "KEY"}, "required_env_keys='KEY'"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, document: Any, named: str) -> None:
    with pytest.raises(SetupError, match=named):
        load_task(write_task(tmp_path, document))


def test_a_missing_instruction_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"instruction\.md"):
        load_task(tmp_path)


def test_missing_keys_are_named_and_an_empty_value_is_a_value(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, {"required_env_keys": ["A", "B", "C"]}))
    assert missing_env_keys(task, {"A": "1", "B": ""}) == ("C",)


@pytest.mark.parametrize("found", [["one", "two"], {"hints": ["one", "two"]}])
def test_hints_are_a_list_or_an_object(tmp_path: Path, found: Any) -> None:
    task = load_task(write_task(tmp_path))
    assert read_hints(task) == ()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "hints.json").write_text(json.dumps(found))
    assert read_hints(task) == ("one", "two")


def test_hints_of_another_shape_are_an_error(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "hints.json").write_text('{"a": 1}')
    with pytest.raises(SetupError, match=r"hints\.json"):
        read_hints(task)
