"""The package's plugin: it swaps a sandbox and a grader and adds a reward term."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, RewardTerm, Trajectory, hookimpl


@hookimpl
def apex_register_sandboxes(register: Register) -> None:
    register("acme-box", "acme_office.environment:AcmeBox", summary="one bubblewrap call a command")


@hookimpl
def apex_register_graders(register: Register) -> None:
    register("acme-answer", "acme_office.grader:AnswerGrader", summary="the answer is a given word")


@hookimpl
def apex_reward_terms(trajectory: Trajectory) -> RewardTerm:
    return RewardTerm(name="acme_brevity", value=-0.01 * len(trajectory.turns))
