"""Registers the rubric grader."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl


@hookimpl
def apex_register_graders(register: Register) -> None:
    register(
        "rubric",
        "skyrl_apex_rubric.grader:RubricGrader",
        extra="judge",
        summary="an LLM judge over tests/verifiers.json, on the host",
    )
