"""The run's directory: what other programs read of a run, while it goes on and afterwards.

``run.json`` says what runs, ``metrics.jsonl`` holds what SkyRL's tracker was given, one line for
each call, ``trials.jsonl`` one line when a trial starts and one when it ended, ``gate.jsonl`` one
line for each step that the logprob gate checked, and ``trials/`` the trial directories. Lines are
appended whole, so a reader may follow along. Numbers that are not finite are null: JSON has none.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from skyrl_apex_plugin.files import write_atomic
from skyrl_apex_plugin.tito.logprob_gate import TurnDrift

from .rollout import Rollout

SCHEMA = 1
Keep = Literal["all", "failed", "none"]


def new_run_dir(parent: Path) -> Path:
    """A directory name that no other run has: trials of an earlier run are never mixed in."""
    return parent / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"


class RunRecord:
    """Writes a run's directory.

    :param keep: which trial directories stay once their trial is over.
    """

    def __init__(self, directory: Path, *, keep: str = "all") -> None:
        if keep not in ("all", "failed", "none"):
            raise ValueError(f"apex.record.keep={keep!r}; known: all, failed, none")
        self.directory = directory
        self.trials_dir = directory / "trials"
        self._keep = keep
        self.trials_dir.mkdir(parents=True, exist_ok=True)

    def describe(self, document: Mapping[str, Any]) -> None:
        """Write ``run.json``."""
        content = {"schema": SCHEMA, "started_at": _now(), **document}
        write_atomic(self.directory / "run.json", _json(content, indent=1, default=str))

    def metrics(self, step: int | None, values: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        self._append("metrics.jsonl", {"at": _now(), "step": step, "metrics": numbers})

    def gate(self, step: int, positions: Sequence[TurnDrift]) -> None:
        """Append the gate's differences in a step by turn position, the first turn being 0."""
        turns = [
            {"turn": each.turn, "tokens": each.tokens, "mean": each.mean, "max": each.max}
            for each in positions
        ]
        self._append("gate.jsonl", {"at": _now(), "step": step, "turns": turns})

    def trial_started(self, trial_name: str, *, step: int | None, phase: str) -> None:
        line = {"event": "started", "at": _now(), "trial": trial_name, "step": step, "phase": phase}
        self._append("trials.jsonl", line)

    def trial_ended(self, rollout: Rollout, *, step: int | None, phase: str) -> None:
        """Append the trial's line; the trial's directory goes where ``keep`` says so."""
        ended, trajectory = rollout.ended, rollout.ended.trajectory
        calls = [call for turn in trajectory.turns for call in turn.calls] if trajectory else []
        line = {
            "event": "ended",
            "at": _now(),
            "trial": rollout.finished.attempt.config.trial_name,
            "step": step,
            "phase": phase,
            "task_id": ended.task.task_id,
            "kind": rollout.kind,
            "attempt": ended.attempt,
            "outcome": rollout.failure.outcome.value,
            "treatment": rollout.failure.treatment.value,
            "reason": rollout.failure.reason,
            "retried": [failure.outcome.value for failure in rollout.retried],
            "score": rollout.score,
            "reward": rollout.reward,
            "terms": {term.name: term.value for term in rollout.terms},
            "turns": len(trajectory.turns) if trajectory else 0,
            "tokens": len(trajectory.tokens) if trajectory else 0,
            "tool_calls": len(calls),
            "tool_calls_ok": sum(call.dispatched and call.ok for call in calls),
            "seconds": {name: round(value, 3) for name, value in ended.seconds.items()},
        }
        self._append("trials.jsonl", line)
        failed = not rollout.trained and rollout.score is None
        if self._keep == "none" or (self._keep == "failed" and not failed):
            shutil.rmtree(rollout.finished.attempt.trial_dir, ignore_errors=True)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append one line, or nothing: raises ``OSError`` when it does not fit on the disk."""
        path = self.directory / name
        data = (_json(line) + "\n").encode()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # trials end in several threads
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a killed run tore its last line, which must not spoil this
            written = 0
            try:
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except OSError as error:
                os.ftruncate(descriptor, size)
                raise OSError(error.errno, f"no line added: {error.strerror}", str(path)) from error
        finally:
            os.close(descriptor)


def _json(document: Any, **options: Any) -> str:
    """ASCII, so that half a surrogate pair in a text is no obstacle."""
    return json.dumps(_finite(document), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
