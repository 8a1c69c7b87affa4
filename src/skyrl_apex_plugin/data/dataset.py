"""The dataset that SkyRL trains and evaluates on: one row for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from skyrl_apex_plugin.data.expression import compile_expression
from skyrl_apex_plugin.data.sources import task_dirs
from skyrl_apex_plugin.data.tasks import read_task, task_facts

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader

ENV_CLASS = "apex_tito"
"""SkyRL wants a name here for its own gym; the generator of this package needs none."""

Message = dict[str, str]


class Row(TypedDict):
    """One prompt as SkyRL's ``prepare_generator_input`` takes it."""

    prompt: list[Message]
    env_class: str
    env_extras: dict[str, Any]
    uid: str


class TaskDataset:
    """Tasks in the shape of SkyRL's ``PromptDataset``: indexing, length and ``collate_fn``.

    The ``uid`` of a row is its task's ID, so a checkpoint's list of consumed prompts stays right
    when tasks are added, removed or moved. ``env_extras`` holds ``task_dir``, ``task_id``,
    ``world_id`` and ``data_source`` (the world kind: SkyRL's evaluation reports for each).

    :param sources: task directories, directories of them, or parquet shards, which are extracted
        into the cache the first time they are used.
    :param cache_dir: where shards are extracted to; ``~/.cache/skyrl-apex/tasks`` by default.
    :param where: keep the tasks for which this expression holds.
    :param curriculum: an expression; tasks come in ascending order of its value, ties by ID. Use
        :func:`in_dataset_order` on the dataloader, which shuffles otherwise.

    Raises ``ValueError`` for a source without tasks, a task ID that two directories claim
    (naming both), a faulty expression, and when ``where`` leaves nothing.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        *,
        cache_dir: Path | None = None,
        where: str | None = None,
        curriculum: str | None = None,
    ) -> None:
        keep = compile_expression(where, "where") if where else None
        rank = compile_expression(curriculum, "curriculum") if curriculum else None
        ranked: list[tuple[Any, Row]] = []
        seen: dict[str, Path] = {}
        for directory in task_dirs(sources, cache_dir):
            task = read_task(directory)
            other = seen.setdefault(task.task_id, directory)
            if other != directory:
                raise ValueError(f"task ID {task.task_id!r} is claimed by {other} and {directory}")
            facts = task_facts(task)
            if keep is None or keep(facts):
                ranked.append(((rank(facts) if rank else 0, task.task_id), _row(task)))
        if not ranked:
            raise ValueError(f"where={where!r} leaves none of the {len(seen)} tasks")
        try:
            ranked.sort(key=lambda pair: pair[0])
        except TypeError as error:
            raise ValueError(f"curriculum={curriculum!r} gives no order: {error}") from error
        self._rows = [row for _, row in ranked]
        self.ordered = curriculum is not None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index]

    def collate_fn(self, rows: list[Row]) -> list[Row]:
        """What SkyRL's dataloader calls; its trainer wants the list as it is."""
        return rows


def in_dataset_order(loader: StatefulDataLoader[Row]) -> StatefulDataLoader[Row]:
    """``loader`` without its shuffling, for a dataset with a curriculum.

    SkyRL's ``build_dataloader`` always shuffles training data; all other settings are kept.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        shuffle=False,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        persistent_workers=loader.persistent_workers,
        drop_last=loader.drop_last,
        generator=loader.generator,
        multiprocessing_context=loader.multiprocessing_context,
    )


def _row(task: Any) -> Row:
    return Row(
        prompt=[{"role": "user", "content": task.instruction}],
        env_class=ENV_CLASS,
        env_extras={
            "task_dir": str(task.directory),
            "task_id": task.task_id,
            "world_id": task.world_id,
            "data_source": task.world_kind or "unknown",
        },
        uid=task.task_id,
    )
