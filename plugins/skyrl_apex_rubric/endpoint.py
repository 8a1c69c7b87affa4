"""Where a judge is reached: an OpenAI-compatible endpoint, or whatever litellm knows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from .prompt import REPLY_SCHEMA, BadReply

DEFAULT_MODEL = "gemini/gemini-2.5-flash"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta/openai"
RETRIED_STATUSES = frozenset({408, 409, 425, 429})
"""And every 5xx. Other statuses will not change by asking again."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """What the transport itself says it cost; ``None`` when it does not know."""


class TransientFault(Exception):
    """A call that may succeed when it is made again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""


class PermanentFault(Exception):
    """A call that fails in the same way however often it is made (bad key, unknown model)."""


class Endpoint(Protocol):
    """One judge model. ``identity`` names it in caches and messages; it holds no key."""

    identity: str

    async def ask(self, messages: list[dict[str, str]], temperature: float) -> Reply:
        """One call. Raises ``TransientFault``, ``PermanentFault`` or ``BadReply``."""
        ...

    async def aclose(self) -> None: ...


def make_endpoint(
    *,
    env: Mapping[str, str],
    timeout: float,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Endpoint:
    """The endpoint for a judge's settings.

    ``model`` falls back to ``GRADING_MODEL``, then to a Gemini model. With ``base_url`` the model
    is asked there, over ``/chat/completions``. Without one, ``gemini/…`` goes to Google's
    OpenAI-compatible endpoint with ``GOOGLE_API_KEY``, and every other name to litellm.

    Raises ``PermanentFault`` naming the environment variable that lacks a key.
    """
    name = model or env.get("GRADING_MODEL") or DEFAULT_MODEL
    if base_url is None and name.startswith("gemini/"):
        base_url, api_key_env = GEMINI_URL, api_key_env or "GOOGLE_API_KEY"
        name = name.removeprefix("gemini/")
    key = env.get(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise PermanentFault(
            f"judge {name!r} needs the environment variable {api_key_env}, which is not set; add "
            "it to [verifier.env] or to the environment of the run"
        )
    if base_url is None:
        return LitellmEndpoint(name, key, timeout, extra_body or {})
    return OpenAIEndpoint(base_url, name, key, timeout, extra_body or {})


class OpenAIEndpoint:
    """``POST {base_url}/chat/completions`` with a strict JSON schema."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        timeout: float,
        extra_body: Mapping[str, Any],
    ) -> None:
        import httpx

        self.identity = _identity(base_url.rstrip("/"), model, extra_body)
        self._model = model
        self._extra_body = dict(extra_body)
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout,
        )

    async def ask(self, messages: list[dict[str, str]], temperature: float) -> Reply:
        import httpx

        body = {
            "model": self._model,
            "messages": messages,
            "temperature": temperature,
            "response_format": response_format(),
            **self._extra_body,
        }
        try:
            response = await self._client.post("/chat/completions", json=body)
        except httpx.TransportError as error:
            raise TransientFault(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status in RETRIED_STATUSES or status >= 500:
            wait = _retry_after(response.headers.get("retry-after"))
            raise TransientFault(f"HTTP {status}: {response.text[:200]}", wait)
        if status != 200:
            raise PermanentFault(f"HTTP {status} from {self.identity}: {response.text[:500]}")
        try:
            return _completion(response.json())
        except ValueError as error:
            raise BadReply(f"the endpoint's answer is not JSON: {response.text!r:.200}") from error

    async def aclose(self) -> None:
        await self._client.aclose()


class LitellmEndpoint:
    """Any model that litellm can reach."""

    def __init__(
        self, model: str, api_key: str | None, timeout: float, extra_body: Mapping[str, Any]
    ) -> None:
        self.identity = _identity("litellm", model, extra_body)
        self._settings = {"model": model, "timeout": timeout, "num_retries": 0, **extra_body}
        if api_key:
            self._settings["api_key"] = api_key

    async def ask(self, messages: list[dict[str, str]], temperature: float) -> Reply:
        import litellm
        from litellm.exceptions import AuthenticationError, BadRequestError, NotFoundError

        try:
            response = await litellm.acompletion(
                messages=messages,
                temperature=temperature,
                response_format=response_format(),
                **self._settings,
            )
        except (AuthenticationError, BadRequestError, NotFoundError) as error:
            raise PermanentFault(f"{self.identity}: {error}") from error
        except Exception as error:  # litellm lets through the exceptions of every provider's client
            raise TransientFault(f"{type(error).__name__}: {error}") from error
        reply = _completion(response.model_dump())
        try:
            cost = float(litellm.completion_cost(response))
        except Exception:  # no price is known for the model
            return reply
        return Reply(reply.text, reply.prompt_tokens, reply.completion_tokens, cost)

    async def aclose(self) -> None:
        """litellm keeps its own clients."""


def _identity(place: str, model: str, extra_body: Mapping[str, Any]) -> str:
    """What judgements depend on beside the messages."""
    extra = f" {json.dumps(extra_body, sort_keys=True)}" if extra_body else ""
    return f"{place} {model}{extra}"


def response_format() -> dict[str, Any]:
    schema = {"name": "judgement", "strict": True, "schema": REPLY_SCHEMA}
    return {"type": "json_schema", "json_schema": schema}


def _completion(document: Any) -> Reply:
    """The one choice of a chat completion. Raises ``BadReply`` when it is not a whole one."""
    try:
        choice = document["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadReply(f"no message in the endpoint's answer: {document!r:.200}") from error
    if choice.get("finish_reason") not in (None, "stop"):
        raise BadReply(f"the reply ended with finish_reason {choice['finish_reason']!r}")
    if not isinstance(text, str):
        raise BadReply(f"the reply has no text: {choice!r:.200}")
    usage = document.get("usage") or {}
    tokens = (int(usage.get(key) or 0) for key in ("prompt_tokens", "completion_tokens"))
    return Reply(text, *tokens)


def _retry_after(header: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header: a number or a date; ``None`` when it is neither."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
