"""Parsers for models that the ``renderers`` library does not know, chosen by name.

``hermes`` is built in and needs nothing: reasoning in ``<think>``, calls as JSON in
``<tool_call>`` (Hermes, Qwen3 and their many descendants). Where vllm is installed its tool
parsers are known by their own names, and ``TOOL+REASONING`` adds one of its reasoning parsers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from . import vllm_parsers
from .turn import (
    UNCLOSED_REASONING,
    ParsedCall,
    ParsedTurn,
    RendererError,
    read_call,
    unreadable,
)

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"


class TurnParser(Protocol):
    """Reads a sampled turn whose stop token has been cut off.

    :param prefilled: whether the generation prompt has already opened the reasoning.
    """

    def parse(self, token_ids: Sequence[int], text: str, *, prefilled: bool) -> ParsedTurn: ...


def load_parser(name: str, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> TurnParser:
    """The parser ``name``.

    :raises RendererError: an unknown name; lists the known ones. Or a parser of vllm's that does
        not fit the tokenizer.
    """
    vllm = check_parser_name(name)
    if vllm is None:
        return HermesParser()
    tool, _, reasoning = name.partition("+")
    return vllm_parsers.VllmParser(vllm, tool, reasoning, tokenizer, tools)


def check_parser_name(name: str) -> vllm_parsers.VllmRegistry | None:
    """The registry that ``name`` is in, or ``None`` where it is built in.

    :raises RendererError: an unknown name; lists the known ones.
    """
    if name == "hermes":
        return None
    vllm = vllm_parsers.registry()
    tool, plus, reasoning = name.partition("+")
    if (
        vllm is not None
        and tool in vllm.tool_names
        and (not plus or reasoning in vllm.reasoning_names)
    ):
        return vllm
    raise RendererError(f"unknown parser {name!r}; known: {_known(vllm)}")


def _known(vllm: vllm_parsers.VllmRegistry | None) -> str:
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
        elif found is not None and text[at:end].strip():
            # A second call may stand there: what the first one meant to say is not known.
            error = f"something else stands between its JSON and {CALL_END}"
            calls.append(ParsedCall("", {}, unreadable(error)))
        elif isinstance(found, dict):
            calls.append(read_call(found.get("name"), found.get("arguments")))
        else:
            calls.append(ParsedCall("", {}, unreadable(error)))
        start = text.find(CALL, end) if end >= 0 else -1
    return calls
