"""What a task says about its own grading: criteria and golden responses."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import VerifierError


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One entry of ``tests/verifiers.json``."""

    criterion_id: str
    text: str
    primary: bool
    file_types: tuple[str, ...]
    """Suffixes (``.xlsx``) of which the agent must have produced one; empty asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    criteria: tuple[Criterion, ...]
    golden_responses: tuple[str, ...]


def load_rubric(task_dir: Path) -> Rubric:
    """Read ``tests/verifiers.json`` and, where there is one, ``tests/golden_responses.json``.

    Raises ``VerifierError`` naming the file and what is wrong with it.
    """
    path = task_dir / "tests" / "verifiers.json"
    entries = _json_list(path)
    if not entries:
        raise VerifierError(f"{path}: no criteria to grade by")
    ordered = sorted(entries, key=lambda each: _index(each, path))
    criteria = tuple(_criterion(each, path) for each in ordered)
    names = [each.criterion_id for each in criteria]
    if len(set(names)) < len(names):
        raise VerifierError(f"{path}: a verifier_id appears twice: {sorted(names)}")
    golden_path = task_dir / "tests" / "golden_responses.json"
    golden = _json_list(golden_path) if golden_path.exists() else []
    return Rubric(criteria=criteria, golden_responses=tuple(_golden(each) for each in golden))


def _index(entry: Any, path: Path) -> float:
    """Place of an entry in the list. Raises ``VerifierError`` when it is no number."""
    if not isinstance(entry, dict):
        raise VerifierError(f"{path}: expected objects, found {entry!r:.200}")
    index = entry.get("verifier_index")
    if index is None:
        return 0
    if not isinstance(index, int | float) or isinstance(index, bool) or index != index:
        raise VerifierError(f"{path}: verifier_index={index!r:.50} is no number: {entry!r:.200}")
    return index


def _criterion(entry: dict[str, Any], path: Path) -> Criterion:
    try:
        values = entry["verifier_values"]
        return Criterion(
            criterion_id=str(entry["verifier_id"]),
            text=str(values["criteria"]),
            primary=bool(values.get("is_primary_objective", False)),
            file_types=file_types(values.get("expected_file_type")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise VerifierError(f"{path}: an entry lacks {error}: {entry!r:.200}") from error


def file_types(expected: object) -> tuple[str, ...]:
    """Suffixes named in ``expected_file_type``: ``xlsx``, ``.docx`` or ``Sheets (.xlsx, .csv)``.

    Texts without a suffix (``final answer only``) ask for no file.
    """
    text = str(expected or "").strip().lower()
    if re.fullmatch(r"[a-z][a-z0-9]{1,4}", text):
        return (f".{text}",)
    return tuple(dict.fromkeys(re.findall(r"\.[a-z][a-z0-9]{1,4}\b", text)))


def _golden(entry: Any) -> str:
    if isinstance(entry, dict):
        entry = entry.get("response") or entry.get("content") or json.dumps(entry)
    return str(entry)


def _json_list(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise VerifierError(f"{path}: the rubric grader needs this file") from error
    except ValueError as error:
        raise VerifierError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, list):
        raise VerifierError(f"{path}: expected a list, found {type(document).__name__}")
    return document
