"""Token-in, token-out: the conversation is one append-only list of token IDs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import (
    ContextLengthExceeded,
    EngineError,
    Sample,
    Sampler,
    SamplingParams,
    ToolCall,
    Turn,
)
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.renderer import Renderer, load_renderer
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer
from skyrl_apex_plugin.tito.tools import ToolCatalogue
from skyrl_apex_plugin.tito.truncate import truncate_middle

from .conversation import Message, ModelTurn, RequestedCall
from .settings import AgentSettings

CHECKPOINT_SEC = 5.0
"""A killed run loses at most the tokens of this many seconds."""


class TokenConversation:
    """A conversation whose tokens are exactly those that were sampled or appended.

    :param path: where the token record is written.
    :param session_id: names the trajectory to the engine.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        catalogue: ToolCatalogue,
        sampler: Sampler,
        settings: AgentSettings,
        *,
        path: Path,
        session_id: str,
    ) -> None:
        self._tokenizer = load_tokenizer(settings.tokenizer)
        self._renderer: Renderer = load_renderer(
            self._tokenizer, tools=catalogue, name=settings.renderer
        )
        self._sampler = sampler
        self._settings = settings
        self._path = path
        self._session_id = session_id
        self.ledger = TokenLedger(self._renderer.start(list(messages)))
        self._saved_at = time.monotonic()

    async def next_turn(self) -> ModelTurn:
        room = self.tokens_left()
        if room < 1:
            raise ContextLengthExceeded(
                f"the conversation of {len(self.ledger.tokens)} tokens fills the window of "
                f"{self._settings.max_context}"
            )
        prompt_tokens = len(self.ledger.tokens)
        params = SamplingParams(
            max_tokens=min(self._settings.turn_max_tokens, room),
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
            stop_token_ids=self._renderer.stop_token_ids,
        )
        started = time.perf_counter()
        sample = await self._sampler.sample(self.ledger.tokens, params, session_id=self._session_id)
        seconds = time.perf_counter() - started
        self.ledger.append_sampled(
            sample.token_ids,
            sample.logprobs,
            finish_reason=sample.finish_reason,
            model_seconds=seconds,
            weight_version=sample.weight_version,
        )
        parsed = self._renderer.parse(sample.token_ids)
        number = len(self.ledger.turns)
        return ModelTurn(
            content=parsed.content or "",
            reasoning=parsed.reasoning or "",
            calls=tuple(
                RequestedCall(
                    call_id=call.call_id or f"call_{number}_{index}",
                    name=call.name,
                    arguments=call.arguments or {},
                    error=call.error,
                )
                for index, call in enumerate(parsed.calls)
            ),
            malformed=parsed.malformed,
            finish=self._finish(sample, params.max_tokens, room),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(sample.token_ids),
            seconds=seconds,
        )

    def _finish(self, sample: Sample, asked: int, room: int) -> Any:
        """A turn that ends in a stop token is finished, even where it takes the last token."""
        if sample.finish_reason in ("stop", "tool_calls"):
            return "stop"
        if sample.token_ids and sample.token_ids[-1] in self._renderer.stop_token_ids:
            return "stop"
        if sample.finish_reason != "length":
            raise EngineError(f"the engine ended a turn with {sample.finish_reason!r}")
        return "context_length" if asked == room else "length"

    def close_turn(
        self, calls: Sequence[ToolCall], *, tool_seconds: float, malformed: bool
    ) -> Turn:
        self.ledger.annotate_turn(
            calls=tuple(calls), tool_seconds=tool_seconds, malformed=malformed
        )
        return self.ledger.turns[-1]

    def observe(self, messages: Sequence[Message]) -> None:
        added = self._renderer.extend(self.ledger, list(messages))
        if len(self.ledger.tokens) + len(added) >= self._settings.max_context:
            raise ContextLengthExceeded(
                f"{len(added)} more tokens do not fit: {len(self.ledger.tokens)} of "
                f"{self._settings.max_context} are taken"
            )
        self.ledger.append_observation(added)

    def tokens_left(self) -> int:
        return self._settings.max_context - len(self.ledger.tokens)

    def truncate(self, text: str, max_tokens: int) -> str:
        return truncate_middle(text, max_tokens, self._tokenizer)

    def checkpoint(self) -> None:
        # The whole stream is checked and written: not after each of many quick turns.
        if time.monotonic() - self._saved_at >= CHECKPOINT_SEC:
            self._save()

    def _save(self) -> None:
        self.ledger.save(self._path)
        self._saved_at = time.monotonic()

    async def aclose(self) -> None:
        try:
            self._save()
        finally:
            await self._sampler.finish(self._session_id)
            await self._sampler.aclose()
