"""Conversations that tell chat templates apart, and the oracle that renders them.

The oracle is always transformers' ``apply_chat_template``, never a renderer of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .turn import Message

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the files for “a phrase”.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["query"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    },
]


def call(name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """An OpenAI-style tool call, arguments as an object (what templates take)."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM: Message = {"role": "system", "content": "You are careful."}
USER: Message = {"role": "user", "content": "How many apples?\nCount – précisément: 🍎🍎"}  # noqa: RUF001
ASKS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call("search", {"query": 'apples "red"', "limit": 3}, "functions.search:0")],
}
FOUND: Message = {
    "role": "tool",
    "tool_call_id": "functions.search:0",
    "name": "search",
    "content": '{"hits": 4}',
}
ASKS_TWICE: Message = {
    "role": "assistant",
    "content": "Let me add.",
    "tool_calls": [
        call("add", {"a": 1, "b": 2.5}, "functions.add:1"),
        call("search", {"query": "pears"}, "functions.search:2"),
    ],
}
BOTH: tuple[Message, ...] = (
    {"role": "tool", "tool_call_id": "functions.add:1", "name": "add", "content": "3.5"},
    {"role": "tool", "tool_call_id": "functions.search:2", "name": "search", "content": "none\n"},
)
ANSWERS: Message = {"role": "assistant", "content": "There are 4."}


class TemplateRefuses(Exception):
    """A chat template raised; templates do so on conversations that they do not take."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation that ends before an assistant turn."""

    name: str
    messages: tuple[Message, ...]
    tools: bool = True


PROBES: tuple[Probe, ...] = (
    Probe("plain question", (USER,), tools=False),
    Probe("system and question", (SYSTEM, USER), tools=False),
    Probe("tools", (SYSTEM, USER)),
    Probe("tools without system", (USER,)),
    Probe("one tool result", (SYSTEM, USER, ASKS, FOUND)),
    Probe("two tool results", (SYSTEM, USER, ASKS_TWICE, *BOTH)),
    Probe("two cycles", (SYSTEM, USER, ASKS, FOUND, ASKS_TWICE, *BOTH)),
    Probe("second question", (SYSTEM, USER, ANSWERS, {"role": "user", "content": "Sure?"})),
)


def oracle(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    *,
    add_generation_prompt: bool = True,
    **template_kwargs: Any,
) -> list[int]:
    """What transformers renders: the truth that renderers are measured against.

    :raises TemplateRefuses: the template does not take this conversation.
    """
    try:
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
            **template_kwargs,
        )
    except Exception as error:
        raise TemplateRefuses(f"{type(error).__name__}: {error}") from error
    return [int(token) for token in ids]


def differences(
    tokenizer: Any, render: Callable[[Sequence[Message], Sequence[Any] | None], list[int]]
) -> Iterator[str]:
    """How ``render`` differs from the tokenizer's own template: a line for each such probe."""
    for probe in PROBES:
        found = _difference(tokenizer, render, probe)
        if found is not None:
            yield f"{probe.name}: {found}"


def _difference(
    tokenizer: Any,
    render: Callable[[Sequence[Message], Sequence[Any] | None], list[int]],
    probe: Probe,
) -> str | None:
    """``None`` where the renderer agrees with the template on some spelling of the probe."""
    tools = TOOLS if probe.tools else None
    first: str | None = None
    for messages in spellings(probe.messages):
        try:
            expected = oracle(tokenizer, messages, tools)
        except TemplateRefuses as error:
            first = first or f"the template refuses it: {error}"
            continue
        try:
            got = render(messages, tools)
        except Exception as error:
            return f"the renderer fails: {type(error).__name__}: {error}"
        if got == expected:
            return None
        first = first or first_difference(tokenizer, expected, got)
    return first


def spellings(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """The same conversation in the forms that templates take: contents beside calls as a text or
    as null, arguments as an object or as JSON."""
    as_json = tuple(_as_openai(message) for message in messages)
    return [tuple(messages)] if as_json == tuple(messages) else [tuple(messages), as_json]


def _as_openai(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        {
            **c,
            "function": {
                **c["function"],
                "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False),
            },
        }
        for c in message["tool_calls"]
    ]
    return {**message, "content": None, "tool_calls": calls}


def first_difference(tokenizer: Any, expected: Sequence[int], got: Sequence[int]) -> str:
    """Where two streams part, with the text around it."""
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b),
        min(len(expected), len(got)),
    )

    def around(ids: Sequence[int]) -> str:
        before = tokenizer.decode(list(ids[max(0, at - 8) : at]))
        after = tokenizer.decode(list(ids[at : at + 8]))
        return (
            f"{json.dumps(before, ensure_ascii=False)} then {json.dumps(after, ensure_ascii=False)}"
        )

    return (
        f"token {at} of {len(expected)}: the template has {around(expected)}, "
        f"the renderer {around(got)}"
    )
