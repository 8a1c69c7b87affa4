"""What twenty plugins that implement every hook cost a trial."""

from __future__ import annotations

import sys
import time
from array import array
from importlib.metadata import EntryPoint

import pytest

from skyrl_apex_hookspecs import (
    EndedTrial,
    Failure,
    Observation,
    Outcome,
    Task,
    ToolCall,
    Trajectory,
    Treatment,
    TrialFinished,
    TrialStarted,
    Turn,
    TurnFinished,
    Verdict,
)
from skyrl_apex_plugin.discovery import hooks
from skyrl_apex_plugin.discovery.manager import GROUP, load_plugins

PLUGINS, TURNS, CALLS, TRIALS = 20, 25, 4, 20
ALLOWED_SECONDS = 0.001

SOURCE = """
import dataclasses
from skyrl_apex_hookspecs import RewardTerm, hookimpl
@hookimpl
def apex_transform_observation(observation):
    return dataclasses.replace(observation, text=observation.text + "!")
@hookimpl
def apex_reward_terms(trajectory): return RewardTerm(name=__name__, value=0.1)
@hookimpl
def apex_combine_reward(verdict, terms): return None
@hookimpl
def apex_classify_failure(outcome): return None
@hookimpl
async def apex_prepare_world(environment, task): pass
@hookimpl
async def apex_trial_started(event): pass
@hookimpl
async def apex_turn_finished(event): pass
@hookimpl
async def apex_trial_finished(event): pass
"""


@pytest.fixture
def twenty_plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    points = []
    for number in range(PLUGINS):
        module = f"busy_plugin_{number}"
        (tmp_path / f"{module}.py").write_text(SOURCE)
        monkeypatch.delitem(sys.modules, module, raising=False)
        points.append(EntryPoint(name=module, value=module, group=GROUP))
    manager = load_plugins(tuple(points))
    monkeypatch.setattr(hooks, "plugin_manager", lambda: manager)


async def one_trial(trajectory: Trajectory) -> None:
    """Every call of every hook, as often as a trial makes it."""
    task, turn = trajectory.task, trajectory.turns[0]
    await hooks.prepare_world(None, task)
    started = TrialStarted(task=task, trial_name="n", attempt=0, started_at="2030-01-01T00:00:00Z")
    await hooks.notify("apex_trial_started", started)
    call = ToolCall(call_id="1", name="read", arguments={})
    for _ in range(TURNS):
        for _ in range(CALLS):
            hooks.transform_observation(Observation(call=call, text="text"))
        event = TurnFinished(task=task, trial_name="n", turn=turn)
        await hooks.notify("apex_turn_finished", event)
    terms = hooks.reward_terms(trajectory)
    hooks.combine_reward(trajectory.verdict, terms)
    ended = EndedTrial(task=task, outcome=Outcome.COMPLETE, attempt=0)
    hooks.classify_failure(ended)
    failure = Failure(outcome=Outcome.COMPLETE, treatment=Treatment.TRAIN, reason="")
    finished = TrialFinished(ended=ended, trial_name="n", failure=failure, reward=1.0)
    await hooks.notify("apex_trial_finished", finished)


@pytest.mark.benchmark
async def test_twenty_plugins_cost_under_a_millisecond_of_cpu_a_turn(twenty_plugins, tmp_path):
    trajectory = Trajectory(
        task=Task(task_id="t", directory=tmp_path, instruction=""),
        outcome=Outcome.COMPLETE,
        tokens=array("i", [1, 2]),
        logprobs=array("f", [0, -1]),
        loss_mask=bytes([0, 1]),
        prompt_length=1,
        turns=(Turn(index=0, start=1, end=2, finish_reason="stop"),),
        verdict=Verdict(grader="task", score=1.0),
    )
    seconds = []
    for _ in range(TRIALS):
        started = time.process_time()
        await one_trial(trajectory)
        seconds.append((time.process_time() - started) / TURNS)
    median = sorted(seconds)[TRIALS // 2]
    print(f"\n{PLUGINS} plugins, {CALLS} calls a turn: {1000 * median:.2f} ms CPU a turn")
    assert median < ALLOWED_SECONDS
