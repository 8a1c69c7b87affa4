"""What a trial's agent left behind: its outcome and its final answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import Outcome, VerifierError


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """``outcome`` is ``None`` for agents that write no ``outcome.json``."""

    outcome: Outcome | None
    answer: str | None


def read_agent_record(trial_dir: Path) -> AgentRecord:
    """Outcome and answer of a trial: of ``outcome.json``, else of harbor's own trajectory.

    Raises ``VerifierError`` when a file is there but cannot be read: grading the empty answer
    instead would turn a fault into a low score.
    """
    from skyrl_apex_plugin.agent.record import read_outcome

    try:
        recorded = read_outcome(trial_dir)
    except ValueError as error:
        raise VerifierError(str(error)) from error
    if recorded is not None:
        return AgentRecord(outcome=recorded.outcome, answer=recorded.answer)
    path = trial_dir / "agent" / "trajectory.json"
    if path.exists():
        return AgentRecord(outcome=None, answer=_last_message(_json(path).get("steps", [])))
    return AgentRecord(outcome=None, answer=None)


def _last_message(steps: list[dict[str, Any]]) -> str | None:
    """Text of the last agent step of an ATIF trajectory; ``None`` when there is none."""
    for step in reversed(steps):
        if step.get("source") == "agent":
            message = step.get("message") or ""
            if isinstance(message, list):
                message = "\n".join(part.get("text") or "" for part in message)
            return message or None
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise VerifierError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise VerifierError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document
