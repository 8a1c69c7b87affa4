"""``TaskDataset`` where SkyRL expects its ``PromptDataset``: its own loader and input builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.data.dataset import TaskDataset, in_dataset_order


@pytest.fixture
def tasks(make_task: Any, tmp_path: Path) -> Path:
    for number in range(6):
        kind = ("law-01", "investment-banking-02")[number % 2]
        make_task(f"t{number}", world_short_name=kind, criteria=6 - number, difficulty=number)
    return tmp_path / "tasks"


def uids(dataset: TaskDataset) -> list[str]:
    return [dataset[i]["uid"] for i in range(len(dataset))]


def test_rows_carry_prompt_identity_and_world_kind(tasks: Path) -> None:
    row = TaskDataset([tasks])[1]
    assert row["prompt"] == [{"role": "user", "content": "Do t1.\n"}]
    assert row["uid"] == "t1"
    assert row["env_extras"] == {
        "task_dir": str(tasks / "t1"),
        "task_id": "t1",
        "world_id": "w1",
        "data_source": "investment-banking",
    }


def test_ids_do_not_depend_on_neighbours_or_on_where_the_tasks_are(tasks: Path) -> None:
    alone = TaskDataset([tasks / "t4"])
    assert uids(alone) == ["t4"]
    moved = tasks.rename(tasks.with_name("elsewhere"))
    assert uids(TaskDataset([moved]))[4] == "t4"


def test_filter_and_curriculum(tasks: Path) -> None:
    law = TaskDataset([tasks], where='world_kind == "law" and difficulty < 4')
    assert uids(law) == ["t0", "t2"]
    easy_first = TaskDataset([tasks], curriculum="criteria")
    assert uids(easy_first) == ["t5", "t4", "t3", "t2", "t1", "t0"]
    assert easy_first.ordered and not law.ordered


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"where": "world_kid == 'law'"}, "world_kid.*Known names: criteria, difficulty"),
        ({"where": "world_kind =="}, "is not an expression"),
        ({"where": "criteria > 99"}, "leaves none of the 6 tasks"),
        ({"curriculum": "criteria / 'a'"}, "curriculum="),
        ({"where": "''.__class__.__mro__"}, "unsafe"),
    ],
)
def test_faulty_settings_are_named(tasks: Path, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskDataset([tasks], **settings)


def test_sources_without_tasks_and_doubled_ids_are_errors(
    tasks: Path, make_task: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no such file"):
        TaskDataset([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no task directory"):
        TaskDataset([tmp_path / "empty"])
    make_task("copy", root=tmp_path / "more", task_id="t1")
    with pytest.raises(ValueError, match=r"'t1' is claimed by .*t1 and .*copy"):
        TaskDataset([tasks, tmp_path / "more"])


def test_half_extracted_directories_are_not_tasks(tasks: Path) -> None:
    (tasks / "t0").rename(tasks / ".t0.partial")
    assert "t0" not in uids(TaskDataset([tasks]))


def test_skyrls_dataloader_and_generator_input(tasks: Path) -> None:
    """The loader's batches go through SkyRL's own ``prepare_generator_input`` unchanged."""
    loader_of = _skyrl_loader(TaskDataset([tasks], curriculum="difficulty"))
    from skyrl.train.generators.utils import prepare_generator_input

    batches = list(in_dataset_order(loader_of))
    assert [row["uid"] for batch in batches for row in batch] == [f"t{n}" for n in range(6)]
    made, ids = prepare_generator_input(batches[0], 2, {}, "none", "train", 0)
    assert ids == ["t0", "t0", "t1", "t1"]
    assert made["prompts"][2][0]["content"] == "Do t1.\n"
    assert [extra["data_source"] for extra in made["env_extras"]][1:3] == [
        "law",
        "investment-banking",
    ]


def test_shuffled_training_sees_every_task_once(tasks: Path) -> None:
    seen = [row["uid"] for batch in _skyrl_loader(TaskDataset([tasks])) for row in batch]
    assert sorted(seen) == [f"t{n}" for n in range(6)]
    assert seen != sorted(seen)


def _skyrl_loader(dataset: TaskDataset) -> Any:
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.trainer_utils import build_dataloader

    config = SkyRLTrainConfig()
    config.trainer.train_batch_size = 2
    config.data.dataloader.num_workers = 0
    config.data.dataloader.persistent_workers = False
    return build_dataloader(config, dataset)
