"""What the turn loop and the two ways of talking to a model exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from skyrl_apex_hookspecs import ToolCall, Turn

Message = Mapping[str, Any]
"""An OpenAI-style chat message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCall:
    """A tool call as the model asked for it; ``error`` says why it cannot be read."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One turn of the model. ``finish`` is ``stop``, ``length`` for a turn at its own cap, and
    ``context_length`` for one cut off by the window."""

    content: str
    reasoning: str = ""
    calls: tuple[RequestedCall, ...] = ()
    malformed: str | None = None
    """What is wrong with the turn's format."""
    finish: Literal["stop", "length", "context_length"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Conversation(Protocol):
    """A dialogue with one model, from the first prompt on."""

    async def next_turn(self) -> ModelTurn:
        """Sample a turn.

        :raises ContextLengthExceeded: there is no room for one.
        :raises EngineError: the model cannot be reached.
        :raises TokenError: the answer does not fit the token record.
        """
        ...

    def close_turn(
        self, calls: Sequence[ToolCall], *, tool_seconds: float, malformed: bool
    ) -> Turn:
        """Add to the last turn what came of it."""
        ...

    def observe(self, messages: Sequence[Message]) -> None:
        """Append what the model sees next.

        :raises ContextLengthExceeded: it does not fit; nothing was appended.
        :raises TokenError: the stream cannot be extended exactly.
        """
        ...

    def tokens_left(self) -> int:
        """Tokens between the conversation and the end of the window."""
        ...

    def truncate(self, text: str, max_tokens: int) -> str:
        """``text`` with its middle cut out where it is longer than ``max_tokens``."""
        ...

    def checkpoint(self) -> None:
        """Write the token record, if there is one and the last write is some time ago."""
        ...

    async def aclose(self) -> None:
        """Write the token record a last time and release what the conversation holds."""
        ...
