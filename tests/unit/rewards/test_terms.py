"""The ready-made reward terms, through the configuration and the hooks that use them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_hookspecs import (
    CriterionResult,
    Outcome,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
    VerifierError,
)
from skyrl_apex_plugin.discovery import registered
from skyrl_apex_plugin.grading.rewards import RewardShaper, token_rewards

PROMPT = 5


def call(ok: bool = True, dispatched: bool = True) -> ToolCall:
    return ToolCall(call_id="c", name="read", arguments={}, ok=ok, dispatched=dispatched)


def rollout(
    *turns: dict[str, Any], score: float = 1.0, task: str = "t", **fields: Any
) -> Trajectory:
    """Turns of 10 sampled tokens; a turn with calls is followed by 30 of tool output."""
    mask = [0] * PROMPT
    made = []
    for index, turn in enumerate(turns):
        start = len(mask)
        mask += [1] * 10 + [0] * (30 if turn.get("calls") else 0)
        made.append(Turn(index=index, start=start, end=start + 10, finish_reason="stop", **turn))
    criteria = fields.pop("criteria", ())
    return Trajectory(
        task=Task(task_id=task, directory=Path("/t"), instruction="i"),
        outcome=Outcome.COMPLETE,
        tokens=array("i", range(len(mask))),
        logprobs=array("f", [0.0] * len(mask)),
        loss_mask=bytes(mask),
        prompt_length=PROMPT,
        turns=tuple(made),
        verdict=Verdict(grader="g", score=score, criteria=criteria),
        **fields,
    )


def terms(trajectory: Trajectory, name: str, **settings: Any) -> dict[str, float]:
    shaped = RewardShaper(terms={name: settings}).shape(trajectory)
    return {term.name: pytest.approx(term.value, abs=1e-6) for term in shaped.terms}


def criterion(name: str, score: float | None, primary: bool = False) -> CriterionResult:
    return CriterionResult(
        criterion_id=name,
        score=score,
        status="ok" if score is not None else "error",
        primary=primary,
    )


def test_every_term_is_registered() -> None:
    assert set(registered("reward")) >= {
        "adaptive_length",
        "overlong",
        "tool_success",
        "turns",
        "format",
        "must_have",
        "all_or_nothing",
    }


def test_adaptive_length_prices_assistant_and_environment_tokens_apart() -> None:
    long = rollout({"calls": (call(),)}, {})  # 20 sampled tokens, 30 of tool output
    found = terms(long, "adaptive_length", assistant=0.5, environment=0.1, scale=100)
    assert found == {"length_assistant": -0.5 * 0.2, "length_environment": -0.1 * 0.3}
    assert terms(long, "adaptive_length", assistant=50, scale=100, cap=0.4) == {
        "length_assistant": -0.4
    }


def test_length_is_dearer_on_tasks_that_are_solved() -> None:
    shaper = RewardShaper(
        terms={"adaptive_length": {"assistant": 1, "scale": 100, "memory": 4, "floor": 0.1}}
    )

    def value(score: float, task: str) -> float:
        return shaper.shape(rollout({}, score=score, task=task)).terms[0].value

    assert value(1.0, "easy") == pytest.approx(-0.1)
    assert value(0.0, "hard") == pytest.approx(-0.1 * 0.1)  # the floor
    assert value(1.0, "hard") == pytest.approx(-0.1 * 0.25)  # one of four solved
    assert value(0.0, "easy") == pytest.approx(-0.1 * 0.75)


@pytest.mark.parametrize(
    ("limit", "value"), [(45, -1.0), (50, -0.75), (60, -0.25), (65, 0.0), (1000, 0.0), (20, -1.0)]
)
def test_overlong_grows_over_the_buffer(limit: int, value: float) -> None:
    trajectory = rollout({"calls": (call(),)})  # 45 tokens
    assert terms(trajectory, "overlong", limit=limit, buffer=20) == {"overlong": value}


def test_overlong_takes_the_window_from_the_trajectory_or_says_what_is_missing() -> None:
    assert terms(rollout({}, max_context=15), "overlong", buffer=10) == {"overlong": -1.0}
    with pytest.raises(VerifierError, match=r"overlong\.limit"):
        terms(rollout({}), "overlong")


def test_tool_success_is_a_share() -> None:
    mixed = rollout(
        {"calls": (call(), call(ok=False))}, {"calls": (call(dispatched=False), call())}
    )
    assert terms(mixed, "tool_success", weight=0.2) == {"tool_success": 0.1}
    assert terms(rollout({}), "tool_success") == {"tool_success": 0.0}


def test_turns_and_format_penalties_with_their_caps() -> None:
    five = rollout({}, {"malformed": True}, {}, {"malformed": True}, {})
    assert terms(five, "turns", weight=0.1, free=2) == {"turns": -0.3}
    assert terms(five, "turns", weight=0.1, free=9) == {"turns": 0.0}
    assert terms(five, "turns", weight=0.1, cap=0.2) == {"turns": -0.2}
    assert terms(five, "format", weight=0.1) == {"format": -0.2}
    assert terms(five, "format", weight=0.4, cap=0.5) == {"format": -0.5}


def test_per_token_penalties_fall_on_the_turns_last_sampled_token() -> None:
    trajectory = rollout({"calls": (call(),)}, {"malformed": True, "calls": (call(),)}, {})
    shaped = RewardShaper(terms={"format": {"weight": 0.25, "per_token": True}}).shape(trajectory)
    rewards = token_rewards(shaped, len(trajectory.tokens) - PROMPT)
    assert rewards is not None
    second = trajectory.turns[1].end - 1 - PROMPT
    assert {i: r for i, r in enumerate(rewards) if r} == {second: -0.25, len(rewards) - 1: 1.0}
    assert sum(rewards) == pytest.approx(shaped.reward)


@pytest.mark.parametrize(
    ("main", "other", "value"), [(1.0, 0.0, 0.0), (0.0, 1.0, -0.5), (0.5, 1.0, -0.75)]
)
def test_must_have(main: float, other: float, value: float) -> None:
    score = (main + other) / 2
    graded = rollout(
        {}, score=score, criteria=(criterion("a", main, primary=True), criterion("b", other))
    )
    assert terms(graded, "must_have") == {"must_have": value}


def test_must_have_never_adds_and_leaves_tasks_without_a_primary_criterion_alone() -> None:
    below_floor = rollout({}, score=-1.0, criteria=(criterion("a", 0.0, primary=True),))
    assert terms(below_floor, "must_have") == {"must_have": 0.0}
    assert terms(rollout({}, score=0.5, criteria=(criterion("a", 0.0),)), "must_have") == {
        "must_have": 0.0
    }


def test_all_or_nothing() -> None:
    part = rollout({}, score=0.5, criteria=(criterion("a", 1.0), criterion("b", 0.0)))
    whole = rollout({}, score=1.0, criteria=(criterion("a", 1.0), criterion("b", 1.0)))
    assert RewardShaper(terms={"all_or_nothing": None}).shape(part).reward == 0.0
    assert RewardShaper(terms={"all_or_nothing": None}).shape(whole).reward == 1.0
    assert terms(rollout({}, score=0.75), "all_or_nothing") == {"all_or_nothing": -0.75}


@pytest.mark.parametrize("name", ["must_have", "all_or_nothing"])
def test_a_criterion_without_a_score_gives_no_reward(name: str) -> None:
    graded = rollout({}, score=0.5, criteria=(criterion("a", None, primary=True),))
    with pytest.raises(VerifierError, match="'a' was not graded"):
        terms(graded, name)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adaptive_length", {"scale": 0}),
        ("adaptive_length", {"assistant": -1}),
        ("overlong", {"buffer": -5}),
        ("turns", {"weight": float("nan")}),
        ("turns", {"free": -1}),
        ("format", {"cap": 0}),
        ("tool_success", {"weight": 0}),
    ],
)
def test_settings_out_of_range_are_named(name: str, settings: dict[str, Any]) -> None:
    (key,) = settings
    with pytest.raises(ValueError, match=f"{name}: {key}="):
        RewardShaper(terms={name: settings})
