"""Reading a run's directory: of a training or evaluation run, or of a plain ``harbor run``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

SCHEMA = 1
ENTRY_FIELDS = (
    "trial", "step", "phase", "task_id", "kind", "attempt", "outcome", "treatment", "reason",
    "score", "reward", "terms", "turns", "tokens", "tool_calls", "tool_calls_ok", "seconds",
)  # fmt: skip
"""What one entry of ``trials.jsonl`` holds."""


@dataclass(frozen=True, slots=True)
class Run:
    """``trials`` are the ended ones in order; ``metrics`` are ``{"step", "metrics"}`` in order."""

    directory: Path
    info: dict[str, Any]
    trials: list[dict[str, Any]]
    metrics: list[dict[str, Any]]

    def trial_dir(self, name: str) -> Path | None:
        """The trial's directory, when it was kept."""
        for parent in (self.directory / "trials", self.directory):
            if (parent / name).is_dir():
                return parent / name
        return None


def load_run(directory: Path) -> Run:
    """Read a run's directory.

    Raises ``ValueError`` for a directory that holds neither ``trials.jsonl`` nor trials.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory")
    recorded = directory / "trials.jsonl"
    if recorded.exists():
        trials = [line for line in _lines(recorded) if line.get("event") == "ended"]
    else:
        trials = [entry_of(trial_dir) for trial_dir in trial_dirs(directory)]
    if not trials and not recorded.exists():
        raise ValueError(
            f"{directory}: no trials.jsonl and no trial directories; expected a run's directory "
            "(the one that holds run.json) or a harbor job's"
        )
    info = _json(directory / "run.json") or {}
    return Run(directory, info, trials, list(_lines(directory / "metrics.jsonl")))


def trial_dirs(directory: Path) -> list[Path]:
    """Trial directories of a harbor job, in the order in which they ended."""
    found = [path for path in directory.iterdir() if (path / "config.json").is_file()]
    return sorted(found, key=lambda path: (_finished(path), path.name))


def entry_of(trial_dir: Path) -> dict[str, Any]:
    """What ``trials.jsonl`` would say of a trial, from what its directory holds."""
    result = _json(trial_dir / "result.json") or {}
    outcome = _json(trial_dir / "outcome.json") or {}
    verdict = _json(trial_dir / "verifier" / "verdict.json") or {}
    shaped = _json(trial_dir / "verifier" / "reward_terms.json") or {}
    archipelago = _json(_task_dir(result) / "archipelago.json") or {}
    counts = outcome.get("metrics") or {}
    exception = result.get("exception_info") or {}
    score = verdict.get("score")
    if score is None and not verdict.get("error"):
        score = ((result.get("verifier_result") or {}).get("rewards") or {}).get("reward")
    ended = outcome.get("outcome") or ("complete" if result and not exception else "setup_error")
    return {
        "trial": trial_dir.name,
        "step": None,
        "phase": "job",
        "task_id": archipelago.get("task_id") or result.get("task_name") or "",
        "kind": (archipelago.get("world_short_name") or "").split("-")[0],
        "attempt": 0,
        "outcome": "verifier_error" if verdict.get("error") else ended,
        "treatment": "graded" if score is not None else "ungraded",
        "reason": verdict.get("error") or exception.get("exception_message") or "",
        "score": score,
        "reward": shaped.get("reward", score),
        "terms": {term["name"]: term["value"] for term in shaped.get("terms", ())},
        "turns": counts.get("turns", 0),
        "tokens": counts.get("prompt_tokens", 0) + counts.get("completion_tokens", 0),
        "tool_calls": counts.get("tool_calls", 0),
        "tool_calls_ok": counts.get("tool_calls", 0)
        - counts.get("tool_calls_failed", 0)
        - counts.get("tool_calls_refused", 0),
        "seconds": {**_phases(result), **(outcome.get("seconds") or {})},
    }


def _phases(result: dict[str, Any]) -> dict[str, float]:
    """Seconds by phase, from harbor's own clock."""
    named = {
        "setup": "environment_setup",
        "agent": "agent_execution",
        "verifier": "verifier",
    }
    found = {name: _seconds(result.get(key)) for name, key in named.items()}
    return {"total": _seconds(result), **found}


def _seconds(timing: dict[str, Any] | None) -> float:
    if not timing or not timing.get("started_at") or not timing.get("finished_at"):
        return 0.0
    started, finished = (
        datetime.fromisoformat(timing[key].replace("Z", "+00:00"))
        for key in ("started_at", "finished_at")
    )
    return (finished - started).total_seconds()


def _task_dir(result: dict[str, Any]) -> Path:
    task = (result.get("config") or {}).get("task") or {}
    return Path(task.get("path") or "/nonexistent")


def _finished(trial_dir: Path) -> str:
    return str((_json(trial_dir / "result.json") or {}).get("finished_at") or "")


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file; ``None`` when there is none, or only part of one (a killed run)."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSON-lines file; a last line that a killed run tore off is left out.

    Raises ``ValueError`` naming any other line that is no JSON.
    """
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise ValueError(f"{path}:{number}: not JSON: {error}") from error
