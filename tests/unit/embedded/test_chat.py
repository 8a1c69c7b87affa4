"""Qwen3/Hermes tags to OpenAI messages and back."""

from __future__ import annotations

import json

import pytest

from skyrl_apex_plugin.embedded.chat import parse_message, template_messages

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.csv"}}\n</tool_call>'


def test_calls_and_reasoning_are_taken_out_of_the_content() -> None:
    message = parse_message(f"<think>\nlook\n</think>\n\nReading.\n{CALL}\n{CALL}", tools=True)
    assert message.content == "Reading."
    assert message.reasoning == "look"
    assert [call["function"]["name"] for call in message.tool_calls] == ["read", "read"]
    assert json.loads(message.tool_calls[0]["function"]["arguments"]) == {"path": "a.csv"}
    assert len({call["id"] for call in message.tool_calls}) == 2


def test_a_message_of_calls_alone_has_no_content() -> None:
    assert parse_message(CALL, tools=True).as_dict()["content"] is None


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>\n{"name": "read", "arguments": \n</tool_call>',
        '<tool_call>\n["read"]\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "read"}',
    ],
)
def test_a_call_that_cannot_be_read_stays_in_the_content(broken: str) -> None:
    message = parse_message(broken, tools=True)
    assert message.content == broken
    assert message.tool_calls == ()


def test_without_tools_nothing_is_parsed() -> None:
    assert parse_message(CALL, tools=False).content == CALL


def test_plain_text_is_untouched() -> None:
    assert parse_message("  42 ", tools=True).content == "  42 "


def test_messages_of_the_api_become_those_of_templates() -> None:
    rendered = template_messages(
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
        ]
    )
    assert rendered[0]["content"] == "ab"
    assert rendered[1]["content"] == ""
    assert rendered[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match="image_url"):
        template_messages([{"role": "user", "content": [{"type": "image_url"}]}])
