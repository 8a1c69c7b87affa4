"""``apex_tito``: what the entry-point group ``skyrl.generators`` names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import Outcome
from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.grading.rewards import RewardShaper
from skyrl_apex_plugin.rollout.generator import (
    ApexGenerator,
    GeneratorSettings,
    invert_rewards,
    shuffle_rewards,
)
from skyrl_apex_plugin.rollout.masking import EXACT_WITH_LIVE_ROWS
from skyrl_apex_plugin.rollout.record import RunRecord
from skyrl_apex_plugin.rollout.runner import AttemptRunner, LocalRunner
from skyrl_apex_plugin.rollout.trial_config import TrialConfigBuilder

from .checks import agent_kwargs, failure_policy, max_context
from .config import ApexTrainConfig
from .experiment import ApexExperiment
from .run_dir import run_dir_of


class ApexTito:
    """The factory of the generator ``apex_tito``, with the classes that SkyRL is to use."""

    config_class = ApexTrainConfig
    experiment_class = ApexExperiment

    def __call__(
        self, cfg: ApexTrainConfig, tokenizer: Any, inference_engine_client: Any
    ) -> ApexGenerator:
        """Build the generator for a checked configuration."""
        apex = cfg.apex
        return ApexGenerator(
            settings=_settings(cfg, tokenizer, inference_engine_client),
            runner=_runner(cfg),
            policy=failure_policy(cfg),
            trials=TrialConfigBuilder(
                sandbox=apex.sandbox.name,
                sandbox_kwargs=apex.sandbox.kwargs,
                agent_kwargs=agent_kwargs(cfg),
                grader=apex.grader.name,
                grader_kwargs=apex.grader.kwargs,
                extra=apex.trial,
            ),
            shaper=RewardShaper(terms=apex.rewards.terms, clip=apex.rewards.clip),
            record=RunRecord(Path(run_dir_of(cfg)), keep=apex.record.keep),
        )


apex_tito = ApexTito()


def _runner(cfg: ApexTrainConfig) -> AttemptRunner:
    runner = cfg.apex.runner
    if runner.name == "ray":
        from skyrl_apex_plugin.rollout.ray_runner import RayRunner

        return RayRunner(
            max_concurrent=runner.max_concurrent_trials,
            starts_per_second=runner.starts_per_second,
            trials_per_worker=runner.trials_per_worker,
            worker_cpus=runner.worker_cpus,
            worker_resources=runner.worker_resources,
        )
    return LocalRunner(
        max_concurrent=runner.max_concurrent_trials, starts_per_second=runner.starts_per_second
    )


def _settings(cfg: ApexTrainConfig, tokenizer: Any, client: Any) -> GeneratorSettings:
    controls = {"shuffle_rewards": shuffle_rewards, "invert_rewards": invert_rewards}
    control = controls.get(cfg.apex.control)
    filler_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    return GeneratorSettings(
        filler_id=filler_id,
        max_context=max_context(cfg),
        min_group_survivors=cfg.apex.failures.min_group_survivors,
        zero_reward_outcomes=_zero_reward_outcomes(cfg),
        token_level_rewards=(cfg.trainer.algorithm.advantage_estimator not in EXACT_WITH_LIVE_ROWS),
        pass_score=cfg.apex.grader.pass_score,
        sampler=cfg.apex.sampler.name,
        sampler_kwargs=lambda: _sampler_kwargs(cfg, client),
        controls=(control,) if control else (),
        shift_mask=cfg.apex.control == "shift_mask",
    )


def _zero_reward_outcomes(cfg: ApexTrainConfig) -> frozenset[Outcome]:
    if cfg.generator.zero_reward_on_non_stop:
        return frozenset({Outcome.LENGTH, Outcome.MAX_TURNS, Outcome.CONTEXT_LENGTH})
    return frozenset({Outcome.LENGTH} if cfg.apex.failures.length_reward_zero else ())


def _sampler_kwargs(cfg: ApexTrainConfig, client: Any) -> Mapping[str, Any]:
    """The sampler's own arguments, and what a sampler that talks to SkyRL's engines asks for.

    The cache salt is the policy's version at the start of a trajectory, as in SkyRL's own
    generator: prefix-cache blocks are shared only among trajectories that began with it.
    """
    from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name

    name = cfg.apex.sampler.name
    offered: dict[str, Any] = {
        "base_url": client.get_endpoint_url(),
        "model": resolve_policy_model_name(cfg),
    }
    if cfg.generator.use_cache_salt:
        offered["cache_salt"] = str(client.weight_version)
    accepted = inspect.signature(resolve("sampler", name)).parameters
    own = {} if name == "embedded" else cfg.apex.sampler.kwargs
    return {**{key: value for key, value in offered.items() if key in accepted}, **own}
