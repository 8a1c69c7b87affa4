"""Task directories: finding them, and what can be said of one without running it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import Task

MARKER = "task.toml"
"""A directory that holds this file is a task directory (harbor's own rule)."""


def find_task_dirs(root: Path) -> Iterator[Path]:
    """Task directories in ``root``, or ``root`` itself, sorted by path.

    Hidden directories are left out: an extraction in progress lives in one.
    """
    if (root / MARKER).is_file():
        yield root
        return
    for child in sorted(root.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            yield from find_task_dirs(child)


def read_task(directory: Path) -> Task:
    """A task as trials see it. Raises ``SetupError``, or ``ValueError`` naming the directory."""
    from skyrl_apex_plugin.agent.task import load_task

    try:
        return load_task(directory)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{directory}: a file of it cannot be read: {error}") from error


def task_facts(task: Task) -> dict[str, Any]:
    """What filters, curricula and statistics see of a task, by name.

    Every field of ``archipelago.json``, and ``world_kind``, ``prompt_chars`` (length of the
    instruction), ``criteria`` and ``primary_criteria`` (counts in ``tests/verifiers.json``; 0
    without that file).
    """
    values = [each["verifier_values"] for each in read_verifiers(task.directory)]
    return {
        **task.metadata,
        "task_id": task.task_id,
        "task_name": task.task_name,
        "task_slug": task.task_slug,
        "world_id": task.world_id,
        "world_short_name": task.world_short_name,
        "world_kind": task.world_kind,
        "image": task.image,
        "required_env_keys": list(task.required_env_keys),
        "needs_snapshot": task.needs_snapshot,
        "prompt_chars": len(task.instruction),
        "criteria": len(values),
        "primary_criteria": sum(bool(each.get("is_primary_objective")) for each in values),
    }


def read_verifiers(task_dir: Path) -> list[dict[str, Any]]:
    """The list in ``tests/verifiers.json``; empty when a task has none. Each entry has its
    ``verifier_values``, empty where the file has none.

    Raises ``ValueError`` naming the file when it is not a list of such objects.
    """
    path = task_dir / "tests" / "verifiers.json"
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, list) or not all(isinstance(each, dict) for each in document):
        raise ValueError(f"{path}: expected a list of objects")
    entries = [{**each, "verifier_values": each.get("verifier_values") or {}} for each in document]
    for number, entry in enumerate(entries):
        if not isinstance(entry["verifier_values"], dict):
            raise ValueError(f"{path}: verifier_values of entry {number} is no object")
    return entries
