"""What the core itself registers, through the same door as everybody else."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl


@hookimpl
def apex_register_graders(register: Register) -> None:
    register(
        "task",
        "skyrl_apex_plugin.grading.task:TaskGrader",
        summary="the task's own tests/test.sh, run in the sandbox",
    )
    register(
        "exact",
        "skyrl_apex_plugin.grading.exact:ExactGrader",
        summary="programmatic checks of the answer and of files: tests/exact.json",
    )


@hookimpl
def apex_register_samplers(register: Register) -> None:
    register(
        "completions",
        "skyrl_apex_plugin.agent.sampling:CompletionsSampler",
        summary="token IDs over /v1/completions (vLLM and compatible engines)",
    )
    register(
        "embedded",
        "skyrl_apex_plugin.embedded.sampler:EmbeddedSampler",
        extra="train",
        summary="token IDs to the CPU engine of the laptop mode",
    )
    register(
        "tinker",
        "skyrl_apex_plugin.agent.samplers_hosted:TinkerSampler",
        summary="a hosted Tinker service",
    )
    register(
        "openai",
        "skyrl_apex_plugin.agent.samplers_hosted:OpenAISampler",
        summary="a hosted OpenAI-compatible service that takes token IDs",
    )
