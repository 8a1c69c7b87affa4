"""``verifier/verdict.json``: the verdict of a trial as a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import CriterionResult, Verdict
from skyrl_apex_plugin.files import write_atomic

SCHEMA = 1


def verdict_path(trial_dir: Path) -> Path:
    return trial_dir / "verifier" / "verdict.json"


def write_verdict(trial_dir: Path, verdict: Verdict) -> None:
    """Write ``verdict`` atomically. A failed grading is written too: its ``score`` is null."""
    document = {"schema": SCHEMA, **asdict(verdict)}
    # ASCII: a judge may have written half of a surrogate pair, which UTF-8 cannot hold.
    write_atomic(verdict_path(trial_dir), json.dumps(document, allow_nan=False, indent=1))


def read_verdict(trial_dir: Path) -> Verdict | None:
    """The trial's verdict, or ``None`` when the grader never got as far as writing one.

    Raises ``ValueError`` naming the file when it is of another schema or not a verdict.
    """
    path = verdict_path(trial_dir)
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if document.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: schema {document.get('schema')!r}, this version reads schema {SCHEMA}"
        )
    try:
        return Verdict(
            grader=document["grader"],
            score=document["score"],
            error=document["error"],
            criteria=tuple(CriterionResult(**each) for each in document["criteria"]),
            metrics=document["metrics"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a verdict of schema {SCHEMA}: {error}") from error
