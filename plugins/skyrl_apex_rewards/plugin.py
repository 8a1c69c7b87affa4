"""Registers the ready-made reward terms; a run uses those that ``apex.rewards.terms`` names."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl

TERMS = {
    "adaptive_length": ("length:AdaptiveLength", "cost of tokens, dearer on tasks that succeed"),
    "overlong": ("length:Overlong", "penalty that grows as the context window fills up"),
    "tool_success": ("behaviour:ToolSuccess", "bonus for the share of tool calls that succeed"),
    "turns": ("behaviour:Turns", "penalty for every turn over a free number"),
    "format": ("behaviour:Format", "penalty for malformed turns"),
    "must_have": ("criteria:MustHave", "a failed primary criterion takes the score away"),
    "all_or_nothing": ("criteria:AllOrNothing", "full score when every criterion holds, else none"),
}


@hookimpl
def apex_register_rewards(register: Register) -> None:
    for name, (target, summary) in TERMS.items():
        register(name, f"skyrl_apex_rewards.{target}", summary=summary)
