"""Every hook: the order of calls, what is awaited, what happens when a plugin raises."""

from __future__ import annotations

import importlib
import logging

import pytest

from skyrl_apex_hookspecs import (
    EndedTrial,
    Failure,
    Observation,
    Outcome,
    RewardTerm,
    SetupError,
    ToolCall,
    Treatment,
    TrialFinished,
    TrialStarted,
    TurnFinished,
    Verdict,
    VerifierError,
)
from skyrl_apex_plugin.discovery import hooks
from skyrl_apex_plugin.discovery import resolve as _resolve_function
from skyrl_apex_plugin.discovery.hooks import (
    classify_failure,
    combine_reward,
    notify,
    prepare_world,
    reward_terms,
    transform_observation,
)

resolver = importlib.import_module(_resolve_function.__module__)


def calls(name: str) -> list:
    """What the made-up plugin ``name`` wrote down."""
    return importlib.import_module(f"made_up_{name}").calls


@pytest.fixture
def observation() -> Observation:
    return Observation(call=ToolCall(call_id="1", name="read", arguments={}), text="raw")


@pytest.fixture
def ended(task) -> EndedTrial:
    return EndedTrial(task=task, outcome=Outcome.AGENT_TIMEOUT, attempt=0)


# --- registration ---


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        ("sandbox", "apex_register_sandboxes"),
        ("grader", "apex_register_graders"),
        ("sampler", "apex_register_samplers"),
        ("reward", "apex_register_rewards"),
    ],
)
def test_registration(use, kind, hook):
    """apex_register_sandboxes, apex_register_graders, apex_register_samplers,
    apex_register_rewards: a lazy entry by name."""
    use(maker=f"@hookimpl\ndef {hook}(register): register('mine', 'no_such:Thing', summary='s')")
    registry = resolver.build_registry()
    assert registry.of_kind(kind)["mine"].target == "no_such:Thing"
    assert registry.of_kind(kind)["mine"].summary == "s"


# --- apex_prepare_world ---


async def test_apex_prepare_world_awaits_each_plugin_in_order(use, task):
    slow = """
    import asyncio, made_up_b
    @hookimpl
    async def apex_prepare_world(environment, task):
        await asyncio.sleep(0.01)
        made_up_b.calls.append(("a", environment, task.task_id))
    """
    quick = """
    @hookimpl
    def apex_prepare_world(task):
        calls.append("b")
    """
    use(a=slow, b=quick)
    await prepare_world("sandbox", task)
    assert calls("b") == [("a", "sandbox", "t1"), "b"]


async def test_apex_prepare_world_that_raises_is_a_setup_error_naming_the_plugin(use, task):
    use(a="@hookimpl\nasync def apex_prepare_world(environment, task): raise OSError('disk')")
    with pytest.raises(SetupError, match="apex_prepare_world of plugin a: OSError: disk"):
        await prepare_world(None, task)


# --- apex_transform_observation ---


def test_apex_transform_observation_folds_in_plugin_order(use, observation):
    append = """
    import dataclasses
    @hookimpl
    def apex_transform_observation(observation):
        return dataclasses.replace(observation, text=observation.text + {!r})
    """
    silent = "@hookimpl\ndef apex_transform_observation(observation): return None"
    use(a=append.format(" a"), b=silent, c=append.format(" c"))
    assert transform_observation(observation).text == "raw a c"


def test_tryfirst_moves_an_implementation_to_the_front(use, observation):
    source = """
    import dataclasses
    @hookimpl{}
    def apex_transform_observation(observation):
        return dataclasses.replace(observation, text=observation.text + {!r})
    """
    use(a=source.format("", "a"), b=source.format("(tryfirst=True)", "b"))
    assert transform_observation(observation).text == "rawba"


@pytest.mark.parametrize("body", ["raise KeyError('x')", "return 'text'"])
def test_apex_transform_observation_faults_are_setup_errors(use, observation, body):
    use(a=f"@hookimpl\ndef apex_transform_observation(observation): {body}")
    with pytest.raises(SetupError, match="apex_transform_observation of plugin a"):
        transform_observation(observation)


# --- apex_reward_terms ---


def test_apex_reward_terms_collects_one_several_or_none(use, trajectory):
    use(
        a="@hookimpl\ndef apex_reward_terms(trajectory): return RewardTerm(name='x', value=1.0)",
        b="@hookimpl\ndef apex_reward_terms(trajectory): return None",
        c="@hookimpl\ndef apex_reward_terms(trajectory):\n"
        "    return [RewardTerm(name=n, value=2.0) for n in 'yz']",
    )
    assert [term.name for term in reward_terms(trajectory)] == ["x", "y", "z"]


def test_apex_reward_terms_takes_a_per_token_term_that_fits_the_response(use, trajectory):
    use(
        a="""
        from array import array
        @hookimpl
        def apex_reward_terms(trajectory):
            return RewardTerm(name="x", value=0.6, per_token=array("f", [0.1, 0.2, 0.3]))
        """
    )
    (term,) = reward_terms(trajectory)
    assert len(term.per_token) == 3


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ZeroDivisionError('z')", "ZeroDivisionError"),
        ("return 0.5", "float"),
        ("return RewardTerm(name='x', value=float('nan'))", "finite"),
        ("return [RewardTerm(name='x', value=1.0)] * 2", "already given"),
        ("return RewardTerm(name='x', value=1.0, per_token=[1.0])", "3 tokens"),
        ("return RewardTerm(name='x', value=9.0, per_token=[1.0] * 3)", "per-token sum"),
    ],
)
def test_apex_reward_terms_faults_are_verifier_errors(use, trajectory, body, says):
    use(a=f"@hookimpl\ndef apex_reward_terms(trajectory): {body}")
    with pytest.raises(VerifierError, match=says) as caught:
        reward_terms(trajectory)
    assert "apex_reward_terms of plugin a" in str(caught.value)


def test_two_plugins_that_give_one_term_name_are_told_apart(use, trajectory):
    give = "@hookimpl\ndef apex_reward_terms(trajectory): return RewardTerm(name='x', value=1.0)"
    use(a=give, b=give)
    with pytest.raises(VerifierError, match=r"plugin b.*'x' was already given by a"):
        reward_terms(trajectory)


# --- apex_combine_reward ---


def test_without_apex_combine_reward_it_is_score_plus_terms(use):
    use()
    terms = (RewardTerm(name="x", value=0.25), RewardTerm(name="y", value=-1.0))
    assert combine_reward(Verdict(grader="g", score=0.5), terms) == -0.25


def test_apex_combine_reward_takes_the_first_answer(use):
    use(
        a="@hookimpl\ndef apex_combine_reward(verdict): return None",
        b="@hookimpl\ndef apex_combine_reward(verdict, terms): return verdict.score * 10",
        c="@hookimpl\ndef apex_combine_reward(verdict, terms): calls.append(1); return 0",
    )
    assert combine_reward(Verdict(grader="g", score=0.5), ()) == 5.0
    assert calls("c") == []


@pytest.mark.parametrize("body", ["raise ValueError('v')", "return float('inf')", "return 'much'"])
def test_apex_combine_reward_faults_are_verifier_errors(use, body):
    use(a=f"@hookimpl\ndef apex_combine_reward(verdict, terms): {body}")
    with pytest.raises(VerifierError, match="apex_combine_reward of plugin a"):
        combine_reward(Verdict(grader="g", score=0.5), ())


def test_a_verdict_without_a_score_has_no_reward(use):
    use()
    with pytest.raises(VerifierError, match="judge is down"):
        combine_reward(Verdict(grader="g", error="judge is down"), ())


# --- apex_classify_failure ---


def test_apex_classify_failure_takes_the_first_answer(use, ended):
    decide = """
    @hookimpl
    def apex_classify_failure(outcome):
        return Failure(outcome=outcome.outcome, treatment=Treatment.TRAIN, reason={!r})
    """
    use(a="@hookimpl\ndef apex_classify_failure(outcome): return None", b=decide.format("b"))
    assert classify_failure(ended) == Failure(
        outcome=Outcome.AGENT_TIMEOUT, treatment=Treatment.TRAIN, reason="b"
    )
    use()
    assert classify_failure(ended) is None


@pytest.mark.parametrize("body", ["raise ValueError('v')", "return 'mask'"])
def test_apex_classify_failure_that_raises_masks_and_says_so(use, ended, body, caplog):
    use(a=f"@hookimpl\ndef apex_classify_failure(outcome): {body}")
    decided = classify_failure(ended)
    assert (decided.outcome, decided.treatment) == (Outcome.VERIFIER_ERROR, Treatment.MASK)
    assert "plugin a" in decided.reason and "plugin a" in caplog.text


# --- observers ---


async def test_observers_are_awaited_in_order_and_only_warn(use, task, ended, caplog):
    """apex_trial_started, apex_turn_finished, apex_trial_finished."""
    use(
        a="""
        @hookimpl
        async def apex_trial_started(event): calls.append(event.trial_name)
        @hookimpl
        def apex_turn_finished(event): raise RuntimeError("dashboard is down")
        @hookimpl
        def apex_trial_finished(event): calls.append(event.reward)
        """,
        b="@hookimpl\ndef apex_turn_finished(event): calls.append(event.turn)",
    )
    failure = Failure(outcome=ended.outcome, treatment=Treatment.MASK, reason="timeout")
    started = TrialStarted(task=task, trial_name="n", attempt=0, started_at="2030-01-01T00:00:00Z")
    await notify("apex_trial_started", started)
    with caplog.at_level(logging.WARNING):
        await notify("apex_turn_finished", TurnFinished(task=task, trial_name="n", turn=None))
    await notify(
        "apex_trial_finished",
        TrialFinished(ended=ended, trial_name="n", failure=failure, reward=None),
    )
    assert calls("a") == ["n", None]
    assert calls("b") == [None], "an observer that raises must not keep others from being told"
    assert "apex_turn_finished of plugin a: RuntimeError: dashboard is down" in caplog.text


async def test_an_event_goes_to_its_own_observer_only(use, task):
    use()
    event = TurnFinished(task=task, trial_name="n", turn=None)
    with pytest.raises(ValueError, match="no observer hook"):
        await notify("apex_trial_started", event)


# --- trace ---


def test_the_trace_prints_each_call_and_no_content(use, trajectory, monkeypatch, capsys):
    use(a="@hookimpl\ndef apex_reward_terms(trajectory): return None")
    reward_terms(trajectory)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(hooks.TRACE, "1")
    reward_terms(trajectory)
    printed = capsys.readouterr().err
    assert "apex_reward_terms(trajectory=Trajectory) in a -> None" in printed


def test_a_coroutine_that_hides_behind_a_plain_function_is_refused(use, trajectory):
    use(
        a="""
        async def later(): ...
        @hookimpl
        def apex_reward_terms(trajectory): return later()
        """
    )
    with pytest.raises(VerifierError, match="synchronous"):
        reward_terms(trajectory)
