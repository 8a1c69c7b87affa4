"""Reads a task directory: ``archipelago.json`` and ``instruction.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import SetupError, Task

_FIELDS = ("task_id", "task_name", "task_slug", "world_id", "world_short_name")
_KINDS = ("investment-banking", "law", "management-consulting", "miniworld")


def load_task(task_dir: Path) -> Task:
    """Read ``task_dir`` into a :class:`Task`.

    A directory without ``archipelago.json`` is a plain harbor task: its name is the directory's
    and it has no world. Fields of ``archipelago.json`` that the contract does not name are kept
    in ``metadata``.

    :raises SetupError: a file is missing, is no JSON object, or a field has the wrong type.
    """
    task_dir = Path(task_dir)
    document = _read_document(task_dir / "archipelago.json")
    text = {name: _text(document, name, task_dir) for name in _FIELDS}
    keys = document.pop("required_env_keys", None) or []
    if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
        raise SetupError(
            f"{task_dir / 'archipelago.json'}: required_env_keys={keys!r}; expected a list of names"
        )
    image = document.pop("ecr_image", None)
    return Task(
        **{**text, "task_id": text["task_id"] or task_dir.name},
        directory=task_dir,
        instruction=_read_instruction(task_dir / "instruction.md"),
        world_kind=_world_kind(text["world_short_name"]),
        image=str(image) if image else None,
        required_env_keys=tuple(dict.fromkeys(keys)),
        needs_snapshot=bool(document.pop("needs_snapshot", False)),
        metadata=document,
    )


def missing_env_keys(task: Task, env: Mapping[str, str]) -> tuple[str, ...]:
    """Required keys that ``env`` does not hold. An empty value is a value."""
    return tuple(key for key in task.required_env_keys if key not in env)


def read_hints(task: Task) -> tuple[str, ...]:
    """The task's ``tests/hints.json``: a list of texts, or an object with such a list as ``hints``.

    No file means no hints. Raises ``SetupError`` for a file of any other shape.
    """
    path = task.directory / "tests" / "hints.json"
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ()
    except ValueError as error:
        raise SetupError(f"{path}: not JSON: {error}") from error
    hints = found.get("hints") if isinstance(found, dict) else found
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise SetupError(f"{path}: expected a list of texts, or an object with one as 'hints'")
    return tuple(hints)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SetupError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise SetupError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document


def _read_instruction(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SetupError(f"{path}: a task directory needs its instruction there") from error


def _text(document: dict[str, Any], name: str, task_dir: Path) -> str:
    value = document.pop(name, None)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SetupError(f"{task_dir / 'archipelago.json'}: {name}={value!r}; expected a text")
    return value


def _world_kind(short_name: str) -> str:
    """The kind is the prefix of the world's short name; an unknown one is its first word."""
    for kind in _KINDS:
        if short_name == kind or short_name.startswith((f"{kind}-", f"{kind}_")):
            return kind
    return short_name.replace("_", "-").split("-", 1)[0]
