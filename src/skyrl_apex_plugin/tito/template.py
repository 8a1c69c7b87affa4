"""The fallback renderer: the tokenizer's own chat template, proved exact at start-up.

What a template puts between two assistant turns is read off a short conversation: everything
after the stop token of an assistant turn that is known by a sentinel. At start-up the same tokens
must come out at every boundary of longer conversations, with the stop token just before them;
a template for which they do not is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import probes
from .ledger import TokenLedger
from .parsers import THINK, THINK_END, load_parser
from .tools import ToolCatalogue
from .turn import CannotBridge, Message, ParsedTurn, RendererError, open_turn

logger = logging.getLogger(__name__)

SENTINEL = "zqxSENTINELxqz"


class TemplateRenderer:
    """See :class:`~skyrl_apex_plugin.tito.turn.Renderer`.

    :param parser: a name that :func:`~skyrl_apex_plugin.tito.parsers.load_parser` knows.
    :raises RendererError: an unknown parser, no chat template, or one that this cannot extend
        exactly; names the template and where it fails.
    """

    def __init__(self, tokenizer: Any, tools: ToolCatalogue, *, parser: str) -> None:
        if not tokenizer.chat_template:
            raise RendererError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template")
        self._tokenizer = tokenizer
        self._tools = tools.for_model
        self._parser_name = parser
        self._parser = load_parser(parser, tokenizer, self._tools)
        self._arguments_as_json = False
        try:
            self._stops = self._find_stops()
            self._prefilled = self._opens_reasoning()
        except RendererError:
            raise
        except Exception as error:
            raise RendererError(
                f"{self._template_name()} fails on a plain question: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._assert_exact()
        logger.info("renderer %s for %s", self.name, self._template_name())

    @property
    def name(self) -> str:
        return f"template:{self._parser_name}"

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return tuple(self._stops.values())

    def start(self, messages: Sequence[Message]) -> list[int]:
        return self._encode(self._render(messages, self._tools))

    def extend(self, ledger: TokenLedger, messages: Sequence[Message]) -> list[int]:
        _, sampled = open_turn(ledger, messages)
        index = ledger.turns[-1].index
        try:
            stop, text = self._continuation(messages)
        except Exception as error:
            raise CannotBridge(
                f"{self._template_name()} does not render what follows turn {index} "
                f"({[m.get('role') for m in messages]}): {error}"
            ) from error
        added = self._encode(text)
        last = sampled[-1]
        if last == self._stops[stop]:
            return added
        if last in self._stops.values():
            raise CannotBridge(
                f"turn {index} ended with {self._tokenizer.decode([last])!r}, where "
                f"{self._template_name()} ends it with {stop!r}"
            )
        return [self._stops[stop], *added]

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        ids = list(token_ids)
        stops = set(self._stops.values())
        ids = ids[: next((i for i, token in enumerate(ids) if token in stops), len(ids))]
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return self._parser.parse(ids, text, prefilled=self._prefilled)

    # What the template does

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Any], *, generation: bool = True
    ) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [self._spell(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=generation,
            tokenize=False,
        )
        return text

    def _spell(self, message: Message) -> dict[str, Any]:
        """A message with its calls' arguments in the form that the template takes."""
        calls = message.get("tool_calls")
        if not calls or not self._arguments_as_json:
            return dict(message)
        spelled = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in calls
        ]
        return {**message, "content": message.get("content") or None, "tool_calls": spelled}

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _continuation(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The stop token's text, and the text from behind it to the end of the generation prompt,
        for ``messages`` after an assistant turn."""
        text = self._after_sentinel(messages)
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if not found:
            raise ValueError(f"no stop token follows an assistant turn: {text[:80]!r}")
        at, stop = min(found)
        return stop, text[at + len(stop) :]

    def _after_sentinel(self, messages: Sequence[Message]) -> str:
        """What the template puts behind an assistant turn that has calls where tools answer."""
        results = [message for message in messages if message.get("role") == "tool"]
        turn: dict[str, Any] = {"role": "assistant", "content": SENTINEL}
        if results:
            calls = [
                probes.call(
                    str(result.get("name") or "search"),
                    {"query": SENTINEL},
                    str(result.get("tool_call_id") or f"call{number:05d}"),
                )
                for number, result in enumerate(results)
            ]
            turn = {"role": "assistant", "content": "", "tool_calls": calls}
        question = {"role": "user", "content": "?"}
        text = self._render([question, turn, *messages], self._tools[:1])
        at = text.rfind(SENTINEL)
        if at < 0:
            raise ValueError("the template leaves out the tool calls of an assistant turn")
        return text[at + len(SENTINEL) :]

    def _find_stops(self) -> dict[str, int]:
        """Text and ID of each token that ends an assistant turn: the tokenizer's own, those of
        ``generation_config.json``, and the special token that the template puts right behind one.
        """
        added = {token.content: i for i, token in self._tokenizer.added_tokens_decoder.items()}
        stops: dict[str, int] = {}
        for name, token_id in added.items():
            if token_id in self._declared_stops():
                stops[name] = token_id
        text = self._after_sentinel([probes.USER])
        behind = [(text.find(name), name) for name in added if name and name in text]
        if behind and min(behind)[0] <= 1:
            stops[min(behind)[1]] = added[min(behind)[1]]
        if not stops:
            raise RendererError(
                f"{self._template_name()} has no stop token: the tokenizer names no "
                "end-of-sequence token and the template puts none behind an assistant turn"
            )
        return stops

    def _declared_stops(self) -> set[int]:
        declared: set[int] = set()
        if self._tokenizer.eos_token_id is not None:
            declared.add(int(self._tokenizer.eos_token_id))
        file = Path(str(self._tokenizer.name_or_path)) / "generation_config.json"
        if file.is_file():
            found = json.loads(file.read_text()).get("eos_token_id")
            declared.update(found if isinstance(found, list) else [] if found is None else [found])
        return declared

    def _opens_reasoning(self) -> bool:
        question = [probes.USER]
        plain = self._render(question, (), generation=False)
        added = self._behind(plain, self._render(question, ()), "a generation prompt")
        return added.rfind(THINK) > added.rfind(THINK_END)

    def _behind(self, before: str, whole: str, what: str) -> str:
        """What is new in ``whole``, which must go on where ``before`` ends."""
        if not whole.startswith(before):
            raise RendererError(
                f"{self._template_name()} renders a question otherwise when {what} follows it: "
                "what is new there cannot be told. Make the template append"
            )
        return whole[len(before) :]

    # Whether that is exact

    def _assert_exact(self) -> None:
        """Compare the method with the template at every boundary of the probe conversations."""
        if self._tools:
            self._choose_spelling()
            self._warn_of_unread_calls()
        checked = 0
        for probe in probes.PROBES:
            if probe.tools and not self._tools:
                continue
            for start, end in boundaries(probe.messages):
                self._assert_boundary(probe, start, end)
                checked += 1
        logger.debug("%s: exact at %d boundaries", self._template_name(), checked)

    def _choose_spelling(self) -> None:
        errors = []
        for as_json in (False, True):
            self._arguments_as_json = as_json
            try:
                self._continuation([probes.FOUND])
                return
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        raise RendererError(f"{self._template_name()} renders no tool results: {'; '.join(errors)}")

    def _warn_of_unread_calls(self) -> None:
        """Whether the parser reads the calls that the template writes. The name stands even if
        not; no chat template says what else its model may write."""
        question, turn = {"role": "user", "content": "?"}, probes.ASKS_TWICE
        before = self._render([question], probes.TOOLS, generation=False)
        whole = self._render([question, turn], probes.TOOLS, generation=False)
        text = self._behind(before, whole, "an assistant's turn")
        expected = [
            (call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]
        ]
        parser = load_parser(self._parser_name, self._tokenizer, probes.TOOLS)
        calls = parser.parse(self._encode(text), text, prefilled=False).calls
        if [(call.name, call.arguments) for call in calls] != expected:
            logger.warning(
                "the parser %s does not read the calls that %s writes: %r is read as %s",
                self._parser_name,
                self._template_name(),
                text,
                calls or "no call",
            )

    def _assert_boundary(self, probe: probes.Probe, start: int, end: int) -> None:
        tools = probes.TOOLS if probe.tools else []
        messages = probe.messages[:end]
        try:
            full = self._encode(self._render(messages, tools))
            stop, text = self._continuation(messages[start:])
        except Exception as error:
            raise RendererError(
                f"{self._template_name()} fails on {probe.name!r}: {type(error).__name__}: {error}"
            ) from error
        expected = [self._stops[stop], *self._encode(text)]
        if full[-len(expected) :] != expected:
            raise RendererError(
                f"{self._template_name()} cannot be extended exactly: at the end of "
                f"{probe.name!r} it has {self._tokenizer.decode(full[-len(expected) :])!r}, after "
                f"a short conversation {self._tokenizer.decode(expected)!r}"
            )

    def _template_name(self) -> str:
        digest = hashlib.sha256(str(self._tokenizer.chat_template).encode()).hexdigest()[:12]
        return f"the chat template of {self._tokenizer.name_or_path} (sha256 {digest})"


def boundaries(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """``[start, end)`` of each run of messages between two assistant turns, or after the last."""
    found = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index + 1 < len(messages):
            end = index + 1
            while end < len(messages) and messages[end]["role"] != "assistant":
                end += 1
            found.append((index + 1, end))
    return found
