"""The adapter over the ``renderers`` library: one class per model family lives there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import probes
from . import schema as schemas
from .ledger import TokenLedger
from .parsers import THINK, THINK_END
from .tools import ToolCatalogue
from .turn import (
    MISSHAPEN,
    SPELLED_MARKERS,
    UNCLOSED_REASONING,
    CannotBridge,
    Message,
    ParsedCall,
    ParsedTurn,
    RendererError,
    open_turn,
    read_call,
    unreadable,
)

QUESTION: Message = {"role": "user", "content": "?"}
NOT_FOR_TEXT = frozenset({"default"})
"""``default`` is the library's own fallback; it cannot extend a stream."""
PREFERRED = ("qwen3", "qwen3.5", "qwen3.6", "glm-4.5", "glm-5", "deepseek-v3", "kimi-k2", "llama-3")
"""Tried first where several classes render a template alike."""
THINKING = {":thinking": True, ":no-thinking": False}
"""Suffixes of a name: whether the generation prompt asks for reasoning."""


def names() -> tuple[str, ...]:
    """The library's renderer names, those of the families that models are most often of first."""
    from renderers import base  # type: ignore[import-untyped]

    base._populate_registry()
    rest = sorted(set(base.RENDERER_REGISTRY) - set(PREFERRED) - NOT_FOR_TEXT)
    return (*PREFERRED, *rest)


def name_for_model(*model_names: str) -> str | None:
    """The renderer that the library assigns to one of these exact model names."""
    from renderers.base import MODEL_RENDERER_MAP  # type: ignore[import-untyped]

    return next(
        (MODEL_RENDERER_MAP[name] for name in model_names if name in MODEL_RENDERER_MAP), None
    )


def variants(name: str) -> tuple[str, ...]:
    """``name`` and, for families whose template has the switch, both of its settings."""
    from renderers.configs import _config_class_for  # type: ignore[import-untyped]

    if ":" in name or "enable_thinking" not in _config_class_for(name).template_field_names():
        return (name,)
    return (name, *(name + suffix for suffix in THINKING))


def create(tokenizer: Any, name: str) -> Any:
    """The library's renderer ``name`` for ``tokenizer``.

    Reasoning of earlier turns stays in the stream (``thinking_retention="all"``): what was sampled
    is never taken out again.

    :param name: a name of :func:`names`, with a suffix of :data:`THINKING` or without.
    :raises RendererError: the tokenizer lacks what this family needs.
    """
    from renderers import create_renderer
    from renderers.configs import _config_class_for

    family, colon, suffix = name.partition(":")
    switch = {"enable_thinking": THINKING[colon + suffix]} if suffix else {}
    try:
        config = _config_class_for(family)(thinking_retention="all", **switch)
        plain = _PlainTokenizer(tokenizer) if hasattr(tokenizer, "backend_tokenizer") else tokenizer
        return create_renderer(plain, config)
    except Exception as error:
        raise RendererError(
            f"renderer {name!r} does not fit the tokenizer {tokenizer.name_or_path!r}: {error}"
        ) from error


class _PlainTokenizer:
    """A tokenizer as the library's protocol has it, without character offsets.

    With offsets the library attributes every token to a message, which nothing here reads and
    which costs more than the tokens themselves. Texts are never "cleaned up".
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def __getattr__(self, name: str) -> Any:
        if name == "__call__":
            raise AttributeError("offsets are left out on purpose")
        return getattr(self._tokenizer, name)


class LibraryRenderer:
    """See :class:`~skyrl_apex_plugin.tito.turn.Renderer`.

    :param name: as :func:`create` takes it.
    :raises RendererError: the tokenizer lacks what this family needs, or what is rendered behind
        a message cannot be told, since the message itself is then rendered otherwise.
    """

    def __init__(self, tokenizer: Any, name: str, tools: ToolCatalogue) -> None:
        self._library = create(tokenizer, name)
        self._tokenizer = tokenizer
        self._name = name
        self._tools = tools.for_model or None
        self._readable, self._nullable = _for_parser(tools.for_model)
        self._stops = tuple(self._library.get_stop_token_ids())
        self._think, self._think_end = (_token_id(tokenizer, tag) for tag in (THINK, THINK_END))
        self._generation_prompt = self._behind_question(add_generation_prompt=True)
        """What stands before every turn. It may open the reasoning, which parsing must know."""
        tags = [t for t in self._generation_prompt if t in (self._think, self._think_end)]
        self._prefilled = tags[-1:] == [self._think]
        self._missing_stop([QUESTION])
        if self._tools:
            self._missing_stop([probes.FOUND])

    @property
    def name(self) -> str:
        return self._name

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stops

    def start(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = self._library.render_ids(
            list(messages), tools=self._tools, add_generation_prompt=True
        )
        return ids

    def extend(self, ledger: TokenLedger, messages: Sequence[Message]) -> list[int]:
        before, sampled = open_turn(ledger, messages)
        stopped = any(token in self._stops for token in sampled)
        stop = [] if stopped else self._missing_stop(messages)
        sampled += stop
        added = self._bridge(before, sampled, messages)
        if added is None and sampled[-1] in self._stops:
            # The library refuses turns that stop inside their reasoning, since the next turn's
            # channel could be mistaken. What follows a stop token does not depend on it.
            added = self._bridge(sampled[-1:], sampled[-1:], messages)
        if added is None:
            raise CannotBridge(
                f"renderer {self._name!r} cannot bridge from turn {ledger.turns[-1].index} "
                f"({ledger.turns[-1].finish_reason}) to {[m.get('role') for m in messages]}"
            )
        return stop + added

    def _missing_stop(self, messages: Sequence[Message]) -> list[int]:
        """What ends a turn that was cut off: the first stop token that the template has between
        an assistant's text and ``messages``. For GLM that is the marker of the first of them."""
        turn: Message = {"role": "assistant", "content": "Four."}
        if messages[0].get("role") == "tool":
            turn = {**turn, "tool_calls": [probes.call("search", {"query": "x"}, "call00000")]}
        added = self._behind_question(turn, *messages)
        return [token for token in added if token in self._stops][:1]

    def _behind_question(
        self, *messages: Message, add_generation_prompt: bool = False
    ) -> list[int]:
        """What is rendered behind a question."""
        before: list[int] = self._library.render_ids([QUESTION])
        whole: list[int] = self._library.render_ids(
            [QUESTION, *messages], add_generation_prompt=add_generation_prompt
        )
        if whole[: len(before)] != before:
            what = [message["role"] for message in messages] or "a generation prompt"
            raise RendererError(
                f"renderer {self._name!r} for the tokenizer {self._tokenizer.name_or_path!r} "
                f"renders a question otherwise when {what} follows it, so turns cannot be told "
                "apart. Use another renderer, or the chat template: renderer=template:PARSER"
            )
        return whole[len(before) :]

    def _bridge(
        self, before: list[int], sampled: list[int], messages: Sequence[Message]
    ) -> list[int] | None:
        bridged = self._library.bridge_to_next_turn(
            before, sampled, list(messages), tools=self._tools
        )
        if bridged is None:
            return None
        stream = before + sampled
        ids: list[int] = bridged.token_ids
        if ids[: len(stream)] != stream or len(ids) == len(stream):
            raise CannotBridge(f"renderer {self._name!r} would change tokens that were sampled")
        return ids[len(stream) :]

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        ids = list(token_ids)
        response = self._parse(ids)
        reasoning = response.reasoning_content or ""
        start, end = self._closed_reasoning(ids)
        if any(call.token_span and call.token_span[0] < end for call in response.tool_calls):
            # Some of the library's grammars let a call end the reasoning although it is closed
            # later. Such a call is a draft, so the reasoning is read apart from the rest.
            response = self._parse(ids[:start] + ids[end:])
            reasoning = self._tokenizer.decode(ids[start:end]).strip()
        calls = tuple(_read(attempt) for attempt in response.tool_calls)
        content = response.content or ""
        return ParsedTurn(
            content=content,
            reasoning=reasoning,
            calls=calls,
            malformed=None if calls else _fault(content, response.reasoning_complete),
        )

    def _parse(self, ids: list[int]) -> Any:
        prompt = self._generation_prompt
        response = self._library.parse_response(ids, tools=self._readable, prompt_ids=prompt)
        unsure = {
            number: names
            for number, call in enumerate(response.tool_calls)
            if isinstance(call.arguments, dict)
            and (
                names := [
                    name
                    for name in self._nullable.get(call.name, ())
                    if call.arguments.get(name) == "null"
                ]
            )
        }
        if unsure:
            # Formats without quotes write null and the text "null" alike. Without the tools the
            # library decodes what has no quotes, which tells those formats from JSON.
            decoded = self._library.parse_response(ids, prompt_ids=prompt).tool_calls
            for number, names in unsure.items():
                call = response.tool_calls[number]
                call.arguments.update({name: decoded[number].arguments[name] for name in names})
        return response

    def _closed_reasoning(self, ids: list[int]) -> tuple[int, int]:
        """``[start, end)`` of the reasoning that opens a turn and is closed, tags left out.

        ``(0, 0)`` where there is none.
        """
        ends = (self._think_end, *self._stops)
        end = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        if end == len(ids) or ids[end] != self._think_end:
            return 0, 0
        start = ids.index(self._think) + 1 if self._think in ids[:end] else 0
        if start > 0 and not self._tokenizer.decode(ids[: start - 1]).strip():
            return start, end
        return (0, end) if self._prefilled else (0, 0)


def _for_parser(
    tools: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]] | None, dict[str, list[str]]]:
    """Tools for the library to read calls by, and which parameters are a text or null, by tool.

    Formats that write values without quotes are decoded by the type of each parameter, which the
    library sees only where it stands plainly: a parameter that can but be a text is shown as one,
    and one that may be a text or something else as just that.
    """
    readable: list[dict[str, Any]] = []
    nullable: dict[str, list[str]] = {}
    for tool in tools:
        function = tool["function"]
        root = schemas.normalise(function["parameters"])
        given = root.get("properties")
        properties = dict(given) if isinstance(given, dict) else {}
        for name, schema in properties.items():
            found = schemas.types(schema, root)
            if "string" not in found:
                continue
            if found <= {"string", "null"}:
                properties[name] = {"type": "string"}
                if "null" in found:
                    nullable.setdefault(function["name"], []).append(name)
            else:
                properties[name] = {"anyOf": [{"type": "string"}, {}]}
        parameters = {**root, "properties": properties}
        readable.append({**tool, "function": {**function, "parameters": parameters}})
    return readable or None, nullable


def _token_id(tokenizer: Any, text: str) -> int | None:
    """The token that is ``text``, if there is one."""
    found = tokenizer.convert_tokens_to_ids(text)
    return None if found is None or found == tokenizer.unk_token_id else int(found)


def _read(attempt: Any) -> ParsedCall:
    """A parsed attempt of the library; names that are not in the catalogue are checked later."""
    status = str(attempt.status)
    if status in ("ok", "unknown_tool"):
        return read_call(attempt.name, attempt.arguments, attempt.id)
    reasons = {
        "unclosed_block": "it is not closed",
        "invalid_json": "its arguments are not valid JSON",
        "missing_name": "it has no tool name",
    }
    reason = reasons.get(status, "its form is not the one described with the tools")
    return ParsedCall(attempt.name or "", {}, unreadable(reason), attempt.id)


def _fault(content: str, reasoning_complete: bool | None) -> str | None:
    if reasoning_complete is False:
        return UNCLOSED_REASONING
    if any(marker in content for marker in SPELLED_MARKERS):
        return MISSHAPEN
    return None
