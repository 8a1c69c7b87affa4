"""What must hold of a configuration before anything starts, beyond SkyRL's own validation."""

from __future__ import annotations

from typing import Any

from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.rollout.masking import check_estimator
from skyrl_apex_plugin.rollout.outcomes import FailurePolicy

from .config import ApexTrainConfig

CONTROLS = ("none", "shuffle_rewards", "zero_advantages", "invert_rewards", "shift_mask")

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


def check_apex_config(cfg: ApexTrainConfig) -> None:
    """Refuse what would train on the wrong thing, or fail only after the engines are up.

    Raises ``ValueError`` naming the key, its value and the way out, and ``UnknownName`` or
    ``BrokenName`` for a sandbox, grader, sampler or reward term.
    """
    _check_names(cfg)
    _check_sampling(cfg)
    _check_gate(cfg)
    _check_shape(cfg)
    check_estimator(cfg.trainer.algorithm.advantage_estimator, masks=failure_policy(cfg).masks)
    if not 0 <= cfg.apex.failures.max_failed_fraction <= 1:
        raise ValueError(
            f"apex.failures.max_failed_fraction={cfg.apex.failures.max_failed_fraction}; "
            "expected a share between 0 and 1"
        )


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


def _check_names(cfg: ApexTrainConfig) -> None:
    from skyrl_apex_plugin.grading.rewards import RewardShaper

    apex = cfg.apex
    if "type" not in (apex.trial.get("environment") or {}):
        resolve("sandbox", apex.sandbox.name)
    resolve("grader", apex.grader.name)
    resolve("sampler", apex.sampler.name)
    RewardShaper(terms=apex.rewards.terms, clip=apex.rewards.clip)
    if apex.runner.name not in ("local", "ray"):
        raise ValueError(f"apex.runner.name={apex.runner.name!r}; known: local, ray")
    if apex.control not in CONTROLS:
        raise ValueError(f"apex.control={apex.control!r}; known: {', '.join(CONTROLS)}")


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


def _check_gate(cfg: ApexTrainConfig) -> None:
    gate = cfg.apex.sampler.gate
    expected = {
        "steps": (gate.steps >= -1, "a number of steps, or -1 for all"),
        "rate": (gate.rate is None or 0 <= gate.rate <= 1, "a share between 0 and 1"),
        "mean_limit": (gate.mean_limit > 0, "nats above 0"),
        "max_limit": (gate.max_limit is None or gate.max_limit > 0, "nats above 0, or null"),
    }
    for name, (holds, what) in expected.items():
        if not holds:
            raise ValueError(f"apex.sampler.gate.{name}={getattr(gate, name)}; expected {what}")


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
