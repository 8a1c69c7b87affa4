from __future__ import annotations

from typing import Any

import pytest

from skyrl_apex_plugin.agent.settings import AgentSettings


def test_json_values_become_settings() -> None:
    settings = AgentSettings.from_kwargs(
        {
            "tokenizer": "/model",
            "read_only_tools": ["a", "b"],
            "prepare": {"pip_packages": ["openpyxl"], "offline": {"KEY": {"OFFLINE": "1"}}},
        }
    )
    assert settings.resolved_mode == "tito"
    assert settings.read_only_tools == ("a", "b")
    assert settings.prepare.pip_packages == ("openpyxl",)


def test_without_a_tokenizer_the_agent_chats() -> None:
    assert AgentSettings.from_kwargs({}).resolved_mode == "chat"


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"max_turn": 3}, r"unknown agent keys \['max_turn'\]; known: .*max_turns"),
        ({"prepare": {"prot": 1}}, r"unknown agent\.prepare keys \['prot'\]"),
        ({"mode": "text"}, "mode='text'; known: tito, chat"),
        ({"mode": "tito"}, "needs agent.tokenizer"),
        ({"max_turns": 0}, "max_turns=0"),
        ({"tool_timeout_sec": -1}, "tool_timeout_sec=-1"),
        ({"sampler": {"kwargs": {}}}, "expected"),
    ],
)
def test_wrong_settings_name_the_key_and_what_is_known(kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        AgentSettings.from_kwargs(kwargs)
