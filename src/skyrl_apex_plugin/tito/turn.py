"""A sampled turn as parsed from its token IDs, and the renderer that does it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skyrl_apex_hookspecs import TokenError

from .ledger import TokenLedger

Message = Mapping[str, Any]
"""An OpenAI-style chat message."""


class RendererError(ValueError):
    """No renderer serves this tokenizer exactly, or a name is unknown. Names the way out."""


class CannotBridge(TokenError):
    """The stream cannot be extended exactly. The trajectory ends here; nothing is guessed."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One attempted tool call, in the order of the turn.

    ``error`` says, in words for the model, why the attempt cannot be read; ``arguments`` are then
    empty. ``call_id`` is the ID that the model itself wrote, in formats that have one.
    """

    name: str
    arguments: Mapping[str, Any]
    error: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """``malformed`` says, in words for the model, what is wrong with a turn without any call."""

    content: str
    reasoning: str
    calls: tuple[ParsedCall, ...]
    malformed: str | None = None


class Renderer(Protocol):
    """Turns messages into tokens and tokens into turns, for one tokenizer and tool catalogue.

    Without state of its own: one renderer serves many trajectories at once.
    """

    @property
    def name(self) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def start(self, messages: Sequence[Message]) -> list[int]:
        """The first prompt, tool catalogue and generation prompt included."""
        ...

    def extend(self, ledger: TokenLedger, messages: Sequence[Message]) -> list[int]:
        """The IDs to append before the next turn: a missing stop token, ``messages`` (tool results
        and user messages), the generation prompt. The ledger is not changed.

        :raises CannotBridge: the template does not continue this stream exactly.
        """
        ...

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        """Read a sampled turn. Never raises for what a model can sample."""
        ...


UNCLOSED_REASONING = (
    "Your turn ended inside its reasoning. Finish the reasoning, then call a tool or give your "
    "answer."
)


def unreadable(reason: str) -> str:
    """What the model is told of a call that cannot be read."""
    return f"Your tool call was not run: {reason}. Write the whole call again."


SPELLED_MARKERS = ("<tool_call>", "</tool_call>", "<function=", "<|tool_call", "<｜tool▁call")  # noqa: RUF001
"""Openers of calls; in the content of a turn without calls they are a call gone wrong."""
MISSHAPEN = unreadable("it is not closed, or not in the form described")


def read_call(name: Any, arguments: Any, call_id: str | None = None) -> ParsedCall:
    """A call from its parsed parts; what is no name or no object becomes an error."""
    if not isinstance(name, str) or not name:
        return ParsedCall("", {}, "Your tool call was not run: it has no tool name.", call_id)
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        shown = str(arguments)[:200]
        error = (
            f"The call of {name!r} was not run: its arguments must be a JSON object, got {shown!r}."
        )
        return ParsedCall(name, {}, error, call_id)
    return ParsedCall(name, dict(arguments), None, call_id)


FOLLOWING_ROLES = frozenset({"tool", "user", "system"})
"""Roles of messages that may stand between two turns. An assistant's would be tokenized again."""


def open_turn(ledger: TokenLedger, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """The tokens since the turn before, and those of the open turn: all that an extension sees.

    Its cost is that of the last turn, not of the stream.

    :raises CannotBridge: there is no open turn, or ``messages`` cannot follow one.
    """
    roles = [message.get("role") for message in messages]
    if not roles or not FOLLOWING_ROLES.issuperset(roles):
        raise CannotBridge(f"messages of roles {roles} cannot follow a turn")
    turns = ledger.turns
    if not turns or turns[-1].observation_end is not None:
        raise CannotBridge("the stream has no open turn to extend")
    start = turns[-2].end if len(turns) > 1 else 0
    turn = turns[-1]
    return ledger.tokens[start : turn.start].tolist(), ledger.tokens[turn.start : turn.end].tolist()
