"""Chat requests on a token engine: the model's chat template in, Qwen3/Hermes tags out."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONING = re.compile(r"^\s*<think>(.*?)</think>\s*", re.DOTALL)
TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """An assistant message as the OpenAI API has it."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        message["reasoning_content"] = self.reasoning
        message["tool_calls"] = list(self.tool_calls)
        return message


def parse_message(text: str, *, tools: bool) -> ParsedMessage:
    """Split sampled text into reasoning, content and tool calls.

    A call whose JSON cannot be read stays in the content as it is: the client decides.
    """
    reasoning = None
    if match := REASONING.match(text):
        reasoning, text = match.group(1).strip(), text[match.end() :]
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        call = _tool_call(match.group(1))
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    if tools:
        text = TOOL_CALL.sub(take, text).strip() if TOOL_CALL.search(text) else text
    return ParsedMessage(text if text or not calls else None, reasoning, tuple(calls))


def _tool_call(body: str) -> dict[str, Any] | None:
    try:
        call = json.loads(body)
    except json.JSONDecodeError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
    return {
        "id": f"chatcmpl-tool-{uuid.uuid4().hex}",
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI messages as chat templates expect them.

    Text parts are joined and the arguments of earlier calls, JSON strings in the API, become
    objects. Raises ``ValueError`` for parts that are not text.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        kinds = {part.get("type") for part in content}
        if kinds - {"text"}:
            others = sorted(str(kind) for kind in kinds - {"text"})
            raise ValueError(f"message parts of type {others}: only text is supported")
        plain["content"] = "".join(part["text"] for part in content)
    elif content is None:
        plain["content"] = ""
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_template_call(call) for call in calls]
    return plain


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "function": function}
