"""Checks of task directories, before a run pays for their mistakes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Level = Literal["error", "warning"]

TEXT_FIELDS = ("task_id", "task_name", "task_slug", "world_id", "world_short_name", "ecr_image")
VERIFIER_FIELDS: dict[str, type | tuple[type, ...]] = {
    "verifier_id": str,
    "verifier_version": (int, str),
    "world_id": (str, type(None)),
    "task_id": (str, type(None)),
    "eval_config_id": (str, type(None)),
    "verifier_values": dict,
    "verifier_index": int,
    "verifier_dependencies": (list, type(None)),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a task. ``error`` keeps the task from running or being graded rightly."""

    level: Level
    task: str
    where: str
    what: str


def validate_task(task_dir: Path, env: Mapping[str, str]) -> Iterator[Finding]:
    """Every fault of one task directory.

    :param env: where required keys are looked for; only their names are ever reported.
    """
    checks: list[Callable[[Path, Mapping[str, str]], Iterator[tuple[Level, str, str]]]] = [
        _archipelago,
        _instruction,
        _task_toml,
        _tests,
        _verifiers,
        _golden_responses,
    ]
    for check in checks:
        for level, where, what in check(task_dir, env):
            yield Finding(level, task_dir.name, where, what)


def _archipelago(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    name = "archipelago.json"
    document, fault = _read_json(task_dir / name, dict)
    if document is None:
        yield "error", name, fault
        return
    for key in TEXT_FIELDS:
        value = document.get(key)
        if not isinstance(value, str) or not value:
            yield "error", name, f"{key} is {value!r}, expected a text"
    keys = document.get("required_env_keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
        yield "error", name, f"required_env_keys is {keys!r}, expected a list of names"
    else:
        for key in keys:
            if key not in env:
                yield "error", name, f"required key {key} is not in the environment"
    if not isinstance(document.get("needs_snapshot"), bool):
        yield "error", name, f"needs_snapshot is {document.get('needs_snapshot')!r}, not a boolean"
    servers = document.get("mcp_servers") or []
    if not isinstance(servers, list | dict) or not all(isinstance(each, str) for each in servers):
        yield "error", name, f"mcp_servers is {servers!r:.60}, expected names, or an object by name"


def _instruction(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    name = "instruction.md"
    try:
        text = (task_dir / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        yield "error", name, "is missing"
    except OSError as error:
        yield "error", name, f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        yield "error", name, f"is not UTF-8: {error}"
    else:
        if not text.strip():
            yield "error", name, "is empty"


def _task_toml(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    """Through harbor's own model, and the keys that its ``env`` tables forward."""
    from harbor.models.task.config import TaskConfig
    from harbor.utils.env import get_required_host_vars
    from pydantic import ValidationError

    name = "task.toml"
    try:
        config = TaskConfig.model_validate_toml((task_dir / name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield "error", name, str(error)
        return
    except ValidationError as error:
        for each in error.errors():
            yield "error", name, f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
        return
    tables = {"verifier": config.verifier.env, "environment": config.environment.env}
    for table, values in tables.items():
        for key, default in get_required_host_vars(values):
            if default is None and key not in env:
                what = f"[{table}.env] forwards {key}, which is not in the environment"
                yield "error", name, what


def _tests(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    if not (task_dir / "environment").is_dir():
        yield "error", "environment", "is missing (harbor wants the directory)"
    if not (task_dir / "tests" / "test.sh").is_file():
        yield "error", "tests/test.sh", "is missing"
    hints = task_dir / "tests" / "hints.json"
    if hints.exists():
        document, fault = _read_json(hints, (list, dict))
        if document is None:
            yield "error", "tests/hints.json", fault


def _verifiers(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    name = "tests/verifiers.json"
    entries, fault = _read_json(task_dir / name, list)
    if entries is None:
        yield "error", name, fault
        return
    if not entries:
        yield "error", name, "has no criteria"
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            yield "error", name, f"entry {number} is no object"
            continue
        for level, what in _verifier_entry(entry):
            yield level, name, f"entry {number}: {what}"
        identity = str(entry.get("verifier_id"))
        if identity in seen:
            yield "error", name, f"entry {number}: verifier_id {identity!r} appears twice"
        seen.add(identity)
    yield from _dependencies(entries, seen, name)


def _verifier_entry(entry: dict[str, Any]) -> Iterator[tuple[Level, str]]:
    for key, kind in VERIFIER_FIELDS.items():
        if key not in entry:
            yield "error", f"{key} is missing"
        elif not isinstance(entry[key], kind):
            yield "error", f"{key} is {entry[key]!r:.60}"
    values = entry.get("verifier_values")
    if isinstance(values, dict):
        criteria = values.get("criteria")
        if not isinstance(criteria, str) or not criteria.strip():
            yield "error", f"verifier_values.criteria is {criteria!r}, expected a text"
        if not isinstance(values.get("is_primary_objective", False), bool):
            yield "error", "verifier_values.is_primary_objective is not a boolean"


def _dependencies(
    entries: list[Any], known: set[str], name: str
) -> Iterator[tuple[Level, str, str]]:
    for number, entry in enumerate(entries):
        needed = entry.get("verifier_dependencies") if isinstance(entry, dict) else None
        for each in needed if isinstance(needed, list) else ():
            if str(each) not in known:
                yield "error", name, f"entry {number}: depends on {each!r}, which is not there"


def _golden_responses(task_dir: Path, env: Mapping[str, str]) -> Iterator[tuple[Level, str, str]]:
    name = "tests/golden_responses.json"
    if not (task_dir / name).exists():
        yield "warning", name, "is missing: judges grade without a reference"
        return
    document, fault = _read_json(task_dir / name, list)
    if document is None:
        yield "error", name, fault


def _read_json(path: Path, kind: type | tuple[type, ...]) -> tuple[Any, str]:
    """The document, or ``None`` and what is wrong with it."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None, "is missing"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON: {error}"
    if not isinstance(document, kind):
        return None, f"holds a {type(document).__name__}"
    return document, ""
