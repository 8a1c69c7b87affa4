"""vllm's tool and reasoning parsers, for models that the ``renderers`` library does not know.

They are written for a server: one object a request, made from the request's tools. So one is made
for each turn here too, over a tokenizer that lists its vocabulary only once.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .turn import (
    MISSHAPEN,
    SPELLED_MARKERS,
    UNCLOSED_REASONING,
    ParsedTurn,
    RendererError,
    read_call,
    unreadable,
)

logger = logging.getLogger(__name__)

MARKERS = ("tool_call_start_token", "tool_calls_start_token", "tool_start_token", "bot_token")
"""Attributes of vllm's tool parsers that hold what opens a call."""
THINKING = {"thinking": True, "enable_thinking": True}
"""Template switches by which some reasoning parsers decide whether they do anything."""
SOME_TEXT = "A plain answer."


@dataclass(frozen=True, slots=True)
class VllmRegistry:
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


def registry() -> VllmRegistry | None:
    """``None`` where vllm is not installed.

    :raises RendererError: its parsers are in none of the places known.
    """
    if importlib.util.find_spec("vllm") is None:
        return None
    return VllmRegistry(
        _first("ToolParserManager", "vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers"),
        _first("ReasoningParserManager", "vllm.reasoning"),
        _first(
            "ChatCompletionRequest",
            "vllm.entrypoints.openai.chat_completion.protocol",
            "vllm.entrypoints.openai.protocol",
        ),
    )


def _first(attribute: str, *modules: str) -> Any:
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


class VllmParser:
    """A tool parser of vllm's, with one of its reasoning parsers before it if wanted.

    :param reasoning: name of the reasoning parser, or empty.
    :raises RendererError: a parser does not fit the tokenizer, needs what is not installed, or
        does not read plain text.
    """

    def __init__(
        self,
        vllm: VllmRegistry,
        tool: str,
        reasoning: str,
        tokenizer: Any,
        tools: Sequence[dict[str, Any]],
    ) -> None:
        self._name = f"{tool}+{reasoning}" if reasoning else tool
        chosen = {"tools": list(tools), "tool_choice": "auto"} if tools else {}
        self._request = vllm.request(messages=[], **chosen)
        self._tokenizer = _CachedVocabulary(tokenizer)
        try:
            self._tool_class = vllm.tool_manager.get_tool_parser(tool)
            self._reasoning_class = (
                vllm.reasoning_manager.get_reasoning_parser(reasoning) if reasoning else None
            )
            self._markers = _markers(self._make_tool())
            self._make_reasoning()
            self._make_tool().extract_tool_calls(SOME_TEXT, self._request)
        except Exception as error:
            raise RendererError(
                f"vllm's parser {self._name!r} does not fit the tokenizer "
                f"{getattr(tokenizer, 'name_or_path', '')!r}: {type(error).__name__}: {error}"
            ) from error

    def parse(self, token_ids: Sequence[int], text: str, *, prefilled: bool) -> ParsedTurn:
        """See :class:`~skyrl_apex_plugin.tito.parsers.TurnParser`."""
        try:
            reasoning, content = self._split_reasoning(text, prefilled)
            if content is None:
                return ParsedTurn("", reasoning.strip(), (), malformed=UNCLOSED_REASONING)
            found = self._make_tool().extract_tool_calls(content, self._request)
        except Exception:
            # What a model can sample is without limit, and these parsers are many.
            logger.warning("vllm's parser %s failed on %r", self._name, text, exc_info=True)
            return ParsedTurn(text.strip(), "", (), malformed=unreadable("it cannot be parsed"))
        calls = tuple(
            read_call(
                call.function.name,
                call.function.arguments,
                # vllm makes up IDs for formats without any.
                call.id if call.id and call.id in content else None,
            )
            for call in found.tool_calls
        )
        shown = ((found.content if found.tools_called else content) or "").strip()
        malformed = None
        if not calls and any(marker in content for marker in self._markers):
            malformed = MISSHAPEN
        return ParsedTurn(shown, reasoning.strip(), calls, malformed)

    def _split_reasoning(self, text: str, prefilled: bool) -> tuple[str, str | None]:
        """Reasoning and what follows it; ``None`` follows reasoning that never ended.

        Only a leading block is reasoning. One without an end is ended by the first call after it.
        """
        parser = self._make_reasoning()
        if parser is None:
            return "", text
        opening, closing = _tag(parser, "start"), _tag(parser, "end")
        if opening and not prefilled and not text.lstrip().startswith(opening):
            return "", text
        extract = getattr(parser, "extract_reasoning", None) or parser.extract_reasoning_content
        reasoning, content = extract(text, self._request)
        reasoning = reasoning or ""
        if content is not None or (closing and closing in text):
            return reasoning, content or ""
        starts = [at for marker in self._markers if (at := reasoning.find(marker)) >= 0]
        if starts:
            return reasoning[: min(starts)], reasoning[min(starts) :]
        return reasoning, None

    def _make_tool(self) -> Any:
        return _make(self._tool_class, self._tokenizer, tools=self._request.tools)

    def _make_reasoning(self) -> Any:
        if self._reasoning_class is None:
            return None
        return _make(self._reasoning_class, self._tokenizer, chat_template_kwargs=THINKING)


class _CachedVocabulary:
    """A tokenizer whose vocabulary, which every parser asks for, is listed once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def vocab(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _make(parser: Callable[..., Any], tokenizer: Any, **wanted: Any) -> Any:
    """A parser with those of the ``wanted`` arguments that this release's takes."""
    taken = inspect.signature(parser).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        wanted = {name: value for name, value in wanted.items() if name in taken}
    return parser(tokenizer, **wanted)


def _markers(parser: Any) -> tuple[str, ...]:
    """What opens a call, in this parser's format or in any that is common: not every parser says.

    Mere words are left out, prose has them too.
    """
    own = [getattr(parser, name, None) for name in MARKERS]
    named = {one for one in own if isinstance(one, str) and one.strip() and not one.isalpha()}
    return tuple(named.union(SPELLED_MARKERS))


def _tag(parser: Any, end: str) -> str:
    """The text that opens or closes this parser's reasoning, or an empty one if it has no such."""
    found = (getattr(parser, name, None) for name in (f"reasoning_{end}_str", f"{end}_token"))
    return next((tag for tag in found if isinstance(tag, str)), "")
