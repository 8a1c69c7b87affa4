"""What a run leaves behind: ``agent/turns.jsonl``, ``agent/trajectory.json``, ``outcome.json``.

Turns are appended as they happen, so a killed run leaves all it did; the other files are written
at the end, each in one step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from skyrl_apex_hookspecs import Outcome, Task, Turn
from skyrl_apex_plugin.files import write_atomic

from .conversation import Message, ModelTurn
from .toolbox import Handled

SCHEMA = 1
TURNS = Path("agent") / "turns.jsonl"
TOKENS = Path("agent") / "tokens.apex"
OUTCOME = Path("outcome.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """The contents of ``outcome.json``. ``seconds`` are by phase, ``metrics`` are counts."""

    outcome: Outcome
    answer: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """Writes the record of one run and counts what happens in it.

    :param trial_dir: harbor's trial directory.
    """

    def __init__(self, trial_dir: Path) -> None:
        self._trial_dir = trial_dir
        self._file: TextIO | None = None
        self._counts: Counter[str] = Counter()
        self._servers: dict[str, Counter[str]] = {}
        self._model_seconds = 0.0
        self._tool_seconds = 0.0

    def start(
        self, task: Task, messages: Sequence[Message], *, model: str, mode: str, tools: list[Any]
    ) -> None:
        """Begin the record with what the model is given."""
        path = self._trial_dir / TURNS
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._append(
            "start",
            schema=SCHEMA,
            task_id=task.task_id,
            model=model,
            mode=mode,
            messages=list(messages),
            tools=tools,
        )

    def model_turn(self, turn: ModelTurn) -> None:
        """Record what the model said, before its tools run."""
        self._counts["turns"] += 1
        self._counts["completion_tokens"] += turn.completion_tokens
        self._counts["prompt_tokens"] += turn.prompt_tokens
        self._model_seconds += turn.seconds
        self._append(
            "model",
            content=turn.content,
            reasoning=turn.reasoning,
            calls=[
                {"id": call.call_id, "name": call.name, "arguments": call.arguments}
                for call in turn.calls
            ],
            malformed=turn.malformed,
            finish=turn.finish,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.completion_tokens,
            seconds=round(turn.seconds, 4),
        )

    def tool_results(self, turn: Turn, handled: Sequence[Handled]) -> None:
        """Record what came of the turn's calls."""
        self._tool_seconds += turn.tool_seconds
        self._counts["malformed_turns"] += turn.malformed
        for item in handled:
            self._count(item)
        self._append(
            "tools",
            turn=turn.index,
            seconds=round(turn.tool_seconds, 4),
            results=[
                {
                    "id": item.call.call_id,
                    "server": item.call.server,
                    "ok": item.call.ok,
                    "dispatched": item.call.dispatched,
                    "error": item.call.error,
                    "seconds": round(item.call.seconds, 4),
                    "text": item.text,
                    "images": len(item.images),
                }
                for item in handled
            ],
        )

    def metrics(self, **more: int) -> dict[str, Any]:
        """Counts of the run so far; those of each server under ``servers``."""
        return {
            **dict.fromkeys(("turns", "prompt_tokens", "completion_tokens", "malformed_turns"), 0),
            **dict.fromkeys(("tool_calls", "tool_calls_failed", "tool_calls_refused"), 0),
            **self._counts,
            **more,
            "servers": {name: dict(counts) for name, counts in self._servers.items()},
        }

    def seconds(self) -> dict[str, float]:
        return {"model": round(self._model_seconds, 4), "tools": round(self._tool_seconds, 4)}

    def write_outcome(self, outcome: TrialOutcome) -> None:
        """Write ``outcome.json`` in one step."""
        document = {
            "schema": SCHEMA,
            "outcome": outcome.outcome.value,
            "error_type": outcome.error_type,
            "error_message": outcome.error_message,
            "answer": outcome.answer,
            "seconds": dict(outcome.seconds),
            "metrics": dict(outcome.metrics),
        }
        write_atomic(self._trial_dir / OUTCOME, json.dumps(document, indent=1, ensure_ascii=False))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _count(self, item: Handled) -> None:
        call = item.call
        self._counts["tool_calls"] += 1
        if not call.dispatched:
            self._counts["tool_calls_refused"] += 1
            return
        self._counts["tool_calls_failed"] += not call.ok
        server = self._servers.setdefault(call.server or "unknown", Counter())
        server["calls"] += 1
        server["failed"] += not call.ok
        server["milliseconds"] += round(1000 * call.seconds)

    def _append(self, kind: str, **fields: Any) -> None:
        if self._file is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"kind": kind, "at": at, **fields}, ensure_ascii=False) + "\n")
        self._file.flush()


def read_turns(trial_dir: Path) -> list[dict[str, Any]]:
    """The lines of ``agent/turns.jsonl``; a last line that a killed run tore off is left out.

    :raises FileNotFoundError: the agent never began.
    :raises ValueError: a line other than the last is no JSON; names it.
    """
    path = trial_dir / TURNS
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}:{number}: not JSON: {error}") from error
    return found


def read_outcome(trial_dir: Path) -> TrialOutcome | None:
    """The outcome that a trial's agent wrote; ``None`` when it never came to that.

    harbor ends an agent that is over harbor's own limit by cancelling it, which the agent cannot
    tell from being stopped; harbor's result says which it was.

    :raises ValueError: the file is there but cannot be read.
    """
    path = trial_dir / OUTCOME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r}; this release reads {SCHEMA}")
        outcome = Outcome(document["outcome"])
        if outcome is Outcome.CANCELLED:
            outcome = _harbor_limit(trial_dir) or outcome
        return TrialOutcome(
            outcome=outcome,
            answer=document["answer"],
            error_type=document["error_type"],
            error_message=document["error_message"],
            seconds=document["seconds"],
            metrics=document["metrics"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trial outcome: {error}") from error


def _harbor_limit(trial_dir: Path) -> Outcome | None:
    """The outcome behind a cancellation that was harbor's own time limit."""
    try:
        result = json.loads((trial_dir / "result.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    kind = (result.get("exception_info") or {}).get("exception_type")
    limits = {
        "AgentTimeoutError": Outcome.AGENT_TIMEOUT,
        "AgentSetupTimeoutError": Outcome.SETUP_ERROR,
    }
    return limits.get(str(kind))
