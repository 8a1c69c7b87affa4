"""The exactness harness: scripted conversations, boundary by boundary, against the template.

The oracle is transformers' ``apply_chat_template``. At each boundary the stream is extended as an
agent would do it, and compared with the template's rendering of the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from . import probes
from .ledger import TokenLedger
from .template import boundaries
from .tools import ToolCatalogue
from .turn import CannotBridge, Message, Renderer

SEAM = 4
"""Tokens at the end of a turn by which it is found again in another rendering."""


class Status(StrEnum):
    EXACT = "exact"
    """The stream equals the template's rendering of the whole conversation."""
    APPENDED = "appended"
    """The template rewrites earlier turns (it drops reasoning, say); the stream keeps what was
    sampled, and what was appended equals the end of the template's rendering."""
    DIFFERS = "differs"
    CANNOT_BRIDGE = "cannot bridge"
    NOT_TESTABLE = "not testable"
    """The template itself refuses the conversation."""


FAILURES = frozenset({Status.DIFFERS, Status.CANNOT_BRIDGE})


@dataclass(frozen=True, slots=True)
class Boundary:
    """One comparison. ``turn`` is -1 for the first prompt, else the turn before the boundary."""

    conversation: str
    turn: int
    status: Status
    tokens: int = 0
    """Tokens that were appended."""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.status not in FAILURES


@dataclass(frozen=True, slots=True)
class Report:
    """All boundaries of one tokenizer."""

    tokenizer: str
    renderer: str
    boundaries: tuple[Boundary, ...]

    @property
    def ok(self) -> bool:
        """No boundary fails, and at least one could be tested."""
        tested = [b for b in self.boundaries if b.status is not Status.NOT_TESTABLE]
        return bool(tested) and all(b.ok for b in tested)

    def as_dict(self) -> dict[str, Any]:
        return {"schema": 1, "ok": self.ok, **asdict(self)}


def check(tokenizer: Any, renderer: Renderer, tools: ToolCatalogue) -> Report:
    """Play every conversation that fits the catalogue."""
    found: list[Boundary] = []
    for name, messages in conversations(tools):
        found += play(name, messages, tokenizer, renderer, tools.for_model)
    if len(tools):
        found.append(_truncated(tokenizer, renderer, tools))
    return Report(str(tokenizer.name_or_path), renderer.name, tuple(found))


def play(
    name: str,
    messages: Sequence[Message],
    tokenizer: Any,
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
) -> list[Boundary]:
    """Compare at every boundary of one conversation, in the first spelling that the template takes.

    The sampled turns are those of the template's own rendering.
    """
    refusals: list[str] = []
    results: list[list[Boundary]] = []
    for spelled in probes.spellings(messages):
        try:
            results.append(list(_play(name, spelled, tokenizer, renderer, tools)))
        except probes.TemplateRefuses as error:
            refusals.append(str(error))
        else:
            if all(boundary.ok for boundary in results[-1]):
                return results[-1]
    if not results:
        return [Boundary(name, -1, Status.NOT_TESTABLE, detail=refusals[0])]
    return min(results, key=lambda found: sum(not boundary.ok for boundary in found))


def _play(
    name: str,
    messages: Sequence[Message],
    tokenizer: Any,
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
) -> Iterator[Boundary]:
    runs = boundaries(messages)
    first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    expected = probes.oracle(tokenizer, messages[:first], tools)
    stream = renderer.start(messages[:first])
    if stream != expected:
        detail = probes.first_difference(tokenizer, expected, stream)
        yield Boundary(name, -1, Status.DIFFERS, len(stream), detail)
        return
    yield Boundary(name, -1, Status.EXACT, len(stream))
    ledger = TokenLedger(stream)
    for turn, (start, end) in enumerate(runs):
        whole = probes.oracle(tokenizer, messages[:end], tools)
        sampled = _sampled(tokenizer, messages[:start], whole, renderer, tools)
        ledger.append_sampled(sampled, [0.0] * len(sampled), finish_reason="stop")
        try:
            added = renderer.extend(ledger, messages[start:end])
        except CannotBridge as error:
            yield Boundary(name, turn, Status.CANNOT_BRIDGE, detail=str(error))
            return
        ledger.append_observation(added)
        yield _compare(name, turn, tokenizer, whole, ledger.tokens.tolist(), added)


def _compare(
    name: str, turn: int, tokenizer: Any, whole: list[int], stream: list[int], added: list[int]
) -> Boundary:
    if stream == whole:
        return Boundary(name, turn, Status.EXACT, len(added))
    # With the token before it, a lost or doubled token at the seam shows too.
    end = len(added) + 1
    if whole[-end:] == stream[-end:]:
        detail = probes.first_difference(tokenizer, whole, stream)
        return Boundary(name, turn, Status.APPENDED, len(added), detail)
    detail = probes.first_difference(tokenizer, whole[-end:], stream[-end:])
    return Boundary(name, turn, Status.DIFFERS, len(added), f"in what was appended, {detail}")


def _sampled(
    tokenizer: Any,
    messages: Sequence[Message],
    whole: list[int],
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
) -> list[int]:
    """The tokens of the assistant turn that ends ``messages``, up to its stop token.

    :param whole: the template's rendering of the conversation up to the next turn.
    """
    prompt = probes.oracle(tokenizer, messages[:-1], tools)
    last = whole
    if whole[: len(prompt)] != prompt:
        # Earlier turns are rewritten later: take the turn as it stands when it is the last.
        last = probes.oracle(tokenizer, messages, tools, add_generation_prompt=False)
        shared = next(
            (i for i, (a, b) in enumerate(zip(prompt, last, strict=False)) if a != b),
            min(len(prompt), len(last)),
        )
        prompt = prompt[:shared]
    rest = last[len(prompt) :]
    stops = set(renderer.stop_token_ids)
    end = next((i for i, token in enumerate(rest) if token in stops), None)
    return rest + _stop_behind(rest, whole, stops) if end is None else rest[: end + 1]


def _stop_behind(turn: list[int], whole: list[int], stops: set[int]) -> list[int]:
    """The stop token that ``whole`` has behind ``turn``, where the template itself puts none.

    Where a turn is ended by the marker of the next message (GLM), a last turn has no end.
    """
    tail = turn[-SEAM:]
    for end in range(len(whole) - 1, len(tail) - 1, -1):
        if tail and whole[end] in stops and whole[end - len(tail) : end] == tail:
            return [whole[end]]
    return []


def _truncated(tokenizer: Any, renderer: Renderer, tools: ToolCatalogue) -> Boundary:
    """A turn that was cut off right behind a complete call: its stop token must be put in."""
    name = "turn cut off behind a complete call"
    call, result = _call(tools, 0), _result(tools, 0, "4")
    messages = [probes.USER, _asks("", [call]), result]
    for spelled in probes.spellings(messages):
        try:
            whole = probes.oracle(tokenizer, spelled, tools.for_model)
            turn = _sampled(tokenizer, spelled[:2], whole, renderer, tools.for_model)
        except probes.TemplateRefuses:
            continue
        if len(turn) < 2:
            continue
        ledger = TokenLedger(renderer.start(spelled[:1]))
        ledger.append_sampled(turn[:-1], [0.0] * (len(turn) - 1), finish_reason="length")
        try:
            added = renderer.extend(ledger, [result])
        except CannotBridge as error:
            return Boundary(name, 0, Status.CANNOT_BRIDGE, detail=str(error))
        if whole[-len(added) :] == added and added[0] in renderer.stop_token_ids:
            return Boundary(name, 0, Status.EXACT, len(added))
        detail = probes.first_difference(tokenizer, whole[-len(added) :], added)
        return Boundary(name, 0, Status.DIFFERS, len(added), f"in what was appended, {detail}")
    return Boundary(name, 0, Status.NOT_TESTABLE, detail="the template renders no tool calls")


# The conversations


def conversations(tools: ToolCatalogue) -> Iterator[tuple[str, list[Message]]]:
    """Name and messages of each scripted conversation; calls only where there are tools."""
    ask: list[Message] = [probes.SYSTEM, probes.USER]
    again: Message = {"role": "user", "content": "And now?"}
    answer: Message = {"role": "assistant", "content": "Four."}
    yield "plain", [probes.USER, answer, again]
    yield "system prompt", [*ask, answer, again, {"role": "assistant", "content": "Five."}, again]
    if not len(tools):
        return
    one, two = _call(tools, 0), _call(tools, 1)
    yield "one call", [*ask, _asks("", [one]), _result(tools, 0, "4"), answer, again]
    yield "text before a call", [*ask, _asks("Let me look.", [one]), _result(tools, 0, "4")]
    both: list[Message] = [_result(tools, 0, "4"), _result(tools, 1, "9")]
    yield "parallel calls", [*ask, _asks("", [one, two]), *both, answer, again]
    yield "cycles", [*ask, _asks("", [one]), both[0], _asks("Then", [two]), both[1]]
    for title, text in OBSERVATIONS.items():
        yield title, [*ask, _asks("", [one]), _result(tools, 0, text), _asks("", [two]), both[1]]
    thinks = {**_asks("", [one]), "reasoning_content": "I should look, «vite»."}
    kept: list[Message] = [*ask, thinks, both[0], {**_asks("", [two]), "reasoning_content": "Hm."}]
    yield "reasoning kept between calls", [*kept, both[1]]
    yield "reasoning before a second question", [*kept, both[1], answer, again]
    yield "correction", [*ask, {"role": "assistant", "content": "<tool_call"}, again]


OBSERVATIONS = {
    "unicode observation": "naïve 数字 🍎\u200d🍏 \u0301 \x0b\r\n\ttab",
    "empty observation": "",
    "whitespace observation": " \n\n ",
    "observation with template text": "<tool_response>\n<|im_end|>\n</tool_call><think>",
    "huge observation": "row 17 | 1234.50 | Überweisung\n" * 4000,
}


def _asks(content: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _call(tools: ToolCatalogue, number: int) -> dict[str, Any]:
    return probes.call(_name(tools, number), {"query": f"apples {number}"}, _id(tools, number))


def _result(tools: ToolCatalogue, number: int, text: str) -> Message:
    return {
        "role": "tool",
        "tool_call_id": _id(tools, number),
        "name": _name(tools, number),
        "content": text,
    }


def _name(tools: ToolCatalogue, number: int) -> str:
    return tools.names[number % len(tools)]


def _id(tools: ToolCatalogue, number: int) -> str:
    """In the one form that a template insists on (Kimi's)."""
    return f"functions.{_name(tools, number)}:{number}"
