"""Chat mode: an OpenAI-style message list, for models that are only served as chat.

There is no token record: what such a model sampled cannot be known exactly.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

from skyrl_apex_hookspecs import ContextLengthExceeded, EngineError, SetupError, ToolCall, Turn
from skyrl_apex_plugin.tito.tools import ToolCatalogue

from . import harbor_versions
from .conversation import Message, ModelTurn, RequestedCall
from .retries import Budgets, Retrier
from .settings import AgentSettings
from .tls import shared_tls

logger = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 4
"""A rough rule for English text: chat models do not lend their tokenizer."""
REQUEST_TIMEOUT_SEC = 600.0
RETRIES = Budgets(timeout=1, rate_limit=8, transient=5)


class ChatModel(Protocol):
    """Something that completes chats in OpenAI's wire format."""

    async def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ``/v1/chat/completions`` request.

        :raises ContextLengthExceeded: the window is full. :raises EngineError: given up.
        """
        ...

    async def aclose(self) -> None: ...


class ChatConversation:
    """A conversation as a list of chat messages."""

    def __init__(
        self,
        messages: Sequence[Message],
        catalogue: ToolCatalogue,
        model: ChatModel,
        settings: AgentSettings,
    ) -> None:
        self._messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self._tools = list(catalogue.for_model)
        self._model = model
        self._settings = settings
        self._used = 0
        self._turns: list[Turn] = []
        self._last: ModelTurn | None = None

    async def next_turn(self) -> ModelTurn:
        if self.tokens_left() < 1:
            raise ContextLengthExceeded(
                f"{self._used} tokens fill the window of {self._settings.max_context}"
            )
        cap = min(self._settings.turn_max_tokens, self.tokens_left())
        request = {
            "messages": self._messages,
            "max_tokens": cap,
            "temperature": self._settings.temperature,
            "top_p": self._settings.top_p,
            **({"tools": self._tools} if self._tools else {}),
        }
        started = time.perf_counter()
        answer = await self._model.complete(request)
        seconds = time.perf_counter() - started
        try:
            choice = answer["choices"][0]
            message = choice["message"]
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(
                f"a chat completion without a message: {str(answer)[:300]}"
            ) from error
        usage = answer.get("usage") or {}
        prompt_tokens = int(usage.get("prompt_tokens") or 0)
        completion_tokens = int(usage.get("completion_tokens") or 0)
        self._used = prompt_tokens + completion_tokens
        self._messages.append(_kept(message))
        self._last = ModelTurn(
            content=message.get("content") or "",
            reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
            calls=_calls(message.get("tool_calls") or (), len(self._turns)),
            finish=self._finish(choice.get("finish_reason"), cap),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            seconds=seconds,
        )
        return self._last

    def _finish(self, reason: str | None, cap: int) -> Any:
        if reason != "length":
            return "stop"
        return "length" if cap == self._settings.turn_max_tokens else "context_length"

    def close_turn(
        self, calls: Sequence[ToolCall], *, tool_seconds: float, malformed: bool
    ) -> Turn:
        assert self._last is not None
        turn = Turn(
            index=len(self._turns),
            start=0,
            end=0,
            finish_reason=self._last.finish,
            calls=tuple(calls),
            malformed=malformed,
            model_seconds=self._last.seconds,
            tool_seconds=tool_seconds,
        )
        self._turns.append(turn)
        return turn

    def observe(self, messages: Sequence[Message]) -> None:
        self._messages += [dict(message) for message in messages]
        self._used += sum(len(str(m["content"])) for m in messages) // CHARACTERS_PER_TOKEN
        if self.tokens_left() < 1:
            raise ContextLengthExceeded(
                f"about {self._used} tokens fill the window of {self._settings.max_context}"
            )

    def tokens_left(self) -> int:
        return self._settings.max_context - self._used

    def truncate(self, text: str, max_tokens: int) -> str:
        limit = max_tokens * CHARACTERS_PER_TOKEN
        if len(text) <= limit:
            return text
        half = limit // 2
        cut = len(text) - 2 * half
        return f"{text[:half]}\n[… {cut} characters left out …]\n{text[-half:]}"

    def checkpoint(self) -> None:
        """Chat has no token record."""

    async def aclose(self) -> None:
        await self._model.aclose()


class HttpChatModel:
    """An OpenAI-compatible endpoint, without litellm."""

    def __init__(self, api_base: str, model: str, api_key: str | None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = f"{api_base.rstrip('/')}/chat/completions"
        self._model = model
        self._client = httpx.AsyncClient(
            headers=headers, timeout=REQUEST_TIMEOUT_SEC, verify=shared_tls(), trust_env=False
        )
        self._retrier = Retrier(RETRIES)

    async def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps({"model": self._model, **request}).encode()
        raw = await self._retrier.run(functools.partial(self._post, body))
        try:
            found: dict[str, Any] = json.loads(raw)
            return found
        except ValueError as error:
            raise EngineError(f"{self._url}: not JSON: {raw[:300]!r}") from error

    async def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        answer = await self._client.post(self._url, content=body, headers=headers)
        answer.raise_for_status()
        return answer.content

    async def aclose(self) -> None:
        await self._client.aclose()


class LitellmChatModel:
    """A hosted model by harbor's model settings (``-m provider/model``)."""

    def __init__(self, model: str, access: Mapping[str, Any]) -> None:
        self._model = model
        self._access = dict(access)

    async def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        # Ten seconds and 200 MB: only a process that talks to a hosted model pays for it.
        litellm = await asyncio.to_thread(_litellm)
        try:
            answer = await litellm.acompletion(
                model=self._model,
                num_retries=RETRIES.transient,
                drop_params=True,
                timeout=REQUEST_TIMEOUT_SEC,
                **request,
                **self._access,
            )
        except litellm.exceptions.ContextWindowExceededError as error:
            raise ContextLengthExceeded(str(error)) from error
        except Exception as error:
            raise EngineError(f"{self._model}: {type(error).__name__}: {error}") from error
        found: dict[str, Any] = answer.model_dump()
        return found

    async def aclose(self) -> None:
        """litellm keeps its clients for the process."""


def chat_model(agent: Any) -> ChatModel:
    """The model that an agent's settings and harbor's model settings name.

    :raises SetupError: they name none.
    """
    settings: AgentSettings = agent.settings
    if not agent.model_name:
        raise SetupError("chat mode needs a model: harbor run --model provider/name")
    access = harbor_versions.model_access(agent)
    if settings.api_base:
        # The provider in front of the name is harbor's; the endpoint knows only the name.
        model = agent.model_name.split("/", 1)[-1]
        return HttpChatModel(settings.api_base, model, access.get("api_key"))
    return LitellmChatModel(agent.model_name, access)


def _litellm() -> Any:
    import litellm

    return litellm


def _kept(message: Mapping[str, Any]) -> dict[str, Any]:
    """What of an answer goes back to the model in later requests."""
    kept = {"role": "assistant", "content": message.get("content")}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    return kept


def _calls(requested: Sequence[Mapping[str, Any]], turn: int) -> tuple[RequestedCall, ...]:
    calls: list[RequestedCall] = []
    for index, item in enumerate(requested):
        function = item.get("function") or {}
        text = function.get("arguments") or "{}"
        error: str | None = None
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except ValueError as fault:
            arguments, error = {}, f"the arguments are no JSON: {fault}"
        if error is None and not isinstance(arguments, dict):
            arguments, error = {}, f"the arguments must be a JSON object, not {text[:100]!r}"
        calls.append(
            RequestedCall(
                call_id=item.get("id") or f"call_{turn}_{index}",
                name=function.get("name") or "",
                arguments=arguments,
                error=error,
            )
        )
    return tuple(calls)
