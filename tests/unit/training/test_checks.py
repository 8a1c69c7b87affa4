"""Configurations that would train on the wrong thing are refused, with the key."""

from __future__ import annotations

from typing import Any

import pytest

from skyrl_apex_hookspecs import Outcome, Treatment
from skyrl_apex_plugin.training.checks import (
    accepted_names,
    agent_kwargs,
    check_apex_config,
    failure_policy,
)
from skyrl_apex_plugin.training.config import ApexTrainConfig
from skyrl_apex_plugin.training.secrets import redacted

BASE = ["trainer.policy.model.path=/models/m", "trainer.algorithm.advantage_estimator=grpo"]


def config(*settings: str) -> ApexTrainConfig:
    cfg: Any = ApexTrainConfig.from_cli_overrides([*BASE, *settings])
    return cfg


def test_the_defaults_are_accepted() -> None:
    check_apex_config(config())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["generator.sampling_params.temperature=0.7"], "logprobs_mode=processed_logprobs"),
        (["generator.sampling_params.temperature=0"], "training samples"),
        (["generator.sampling_params.top_k=20"], r"sampling_params\.top_k=20"),
        (
            ["generator.sampling_params.top_p=0.9"],
            r"sampling_params\.top_p=0\.9: .* leave it at 1$",
        ),
        (["generator.sampling_params.min_p=0.1"], r"sampling_params\.min_p=0\.1"),
        (["generator.sampling_params.repetition_penalty=1.1"], "repetition_penalty=1.1"),
        (
            ["generator.sampling_params.additional_kwargs.top_k=20"],
            r"additional_kwargs=\{'top_k': 20\}: the agent's requests hold",
        ),
        (["apex.sampler.kwargs.extra_body.top_k=20"], "extra_body sets top_k: sampling has one"),
        (["generator.eval_sampling_params.top_k=20"], r"eval_sampling_params\.top_k=20"),
        (["generator.sampling_params.stop=[END]"], "cut tokens that were sampled"),
        (["trainer.algorithm.advantage_estimator=reinforce++"], "masked rows would move"),
        (["apex.failures.treatments.verifier_error=train"], "no verdict to train on"),
        (["apex.agent.temperature=0.5"], r"set generator\.sampling_params\.temperature"),
        (["apex.agent.max_turn=5"], "unknown agent keys"),
        (
            [
                "apex.agent.max_context=9000",
                "apex.sampler.name=embedded",
                "apex.sampler.kwargs.max_model_len=4096",
            ],
            "larger than the engine's window of 4096",
        ),
        (["apex.sandbox.name=archipelago-locl"], "did you mean 'archipelago-local'"),
        (["apex.rewards.terms.nobody.x=1"], "no reward is called 'nobody'"),
        (["apex.runner.name=slurm"], "known: local, ray"),
        (["apex.sampler.gate.rate=1.5"], r"gate\.rate=1\.5; expected a share between 0 and 1"),
        (["apex.sampler.gate.steps=-2"], r"gate\.steps=-2; expected a number of steps"),
        (["apex.sampler.gate.mean_limit=0"], r"gate\.mean_limit=0"),
        (["apex.sampler.gate.max_limit=-1"], r"gate\.max_limit=-1"),
        (["apex.control=cheat"], "known: none, shuffle_rewards"),
        (["apex.failures.max_failed_fraction=1.5"], "between 0 and 1"),
        (["generator.step_wise_trajectories=true"], "one whole trajectory"),
        (
            ["apex.grader.kwargs.nope=1"],
            r"apex\.grader\.kwargs\.nope: task has no such .* known: cri",
        ),
        (["apex.sampler.kwargs.nope=1"], r"apex\.sampler\.kwargs\.nope: completions has no such"),
        (["apex.sandbox.kwargs.nope=1"], r"sandbox\.kwargs\.nope: archipelago-local .* bwrap, cpu"),
        (["apex.sandbox.kwargs.session_id=1"], "session_id: archipelago-local has no such option"),
        (
            ["apex.sandbox.name=archipelago-docker", "apex.sandbox.kwargs.nope=1"],
            "nope: archipelago-docker has no such option; known: .*image_archive",
        ),
        (
            ["apex.sampler.name=openai", "apex.sampler.kwargs.timeoutt=1"],
            "timeoutt: openai has no such option; known: .*api_key_env.*timeout",
        ),
        (
            ["apex.sampler.name=embedded", "apex.sampler.kwargs.max_len=1"],
            "max_len: embedded has no such option; known: .*max_model_len",
        ),
        (["apex.grader.kwargs=[1]"], r"apex\.grader\.kwargs=\[1\]; expected names with values"),
        (["apex.record.keep=nope"], r"apex\.record\.keep='nope'; known: all, failed, none"),
        (["apex.tasks.curriculum=((("], r"apex\.tasks\.curriculum='\(\(\(' is not an expression"),
        (["apex.tasks.where=a b"], r"apex\.tasks\.where='a b' is not an expression"),
        (["apex.runner.max_concurrent_trials=0"], "max_concurrent_trials=0; expected a whole"),
        (["apex.runner.max_concurrent_trials=many"], "max_concurrent_trials='many'; expected"),
        (["apex.runner.starts_per_second=0.5"], "starts_per_second=0.5; expected a number, 1 or"),
        (["apex.runner.trials_per_worker=0"], "trials_per_worker=0; expected"),
        (["apex.runner.worker_cpus=-1"], "worker_cpus=-1; expected a number, 0 or more"),
        (["apex.grader.pass_score=abc"], r"apex\.grader\.pass_score='abc'; expected a number"),
        (["apex.failures.max_retries=abc"], "max_retries='abc'; expected a whole number"),
        (["apex.failures.length_reward_zero=maybe"], "length_reward_zero='maybe'; expected true"),
        (["apex.renderer=template:nonsense"], r"apex\.renderer='template:nonsense'"),
        (["apex.trial.environmnt={}"], r"apex\.trial\.environmnt: harbor has no .* environment,"),
        (
            ["apex.trial.verifier.timeout=1"],
            r"apex\.trial\.verifier\.timeout: .* known: .*timeout_sec",
        ),
        (["apex.trial.timeout_multiplier=fast"], r"(?s)apex\.trial: .*timeout_multiplier"),
    ],
)
def test_what_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        check_apex_config(config(*settings))


@pytest.mark.parametrize(
    "settings",
    [
        ["apex.sandbox.kwargs={bwrap: /usr/bin/bwrap, override_cpus: 1}"],
        ["apex.sandbox.name=archipelago-modal", "apex.sandbox.kwargs.modal_vm_runtime=true"],
        ["apex.sampler.name=openai", "apex.sampler.kwargs={model: m, timeout: 5}"],
        ["apex.sampler.name=embedded", "apex.sampler.kwargs.slots=4"],
        ["apex.grader.pass_score=1", "apex.runner.starts_per_second=2"],
        ["apex.tasks.where=criteria > 3", "apex.tasks.curriculum=prompt_chars"],
        ["apex.trial.environment.type=docker", "apex.sandbox.kwargs.anything=1"],
        ["apex.trial.verifier.override_timeout_sec=60"],
    ],
)
def test_what_fits_is_accepted(settings: list[str]) -> None:
    check_apex_config(config(*settings))


class OfAThirdParty:
    def __init__(self, *, model: str, **kwargs: Any) -> None: ...


class Deeper(OfAThirdParty):
    def __init__(self, *, extra: int = 0) -> None: ...


def test_a_class_of_somebody_else_may_read_any_name() -> None:
    assert accepted_names(OfAThirdParty) is None
    assert accepted_names(Deeper) == {"extra"}
    assert accepted_names(object) == set()
    check_apex_config(
        config(f"apex.grader.name={__name__}:OfAThirdParty", "apex.grader.kwargs.x=1")
    )


def test_a_temperature_with_processed_logprobs_is_accepted() -> None:
    check_apex_config(
        config(
            "generator.sampling_params.temperature=0.7",
            "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs",
        )
    )
    with pytest.raises(ValueError, match=r"sampling_params\.top_p=0\.9"):
        check_apex_config(
            config(
                "generator.sampling_params.temperature=0.7",
                "generator.sampling_params.top_p=0.9",
                "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs",
            )
        )


@pytest.mark.parametrize("sampler", ["tinker", "openai"])
def test_a_hosted_service_knows_nothing_of_the_engines_settings(sampler: str) -> None:
    with pytest.raises(ValueError, match=f"apex.sampler.name={sampler}"):
        check_apex_config(
            config(
                "generator.sampling_params.temperature=0.7",
                f"apex.sampler.name={sampler}",
                "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs",
            )
        )


def test_evaluation_may_cut_the_distribution() -> None:
    check_apex_config(
        config(
            "generator.eval_sampling_params.top_p=0.95",
            "generator.eval_sampling_params.temperature=0.6",
        )
    )


def test_skyrls_overlong_filtering_is_honoured() -> None:
    policy = failure_policy(config("generator.apply_overlong_filtering=true"))
    assert policy.treatments[Outcome.LENGTH] is Treatment.MASK


def test_skyrls_turn_limit_reaches_the_agent() -> None:
    assert agent_kwargs(config("generator.max_turns=7"))["max_turns"] == 7
    assert agent_kwargs(config("generator.max_turns=7", "apex.agent.max_turns=9"))["max_turns"] == 9
    assert "max_turns" not in agent_kwargs(config())


def test_secrets_are_not_shown_at_any_depth() -> None:
    shown = redacted(
        {
            "apex": {"grader": {"kwargs": {"api_key": "sk-1", "model": "m", "tokens": 5}}},
            "headers": [{"Authorization": "Bearer x"}],
            "max_tokens": 7,
        }
    )
    assert "sk-1" not in str(shown) and "Bearer" not in str(shown)
    assert shown["apex"]["grader"]["kwargs"] == {"api_key": "***", "model": "m", "tokens": 5}
    assert shown["max_tokens"] == 7
