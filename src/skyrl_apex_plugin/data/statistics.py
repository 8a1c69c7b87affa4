"""What a set of tasks is made of."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skyrl_apex_hookspecs import Task
from skyrl_apex_plugin.data.tasks import task_facts


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, median, ninth decile and greatest of some numbers."""

    least: float
    median: float
    p90: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        p90 = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
        return cls(ordered[0], statistics.median(ordered), p90, ordered[-1])


@dataclass(frozen=True, slots=True)
class Statistics:
    tasks: int
    worlds: int
    kinds: dict[str, int]
    """World kind to number of tasks, most frequent first."""
    images: dict[str, list[str]]
    """World to its images; more than one is worth a look."""
    required_env_keys: dict[str, int]
    snapshot_tasks: int
    criteria: Spread
    prompt_chars: Spread
    prompt_lengths: list[int]
    criteria_counts: list[int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def statistics_of(tasks: Iterable[Task]) -> Statistics:
    """Raises ``ValueError`` when there is no task."""
    facts = [task_facts(task) for task in tasks]
    if not facts:
        raise ValueError("no tasks to describe")
    images: defaultdict[str, set[str]] = defaultdict(set)
    keys: Counter[str] = Counter()
    for each in facts:
        if each["image"]:
            images[each["world_short_name"] or each["world_id"]].add(each["image"])
        keys.update(each["required_env_keys"])
    lengths = [each["prompt_chars"] for each in facts]
    counts = [each["criteria"] for each in facts]
    return Statistics(
        tasks=len(facts),
        worlds=len({each["world_id"] for each in facts}),
        kinds=dict(Counter(each["world_kind"] or "unknown" for each in facts).most_common()),
        images={world: sorted(names) for world, names in sorted(images.items())},
        required_env_keys=dict(keys.most_common()),
        snapshot_tasks=sum(each["needs_snapshot"] for each in facts),
        criteria=Spread.of(counts),
        prompt_chars=Spread.of(lengths),
        prompt_lengths=lengths,
        criteria_counts=counts,
    )
