"""Parsers for models that the ``renderers`` library does not know, chosen by name.

``hermes`` is built in and needs nothing: reasoning in ``<think>``, calls as JSON in
``<tool_call>`` (Hermes, Qwen3 and their many descendants). Where vllm is installed its tool
parsers are known by their own names, and ``TOOL+REASONING`` adds one of its reasoning parsers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .turn import ParsedCall, ParsedTurn, RendererError, read_call

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"

UNCLOSED_REASONING = (
    "Your turn ended inside its reasoning. Finish the reasoning, then call a tool or give your "
    "answer."
)


def unreadable(reason: str) -> str:
    """What the model is told of a call that cannot be read."""
    return f"Your tool call was not run: {reason}. Write the whole call again."


class TurnParser(Protocol):
    """Reads a sampled turn whose stop token has been cut off.

    :param prefilled: whether the generation prompt has already opened the reasoning.
    """

    def parse(self, token_ids: Sequence[int], text: str, *, prefilled: bool) -> ParsedTurn: ...


def load_parser(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> TurnParser:
    """The parser ``name``.

    :raises RendererError: an unknown name; lists the known ones.
    """
    if name == "hermes":
        return HermesParser()
    vllm = _vllm_registry()
    tool, _, reasoning = name.partition("+")
    if (
        vllm is not None
        and tool in vllm.tool_names
        and (not reasoning or reasoning in vllm.reasoning_names)
    ):
        return VllmParser(vllm, tool, reasoning, tokenizer, tools)
    raise RendererError(f"unknown parser {name!r}; known: {_known(vllm)}")


def _known(vllm: _VllmRegistry | None) -> str:
    if vllm is None:
        return "hermes (and vllm's tool parsers where vllm is installed)"
    tools, reasoning = ", ".join(vllm.tool_names), ", ".join(vllm.reasoning_names)
    return f"hermes, {tools}; each may be followed by + and one of: {reasoning}"


class HermesParser:
    """``<think>…</think>`` and ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    def parse(self, token_ids: Sequence[int], text: str, *, prefilled: bool) -> ParsedTurn:
        reasoning, rest, is_open = _split_reasoning(text, prefilled)
        if is_open:
            return ParsedTurn("", reasoning, (), malformed=UNCLOSED_REASONING)
        start = rest.find(CALL)
        content = (rest if start < 0 else rest[:start]).strip()
        calls = tuple(_hermes_calls(rest, start)) if start >= 0 else ()
        malformed = None
        if not calls and CALL_END in content:
            malformed = unreadable(f"it has {CALL_END} without {CALL}")
        return ParsedTurn(content, reasoning, calls, malformed)


def _split_reasoning(text: str, prefilled: bool) -> tuple[str, str, bool]:
    """Reasoning, what follows it, and whether it was never closed.

    Only a leading block is reasoning. One without an end is ended by the first call after it;
    calls drafted inside a closed block stay reasoning.
    """
    body = text.lstrip()
    if body.startswith(THINK):
        body = body[len(THINK) :]
    elif not prefilled:
        return "", text, False
    reasoning, closed, rest = body.partition(THINK_END)
    if closed:
        return reasoning.strip(), rest, False
    reasoning, called, rest = body.partition(CALL)
    return reasoning.strip(), called + rest, not called


def _hermes_calls(text: str, start: int) -> list[ParsedCall]:
    """Every attempt from ``start`` on. A string inside the JSON may itself hold the end tag."""
    calls: list[ParsedCall] = []
    decoder = json.JSONDecoder()
    while start >= 0:
        at = start + len(CALL)
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            found, error = None, "its JSON is not valid"
        else:
            error = "it is not a JSON object with a name and arguments"
        end = text.find(CALL_END, at)
        if end < 0:
            calls.append(ParsedCall("", {}, unreadable("it is not closed")))
        elif isinstance(found, dict):
            calls.append(read_call(found.get("name"), found.get("arguments")))
        else:
            calls.append(ParsedCall("", {}, unreadable(error)))
        start = text.find(CALL, end) if end >= 0 else -1
    return calls


@dataclass(frozen=True, slots=True)
class _VllmRegistry:
    """vllm's parser registries, whose module paths differ between releases."""

    tool_manager: Any
    reasoning_manager: Any
    request: type[Any]

    @property
    def tool_names(self) -> list[str]:
        return sorted(self.tool_manager.list_registered())

    @property
    def reasoning_names(self) -> list[str]:
        return sorted(self.reasoning_manager.list_registered())


def _vllm_registry() -> _VllmRegistry | None:
    """``None`` where vllm is not installed."""
    import importlib
    import importlib.util

    if importlib.util.find_spec("vllm") is None:
        return None

    def first(attribute: str, *modules: str) -> Any:
        reason: Exception | None = None
        for module in modules:
            try:
                return getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                reason = error
        raise RendererError(
            f"vllm is installed, but {attribute} cannot be imported from {' or '.join(modules)} "
            f"({reason}); use renderer=template:hermes or a renderer of the renderers library"
        )

    return _VllmRegistry(
        first("ToolParserManager", "vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers"),
        first("ReasoningParserManager", "vllm.reasoning"),
        first(
            "ChatCompletionRequest",
            "vllm.entrypoints.openai.chat_completion.protocol",
            "vllm.entrypoints.openai.protocol",
        ),
    )


class VllmParser:
    """A tool parser of vllm's, with one of its reasoning parsers before it if wanted."""

    def __init__(
        self,
        vllm: _VllmRegistry,
        tool: str,
        reasoning: str,
        tokenizer: Any,
        tools: Sequence[dict[str, Any]],
    ) -> None:
        self._request = vllm.request(messages=[], tools=list(tools) or None, tool_choice="auto")
        self._tool = vllm.tool_manager.get_tool_parser(tool)(tokenizer)
        self._reasoning = (
            vllm.reasoning_manager.get_reasoning_parser(reasoning)(tokenizer) if reasoning else None
        )

    def parse(self, token_ids: Sequence[int], text: str, *, prefilled: bool) -> ParsedTurn:
        reasoning: str | None = None
        content: str | None = text
        if self._reasoning is not None:
            extract = getattr(self._reasoning, "extract_reasoning", None)
            extract = extract or self._reasoning.extract_reasoning_content
            reasoning, content = extract(text, self._request)
            if content is None:
                return ParsedTurn("", reasoning or "", (), malformed=UNCLOSED_REASONING)
        found = self._tool.extract_tool_calls(content or "", self._request)
        calls = tuple(
            read_call(call.function.name, call.function.arguments, call.id)
            for call in found.tool_calls
        )
        shown = found.content if found.tools_called else content
        return ParsedTurn((shown or "").strip(), (reasoning or "").strip(), calls)
