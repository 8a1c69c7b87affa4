"""What must hold of a configuration before anything starts, beyond SkyRL's own validation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyrl_apex_hookspecs import Task
from skyrl_apex_plugin.data.expression import compile_expression
from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.discovery.registry import Kind
from skyrl_apex_plugin.rollout.masking import check_estimator
from skyrl_apex_plugin.rollout.outcomes import FailurePolicy
from skyrl_apex_plugin.rollout.trial_config import TrialConfigBuilder

from .config import ApexTrainConfig

if TYPE_CHECKING:
    from pydantic import BaseModel

CHOICES = {
    "runner.name": ("local", "ray"),
    "record.keep": ("all", "failed", "none"),
    "control": ("none", "shuffle_rewards", "zero_advantages", "invert_rewards", "shift_mask"),
}
"""Keys of ``apex`` that take one of a few words."""

type Test = Callable[[Any], bool]


def _whole(lowest: int) -> Test:
    return lambda value: type(value) is int and value >= lowest


def _number(lowest: float = -math.inf, highest: float = math.inf) -> Test:
    return lambda value: type(value) in (int, float) and lowest <= value <= highest


def _or_null(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _is(kind: type) -> Test:
    return lambda value: isinstance(value, kind)


_SHARE = (_number(0, 1), "a share between 0 and 1")
_POSITIVE = _number(math.nextafter(0, 1))
_NAMES = (_is(Mapping), "names with values: {name: value}")

VALUES: Mapping[str, tuple[Test, str]] = {
    "sandbox.kwargs": _NAMES,
    "agent": _NAMES,
    "grader.kwargs": _NAMES,
    "grader.pass_score": (_number(), "a number"),
    "rewards.terms": _NAMES,
    "sampler.kwargs": _NAMES,
    "sampler.gate.steps": (_whole(-1), "a number of steps, or -1 for all"),
    "sampler.gate.rate": (_or_null(_SHARE[0]), f"{_SHARE[1]}, or null"),
    "sampler.gate.mean_limit": (_POSITIVE, "nats above 0"),
    "sampler.gate.max_limit": (_or_null(_POSITIVE), "nats above 0, or null"),
    "failures.treatments": _NAMES,
    "failures.max_retries": (_whole(0), "a whole number, 0 or more"),
    "failures.max_failed_fraction": _SHARE,
    "failures.min_group_survivors": (_whole(0), "a whole number, 0 or more"),
    "failures.length_reward_zero": (_is(bool), "true or false"),
    "runner.max_concurrent_trials": (_whole(1), "a whole number, 1 or more"),
    "runner.starts_per_second": (_or_null(_number(1)), "a number, 1 or more, or null"),
    "runner.trials_per_worker": (_whole(1), "a whole number, 1 or more"),
    "runner.worker_cpus": (_number(0), "a number, 0 or more"),
    "runner.worker_resources": _NAMES,
    "trial": _NAMES,
}
"""Key of ``apex`` to what its value must be. SkyRL's parser takes any type for any field."""

FROM_ELSEWHERE = {
    "mode": "training always runs in TITO mode",
    "tokenizer": "it is that of trainer.policy.model.path",
    "sampler": "set apex.sampler",
    "renderer": "set apex.renderer",
    "temperature": "set generator.sampling_params.temperature",
    "top_p": "set generator.sampling_params.top_p",
    "turn_max_tokens": "set generator.sampling_params.max_generate_length",
}
"""Agent settings that the training configuration decides; each has one place."""

NEUTRAL = (("top_k", -1), ("min_p", 0.0), ("repetition_penalty", 1.0))
SAMPLING_FIELDS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "logit_bias", "min_tokens"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty"),
        *("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logits_processors"),
        *("n", "best_of", "use_beam_search", "ignore_eos", "max_tokens"),
        *("structured_outputs", "response_format", "guided_json", "guided_regex"),
    }
)
"""Fields of a request's body that change what is sampled."""

HOSTED = ("openai", "tinker")
"""Samplers whose engine is not SkyRL's and reports logprobs at temperature 1."""

GIVEN = frozenset(
    {"environment_dir", "environment_name", "session_id", "trial_paths", "task_env_config"}
)
"""Constructor arguments that harbor itself gives every sandbox."""

FOLLOWED = (
    *("skyrl_apex_plugin.", "skyrl_apex_local.", "skyrl_apex_docker."),
    *("harbor.environments.base", "harbor.environments.docker.docker"),
)
"""Modules whose classes read nothing of their ``**kwargs``: they hand them to the class above, and
harbor's base class drops what is left."""


def check_apex_config(cfg: ApexTrainConfig) -> None:
    """Refuse what would train on the wrong thing, or fail only after the engines are up.

    Raises ``ValueError`` naming the key, its value and the way out, and ``UnknownName`` or
    ``BrokenName`` for a sandbox, grader, sampler or reward term.
    """
    _check_values(cfg)
    _check_names(cfg)
    _check_kwargs(cfg)
    _check_expressions(cfg)
    _check_trial(cfg)
    _check_sampling(cfg)
    _check_shape(cfg)
    check_estimator(cfg.trainer.algorithm.advantage_estimator, masks=failure_policy(cfg).masks)


def failure_policy(cfg: ApexTrainConfig) -> FailurePolicy:
    """The run's table of treatments."""
    return FailurePolicy.from_settings(
        cfg.apex.failures.treatments,
        max_retries=cfg.apex.failures.max_retries,
        mask_overlong=cfg.generator.apply_overlong_filtering,
    )


def agent_kwargs(cfg: ApexTrainConfig) -> dict[str, Any]:
    """Settings of the agent that all phases share.

    Raises ``ValueError`` for a setting that has its place elsewhere, or that the agent refuses.
    """
    from skyrl_apex_plugin.agent.settings import AgentSettings

    for name, reason in FROM_ELSEWHERE.items():
        if name in cfg.apex.agent:
            raise ValueError(f"apex.agent.{name}={cfg.apex.agent[name]!r}: {reason}")
    kwargs: dict[str, Any] = {
        "mode": "tito",
        "tokenizer": cfg.trainer.policy.model.path,
        "renderer": cfg.apex.renderer,
        "rollout_details": False,
        **({"max_turns": cfg.generator.max_turns} if cfg.generator.max_turns > 1 else {}),
        **cfg.apex.agent,
    }
    AgentSettings.from_kwargs(kwargs)
    return kwargs


def max_context(cfg: ApexTrainConfig) -> int:
    """The agent's window in tokens."""
    from skyrl_apex_plugin.agent.settings import AgentSettings

    return AgentSettings.from_kwargs(agent_kwargs(cfg)).max_context


def accepted_names(cls: type) -> set[str] | None:
    """Names of the keyword arguments that ``cls`` is built with; ``None`` when it takes any.

    ``**kwargs`` is followed to the base class where that is what becomes of it
    (:data:`FOLLOWED`); a class of anybody else that has it may read any name.
    """
    # From 0.26 on, harbor's own sandboxes declare their options as a pydantic model.
    options: type[BaseModel] | None = getattr(cls, "options_model", None)
    names = set(options.model_fields) if options is not None else set()
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if base is object or constructor is None:
            continue
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        names |= {
            each.name
            for each in parameters
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        if all(each.kind is not each.VAR_KEYWORD for each in parameters):
            break
        if not base.__module__.startswith(FOLLOWED):
            return None
    return names


def _check_values(cfg: ApexTrainConfig) -> None:
    for key, known in CHOICES.items():
        if (value := _get(cfg, key)) not in known:
            raise ValueError(f"apex.{key}={value!r}; known: {', '.join(known)}")
    for key, (holds, expected) in VALUES.items():
        if not holds(value := _get(cfg, key)):
            raise ValueError(f"apex.{key}={value!r}; expected {expected}")


def _get(cfg: ApexTrainConfig, key: str) -> Any:
    return reduce(getattr, key.split("."), cfg.apex)


def _check_names(cfg: ApexTrainConfig) -> None:
    from skyrl_apex_plugin.grading.rewards import RewardShaper
    from skyrl_apex_plugin.tito.renderer import check_renderer_name

    apex = cfg.apex
    for kind, name, _ in _chosen(cfg):
        resolve(kind, name)
    RewardShaper(terms=apex.rewards.terms, clip=apex.rewards.clip)
    try:
        check_renderer_name(apex.renderer)
    except ValueError as error:
        raise ValueError(f"apex.renderer={apex.renderer!r}: {error}") from error


def _chosen(cfg: ApexTrainConfig) -> Iterator[tuple[Kind, str, Mapping[str, Any]]]:
    """Kind, name and keyword arguments of the classes that a run builds."""
    apex = cfg.apex
    if "type" not in (apex.trial.get("environment") or {}):
        yield "sandbox", apex.sandbox.name, apex.sandbox.kwargs
    yield "grader", apex.grader.name, apex.grader.kwargs
    yield "sampler", apex.sampler.name, apex.sampler.kwargs


def _check_kwargs(cfg: ApexTrainConfig) -> None:
    """Refuse a name that the class would not take: trials would fail one by one, or ignore it."""
    from skyrl_apex_plugin.embedded.launch import EngineOptions

    for kind, name, kwargs in _chosen(cfg):
        if name == "embedded":  # its keyword arguments are those of the engine
            known: set[str] | None = {field.name for field in fields(EngineOptions)}
        else:
            known = accepted_names(resolve(kind, name))
        if known is not None and (unknown := sorted(kwargs.keys() - (known - GIVEN))):
            raise ValueError(
                f"apex.{kind}.kwargs.{unknown[0]}: {name} has no such option; "
                f"known: {', '.join(sorted(known - GIVEN)) or 'none'}"
            )


def _check_expressions(cfg: ApexTrainConfig) -> None:
    for key in ("tasks.where", "tasks.curriculum"):
        if (text := _get(cfg, key)) is not None:
            compile_expression(text, f"apex.{key}")


def _check_trial(cfg: ApexTrainConfig) -> None:
    """harbor's models drop a field that they do not know, and judge values when a trial starts."""
    if not cfg.apex.trial:
        return
    from harbor.models.trial.config import TrialConfig

    _check_fields(TrialConfig, cfg.apex.trial, "apex.trial")
    trials = TrialConfigBuilder(sandbox=cfg.apex.sandbox.name, extra=cfg.apex.trial)
    task = Task(task_id="checked", directory=Path(), instruction="")
    try:
        trials.build(task, trials_dir=Path(), trial_name="checked", agent_kwargs={})
    except ValueError as error:
        raise ValueError(f"apex.trial: {error}") from error


def _check_fields(model: type[BaseModel], given: Mapping[str, Any], key: str) -> None:
    for name, value in given.items():
        if name not in model.model_fields:
            known = ", ".join(sorted(model.model_fields))
            raise ValueError(f"{key}.{name}: harbor has no such field there; known: {known}")
        inner = model.model_fields[name].annotation
        if (
            isinstance(inner, type)
            and hasattr(inner, "model_fields")
            and isinstance(value, Mapping)
        ):
            _check_fields(inner, value, f"{key}.{name}")


def _check_sampling(cfg: ApexTrainConfig) -> None:
    """The trainer divides logits by the temperature, so the engine must report logprobs of the
    distribution that it sampled from; a client cannot correct raw ones afterwards."""
    params = cfg.generator.sampling_params
    for name, neutral in (("top_p", 1.0), *NEUTRAL):
        if (value := getattr(params, name)) != neutral:
            raise ValueError(
                f"generator.sampling_params.{name}={value}: the trainer cannot recompute logprobs "
                f"of a truncated or penalized distribution; leave it at {neutral:g}"
            )
    if params.stop:
        raise ValueError(
            f"generator.sampling_params.stop={params.stop!r}: turns end at the renderer's stop "
            "tokens; a stop string would cut tokens that were sampled"
        )
    extra = cfg.apex.sampler.kwargs.get("extra_body") or {}
    if taken := sorted(SAMPLING_FIELDS & set(extra)):
        raise ValueError(
            f"apex.sampler.kwargs.extra_body sets {', '.join(taken)}: sampling has one place, "
            "generator.sampling_params"
        )
    _check_sent("sampling_params", params)
    if cfg.generator.eval_sampling_params is not None:
        _check_sent("eval_sampling_params", cfg.generator.eval_sampling_params)
    if params.temperature <= 0:
        raise ValueError(
            f"generator.sampling_params.temperature={params.temperature}: training samples"
        )
    mode = _logprobs_mode(cfg)
    if params.temperature != 1.0 and mode != "processed_logprobs":
        raise ValueError(
            f"generator.sampling_params.temperature={params.temperature} needs "
            "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs, "
            f"found {mode!r}"
        )


def _check_sent(phase: str, params: Any) -> None:
    """Refuse what the agent would leave out of its requests."""
    left_out = {
        name: value for name, neutral in NEUTRAL if (value := getattr(params, name)) != neutral
    }
    left_out |= {"stop": params.stop, "additional_kwargs": params.additional_kwargs}
    for name, value in left_out.items():
        if value:
            raise ValueError(
                f"generator.{phase}.{name}={value!r}: the agent's requests hold temperature, top_p "
                "and max_generate_length alone"
            )


def _logprobs_mode(cfg: ApexTrainConfig) -> str:
    if cfg.apex.sampler.name in HOSTED:
        return f"raw_logprobs of the service behind apex.sampler.name={cfg.apex.sampler.name}"
    if cfg.apex.sampler.name == "embedded":
        return str(cfg.apex.sampler.kwargs.get("logprobs_mode", "processed_logprobs"))
    kwargs = cfg.generator.inference_engine.engine_init_kwargs
    return str(kwargs.get("logprobs_mode", "raw_logprobs"))


def _check_shape(cfg: ApexTrainConfig) -> None:
    """Modes of SkyRL whose rows are of another shape than one trajectory."""
    refused = {
        "generator.step_wise_trajectories": cfg.generator.step_wise_trajectories,
        "generator.vision_language_generator": cfg.generator.vision_language_generator,
        "generator.batched": cfg.generator.batched,
    }
    for key, value in refused.items():
        if value:
            raise ValueError(f"{key}=true: a row of this generator is one whole trajectory of text")
    kwargs = cfg.generator.inference_engine.engine_init_kwargs
    engine_window = kwargs.get("max_model_len")
    if cfg.apex.sampler.name == "embedded":
        engine_window = cfg.apex.sampler.kwargs.get("max_model_len")
    window = max_context(cfg)
    if engine_window is not None and window > int(engine_window):
        raise ValueError(
            f"apex.agent.max_context={window} is larger than the engine's window of "
            f"{engine_window} tokens (max_model_len)"
        )
