"""The reward: score, configured terms, plugin terms, combination, bounds, in that order."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pluggy
import pytest

from skyrl_apex_hookspecs import (
    Outcome,
    RewardTerm,
    Task,
    Trajectory,
    Verdict,
    VerifierError,
    hookimpl,
)
from skyrl_apex_plugin.discovery import plugin_manager
from skyrl_apex_plugin.grading.rewards import (
    RewardShaper,
    ShapedReward,
    shape_reward,
    token_rewards,
    write_reward,
)


class Constant:
    """A configurable term, as a third party writes it."""

    def __init__(self, *, value: float, name: str = "constant") -> None:
        self.term = RewardTerm(name=name, value=value)

    def __call__(self, trajectory: Trajectory) -> RewardTerm:
        return self.term


CONSTANT = f"{__name__}:Constant"


@pytest.fixture
def manager() -> Any:
    """The process's plugin manager; plugins registered by a test leave with it."""
    found: pluggy.PluginManager = plugin_manager()
    before = set(found.get_plugins())
    yield found
    for plugin in found.get_plugins() - before:
        found.unregister(plugin)


def trajectory(score: float | None = 1.0, response: int = 4) -> Trajectory:
    verdict = Verdict(grader="g", score=score) if score is not None else None
    return Trajectory(
        task=Task(task_id="t", directory=Path("/t"), instruction="i"),
        outcome=Outcome.COMPLETE,
        tokens=array("i", range(3 + response)),
        logprobs=array("f", [0.0] * (3 + response)),
        loss_mask=bytes([0] * 3 + [1] * response),
        prompt_length=3,
        verdict=verdict,
    )


def test_without_terms_the_reward_is_the_score() -> None:
    assert shape_reward(trajectory(0.25)) == ShapedReward(0.25, ())


def test_configured_terms_come_first_then_plugins(manager: Any) -> None:
    class Plugin:
        @hookimpl
        def apex_reward_terms(self, trajectory: Trajectory) -> list[RewardTerm]:
            return [RewardTerm(name="from_plugin", value=0.5)]

    manager.register(Plugin(), name="third")
    shaped = RewardShaper(terms={CONSTANT: {"value": -0.25}}).shape(trajectory(1.0))
    assert [term.name for term in shaped.terms] == ["constant", "from_plugin"]
    assert shaped.reward == 1.25


def test_combining_replaces_the_sum_and_clipping_comes_last(manager: Any) -> None:
    class Plugin:
        @hookimpl
        def apex_combine_reward(self, verdict: Verdict, terms: Any) -> float:
            assert verdict.score is not None
            return 10 * verdict.score

    manager.register(Plugin(), name="third")
    shaper = RewardShaper(terms={CONSTANT: {"value": 5.0}}, clip=[-1.0, 2.0])
    assert shaper.shape(trajectory(0.1)).reward == 1.0
    assert shaper.shape(trajectory(0.5)).reward == 2.0
    assert shaper.shape(trajectory(-0.5)).reward == -1.0


def test_a_raising_plugin_is_named(manager: Any) -> None:
    class Plugin:
        @hookimpl
        def apex_reward_terms(self, trajectory: Trajectory) -> None:
            raise ZeroDivisionError("oops")

    manager.register(Plugin(), name="culprit")
    with pytest.raises(VerifierError, match=r"culprit.*ZeroDivisionError: oops"):
        shape_reward(trajectory())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_term_that_is_no_number_is_an_error(manager: Any, value: float) -> None:
    with pytest.raises(VerifierError, match="not a finite number"):
        RewardShaper(terms={CONSTANT: {"value": value}}).shape(trajectory())


def test_a_term_name_given_twice_is_an_error(manager: Any) -> None:
    class Plugin:
        @hookimpl
        def apex_reward_terms(self, trajectory: Trajectory) -> RewardTerm:
            return RewardTerm(name="constant", value=0.0)

    manager.register(Plugin(), name="third")
    with pytest.raises(VerifierError, match="'constant' was already given"):
        RewardShaper(terms={CONSTANT: {"value": 1.0}}).shape(trajectory())


def test_no_verdict_and_no_score_are_errors() -> None:
    with pytest.raises(VerifierError, match="no verdict"):
        shape_reward(trajectory(None))


def test_configuration_mistakes_are_named_when_the_run_starts(manager: Any) -> None:
    with pytest.raises(ValueError, match=r"apex.rewards.terms.*Constant.*factor"):
        RewardShaper(terms={CONSTANT: {"factor": 1}})
    with pytest.raises(Exception, match=r"overlog.*did you mean 'overlong'"):
        RewardShaper(terms={"overlog": {}})
    with pytest.raises(ValueError, match=r"apex.rewards.clip=\[1, 0\]"):
        RewardShaper(clip=[1, 0])


def test_token_rewards_add_up_to_the_reward() -> None:
    per_token = array("f", [0.0, -0.5, 0.0, -0.25])
    terms = (
        RewardTerm(name="turns", value=-0.75, per_token=per_token),
        RewardTerm(name="plain", value=0.5),
    )
    rewards = token_rewards(ShapedReward(0.75, terms), 4)
    assert rewards == [0.0, -0.5, 0.0, 1.25]
    assert sum(rewards) == 0.75
    assert token_rewards(ShapedReward(0.5, terms[1:]), 4) is None
    with pytest.raises(VerifierError, match="for 4 tokens, the response has 5"):
        token_rewards(ShapedReward(0.75, terms), 5)


def test_the_record_lists_every_term(tmp_path: Path) -> None:
    shaped = ShapedReward(0.75, (RewardTerm(name="overlong", value=-0.25),))
    write_reward(tmp_path, 1.0, shaped)
    assert json.loads((tmp_path / "verifier" / "reward_terms.json").read_text()) == {
        "schema": 1,
        "score": 1.0,
        "terms": [{"name": "overlong", "value": -0.25}],
        "reward": 0.75,
    }
