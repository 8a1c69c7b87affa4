"""harbor's views of a run: its trajectory format (ATIF) and its rollout details."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from harbor.models.agent.rollout_detail import RolloutDetail
from harbor.models.trajectories import (
    Agent,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)

from skyrl_apex_hookspecs import Turn
from skyrl_apex_plugin.files import write_atomic

from .record import TOKENS, read_turns

TRAJECTORY = Path("agent") / "trajectory.json"
ATIF_VERSION = "ATIF-v1.7"
"""The newest that both harbor 0.21 and 0.26 read; 1.8 adds only audio."""


def build_trajectory(
    lines: Sequence[dict[str, Any]],
    *,
    agent_name: str,
    agent_version: str,
    session_id: str,
    ledger: Any = None,
) -> Trajectory:
    """The ATIF trajectory of recorded turns.

    With a token ledger each agent step carries its sampled IDs and logprobs. A step's prompt is
    everything before it, so prompts are not repeated: the first step holds the first prompt.

    :param lines: what :func:`~.record.read_turns` gives.
    """
    start = next(line for line in lines if line["kind"] == "start")
    steps = [
        Step(
            step_id=index, timestamp=start["at"], source=message["role"], message=message["content"]
        )
        for index, message in enumerate(start["messages"], 1)
    ]
    spans = ledger.turns if ledger is not None else ()
    for number, (model, tools) in enumerate(_pairs(lines)):
        metrics = Metrics(
            prompt_tokens=model["prompt_tokens"],
            completion_tokens=model["completion_tokens"],
            extra={"model_seconds": model["seconds"], "finish": model["finish"]},
        )
        if number < len(spans):
            _add_tokens(metrics, ledger, spans[number], first=number == 0)
        steps.append(_step(len(steps) + 1, model, tools, metrics))
    return Trajectory(
        schema_version=ATIF_VERSION,
        session_id=session_id,
        agent=Agent(
            name=agent_name,
            version=agent_version,
            model_name=start["model"],
            tool_definitions=start["tools"],
        ),
        steps=steps,
        notes="The prompt of a step is the first prompt with every step and observation before it.",
        final_metrics=_final_metrics(steps),
        extra={"mode": start["mode"], "task_id": start["task_id"]},
    )


def write_trajectory(trial_dir: Path, trajectory: Trajectory) -> None:
    """Write ``agent/trajectory.json`` in one step."""
    write_atomic(trial_dir / TRAJECTORY, json.dumps(trajectory.to_json_dict(), ensure_ascii=False))


def read_trajectory(trial_dir: Path) -> Trajectory:
    """The trajectory of a trial; of a killed run, rebuilt from what it had recorded.

    :raises FileNotFoundError: the agent never began.
    """
    path = trial_dir / TRAJECTORY
    if path.exists():
        return Trajectory.model_validate_json(path.read_bytes())
    ledger = None
    if (trial_dir / TOKENS).exists():
        from skyrl_apex_plugin.tito.ledger import TokenLedger

        ledger = TokenLedger.load(trial_dir / TOKENS)
    return build_trajectory(
        read_turns(trial_dir),
        agent_name="archipelago",
        agent_version="unknown",
        session_id=trial_dir.name,
        ledger=ledger,
    )


def rollout_details(ledger: Any) -> list[RolloutDetail]:
    """harbor's rollout details: for every turn its whole prompt, its sampled IDs and logprobs.

    Grows with turns times context, as harbor's shape asks.
    """
    tokens, logprobs = list(ledger.tokens), list(ledger.logprobs)
    turns = ledger.turns
    return [
        RolloutDetail(
            prompt_token_ids=[tokens[: turn.start] for turn in turns],
            completion_token_ids=[tokens[turn.start : turn.end] for turn in turns],
            logprobs=[logprobs[turn.start : turn.end] for turn in turns],
        )
    ]


def _pairs(
    lines: Sequence[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each model line with the tools line that follows it, if the run got that far."""
    model: dict[str, Any] | None = None
    for line in lines:
        if line["kind"] == "model":
            if model is not None:
                yield model, None
            model = line
        elif line["kind"] == "tools" and model is not None:
            yield model, line
            model = None
    if model is not None:
        yield model, None


def _step(
    step_id: int, model: dict[str, Any], tools: dict[str, Any] | None, metrics: Metrics
) -> Step:
    calls = [
        ToolCall(tool_call_id=call["id"], function_name=call["name"], arguments=call["arguments"])
        for call in model["calls"]
    ]
    results = [
        ObservationResult(
            source_call_id=result["id"],
            content=result["text"],
            extra={name: result[name] for name in ("server", "ok", "dispatched", "seconds")},
        )
        for result in (tools or {}).get("results", [])
    ]
    return Step(
        step_id=step_id,
        timestamp=model["at"],
        source="agent",
        message=model["content"],
        reasoning_content=model["reasoning"] or None,
        tool_calls=calls or None,
        observation=Observation(results=results) if results else None,
        metrics=metrics,
        llm_call_count=1,
    )


def _add_tokens(metrics: Metrics, ledger: Any, turn: Turn, *, first: bool) -> None:
    tokens, logprobs = (
        cast("array[int]", ledger.tokens),
        cast("array[float]", ledger.logprobs),
    )
    metrics.completion_token_ids = list(tokens[turn.start : turn.end])
    metrics.logprobs = list(logprobs[turn.start : turn.end])
    if first:
        metrics.prompt_token_ids = list(tokens[: turn.start])


def _final_metrics(steps: Sequence[Step]) -> FinalMetrics:
    measured = [step.metrics for step in steps if step.metrics is not None]
    return FinalMetrics(
        total_prompt_tokens=sum(item.prompt_tokens or 0 for item in measured),
        total_completion_tokens=sum(item.completion_tokens or 0 for item in measured),
        total_steps=len(steps),
    )
