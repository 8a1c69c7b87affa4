"""The JSON that a world's grading runner writes beside the reward file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import CriterionResult, VerifierError

GOOD_STATUSES = frozenset({"ok", "completed", "success", "passed", "graded"})
"""What a graded criterion's ``status`` may say. Any other word counts as a failed judge: taking
an unknown word for a score would train on a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerResult:
    """``status`` is ``completed`` for a run that graded; ``final_score`` is 0.0 in failed runs."""

    path: Path
    status: str
    final_score: float | None
    criteria: tuple[CriterionResult, ...]
    message: str = ""


def runner_files(verifier_dir: Path) -> list[Path]:
    """Files in ``verifier_dir`` that speak of a grading run, whole or cut off."""
    return [
        path
        for path in sorted(verifier_dir.glob("*.json"))
        if path.name != "verdict.json" and b"grading_run_status" in path.read_bytes()
    ]


def find_runner_result(verifier_dir: Path, task_dir: Path) -> RunnerResult | None:
    """The grading runner's result in ``verifier_dir``, with the texts of the task's criteria.

    Raises ``VerifierError`` when there are two of them, or one that cannot be understood.
    """
    paths = runner_files(verifier_dir)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise VerifierError(f"several grading results in {verifier_dir}: {names}")
    if not paths:
        return None
    path = paths[0]
    try:
        document = json.loads(path.read_bytes())
        status = str(document["grading_run_status"])
    except (ValueError, KeyError, TypeError) as error:
        raise VerifierError(f"{path.name}: not a whole grading result: {error!r}") from error
    scoring = document.get("scoring_results") or {}
    final_score = scoring.get("final_score")
    if final_score is not None and not _is_score(final_score):
        raise VerifierError(f"{path.name}: final_score is {final_score!r}, not a finite number")
    texts = _criterion_values(task_dir)
    return RunnerResult(
        path=path,
        status=status,
        final_score=None if final_score is None else float(final_score),
        criteria=tuple(_criterion(each, texts) for each in document.get("verifier_results") or []),
        message=str(document.get("message") or document.get("error") or ""),
    )


def _criterion_values(task_dir: Path) -> dict[str, dict[str, Any]]:
    """``verifier_values`` by ``verifier_id`` of the task's ``tests/verifiers.json``."""
    path = task_dir / "tests" / "verifiers.json"
    if not path.exists():
        return {}
    return {
        str(each["verifier_id"]): each.get("verifier_values") or {}
        for each in json.loads(path.read_bytes())
    }


def _criterion(result: dict[str, Any], texts: dict[str, dict[str, Any]]) -> CriterionResult:
    criterion_id = str(result.get("verifier_id", ""))
    values = {**texts.get(criterion_id, {}), **(result.get("verifier_result_values") or {})}
    score = result.get("score")
    status = str(result.get("status") or "ok").lower()
    graded = status in GOOD_STATUSES and _is_score(score)
    return CriterionResult(
        criterion_id=criterion_id,
        score=float(score) if graded and score is not None else None,
        status="ok" if graded else "error",
        criteria=str(values.get("criteria") or ""),
        rationale=str(values.get("grade_rationale") or result.get("message") or ""),
        primary=bool(values.get("is_primary_objective", False)),
    )


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
