"""Reading a run's directory: of a training or evaluation run, or of a plain ``harbor run``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
TEXTS = ("trial", "phase", "task_id", "kind", "outcome", "treatment", "reason")
NUMBERS = ("step", "attempt", "score", "reward", "turns", "tokens", "tool_calls", "tool_calls_ok")


@dataclass(frozen=True, slots=True)
class Run:
    """``trials`` are the ended ones in order; ``metrics`` are ``{"step", "metrics"}`` in order.
    Values that are not finite numbers are missing from both."""

    directory: Path
    info: dict[str, Any]
    trials: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    unreadable: list[str]
    """What is damaged and therefore left out: a file's line or a trial's directory, and why."""

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
    unreadable: list[str] = []
    if recorded.exists():
        lines = _lines(recorded, unreadable, _trial_line)
        trials = [line for line in lines if line.get("event") == "ended"]
    else:
        trials = []
        for trial_dir in trial_dirs(directory):
            try:
                trials.append(_trial(entry_of(trial_dir)))
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                unreadable.append(f"{trial_dir.name}: {error}")
    if not trials and not unreadable and not recorded.exists():
        raise ValueError(
            f"{directory}: no trials.jsonl and no trial directories; expected a run's directory "
            "(the one that holds run.json) or a harbor job's"
        )
    info = read_object(directory / "run.json") or {}
    metrics = _lines(directory / "metrics.jsonl", unreadable, _metrics_line)
    return Run(directory, info, trials, metrics, unreadable)


def trial_dirs(directory: Path) -> list[Path]:
    """Trial directories of a harbor job, in the order in which they ended."""
    found = [path for path in directory.iterdir() if (path / "config.json").is_file()]
    return sorted(found, key=lambda path: (_finished(path), path.name))


def entry_of(trial_dir: Path) -> dict[str, Any]:
    """What ``trials.jsonl`` would say of a trial, from what its directory holds."""
    result = read_object(trial_dir / "result.json") or {}
    outcome = read_object(trial_dir / "outcome.json") or {}
    verdict = read_object(trial_dir / "verifier" / "verdict.json") or {}
    shaped = read_object(trial_dir / "verifier" / "reward_terms.json") or {}
    archipelago = read_object(_task_dir(result) / "archipelago.json") or {}
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
    return str((read_object(trial_dir / "result.json") or {}).get("finished_at") or "")


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a file; ``None`` when there is none, or only part of one (a killed run)."""
    try:
        document = parse(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def parse(text: str | bytes) -> Any:
    """JSON in which numbers that are not finite count as missing. Raises ``ValueError``."""
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _lines(
    path: Path, unreadable: list[str], read: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file. Lines that are none are named in ``unreadable``.

    A last line without an end is left out: the run may be about to write the rest of it.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            document = parse(line)
            if not isinstance(document, dict):
                raise ValueError(f"expected an object, found {type(document).__name__}")
            found.append(read(document))
        except ValueError as error:
            unreadable.append(f"{path.name}:{number}: {error}")
    return found


def _trial_line(line: dict[str, Any]) -> dict[str, Any]:
    return _trial(line) if line.get("event") == "ended" else line


def _trial(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry, when its values are of the kinds that the report counts with.

    Raises ``ValueError`` naming the first one that is not.
    """
    for name in TEXTS:
        needed = name in ("trial", "outcome", "treatment")
        if not isinstance(entry.get(name), str) and (needed or entry.get(name) is not None):
            raise ValueError(f"{name}={entry.get(name)!r:.80}: expected a text")
    for name in NUMBERS:
        _number(name, entry.get(name))
    return {**entry, **{name: _numbers(name, entry.get(name)) for name in ("terms", "seconds")}}


def _metrics_line(line: dict[str, Any]) -> dict[str, Any]:
    _number("step", line.get("step"))
    return {**line, "metrics": _numbers("metrics", line.get("metrics"))}


def _numbers(name: str, values: Any) -> dict[str, float]:
    """The named numbers that there are; one that was not finite is null."""
    if not isinstance(values, dict | None):
        raise ValueError(f"{name}={values!r:.80}: expected an object")
    for key, value in (values or {}).items():
        _number(f"{name}.{key}", value)
    return {key: value for key, value in (values or {}).items() if value is not None}


def _number(name: str, value: Any) -> None:
    if not isinstance(value, int | float | None):
        raise ValueError(f"{name}={value!r:.80}: expected a number")
