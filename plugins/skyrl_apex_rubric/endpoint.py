"""Where a judge is reached: an OpenAI-compatible endpoint, or whatever litellm knows."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from .prompt import REPLY_SCHEMA, BadReply
from .secrets import Scrubber, basic_authorization, secrets_in, secrets_of, without_secrets

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
    """One judge model. ``identity`` names it in caches and messages; neither it nor a reply nor the
    message of a fault holds a key."""

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

    Raises ``PermanentFault`` naming the environment variable that lacks a key, or whose key no
    header can carry.
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
    if key and not re.fullmatch("[!-~]+", key):
        raise PermanentFault(
            f"judge {name!r}: the environment variable {api_key_env} is no key: it holds a space, "
            "a line break or a character that is not ASCII; copy it anew"
        )
    extra = extra_body or {}
    # litellm finds keys in the environment by itself, and providers repeat them in their errors.
    known = [*secrets_of(env), *secrets_in(extra), *([key] if key else ())]
    if base_url is None:
        return LitellmEndpoint(name, key, timeout, extra, known)
    return OpenAIEndpoint(base_url, name, key, timeout, extra, known)


class OpenAIEndpoint:
    """``POST {base_url}/chat/completions`` with a strict JSON schema."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        timeout: float,
        extra_body: Mapping[str, Any],
        secrets: Iterable[str] = (),
    ) -> None:
        import httpx

        try:
            url = httpx.URL(base_url.rstrip("/"))
        except httpx.InvalidURL:
            raise PermanentFault(f"judge {model!r}: its base_url is not a URL") from None
        # User and password leave the URL, which httpx logs and errors show.
        login = (url.username, url.password) if url.userinfo else None
        url = url.copy_with(userinfo=b"")
        self._scrub = Scrubber([*secrets, *(basic_authorization(*login) if login else ())])
        self.identity = self._scrub(_identity(str(url).rstrip("/"), model, extra_body))
        self._model = model
        self._extra_body = dict(extra_body)
        self._client = httpx.AsyncClient(
            base_url=url,
            auth=login,
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
        except httpx.RequestError as error:  # of the connection, or content that does not decode
            raise TransientFault(self._scrub(f"{type(error).__name__}: {error}")) from error
        status, text = response.status_code, self._scrub(response.text)
        if status in RETRIED_STATUSES or status >= 500:
            wait = _retry_after(response.headers.get("retry-after"))
            raise TransientFault(f"HTTP {status}: {text[:200]}", wait)
        if status != 200:
            raise PermanentFault(f"HTTP {status} from {self.identity}: {text[:500]}")
        try:
            document = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise BadReply(f"the endpoint's answer is not JSON: {text!r:.200}") from error
        return _completion(document, text, self._scrub)

    async def aclose(self) -> None:
        await self._client.aclose()


class LitellmEndpoint:
    """Any model that litellm can reach."""

    def __init__(
        self,
        model: str,
        api_key: str | None,
        timeout: float,
        extra_body: Mapping[str, Any],
        secrets: Iterable[str] = (),
    ) -> None:
        self._scrub = Scrubber(secrets)
        self.identity = self._scrub(_identity("litellm", model, extra_body))
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
            raise PermanentFault(self._scrub(f"{self.identity}: {error}")) from error
        except Exception as error:  # litellm lets through the exceptions of every provider's client
            raise TransientFault(self._scrub(f"{type(error).__name__}: {error}")) from error
        document = response.model_dump()
        reply = _completion(document, self._scrub(str(document)), self._scrub)
        try:
            cost = float(litellm.completion_cost(response))
        except Exception:  # no price is known for the model
            return reply
        return Reply(reply.text, reply.prompt_tokens, reply.completion_tokens, cost)

    async def aclose(self) -> None:
        """litellm keeps its own clients."""


def _identity(place: str, model: str, extra_body: Mapping[str, Any]) -> str:
    """What judgements depend on beside the messages. A key is not part of it."""
    shown = without_secrets(extra_body)
    extra = f" {json.dumps(shown, sort_keys=True)}" if shown else ""
    return f"{place} {model}{extra}"


def response_format() -> dict[str, Any]:
    schema = {"name": "judgement", "strict": True, "schema": REPLY_SCHEMA}
    return {"type": "json_schema", "json_schema": schema}


def _completion(document: Any, shown: str, scrub: Callable[[str], str]) -> Reply:
    """The one choice of a chat completion. Raises ``BadReply`` when it is not a whole one.

    :param shown: the document as a message may quote it.
    """
    try:
        choice = document["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadReply(f"no message in the endpoint's answer: {shown:.200}") from error
    if choice.get("finish_reason") not in (None, "stop"):
        reason = scrub(str(choice["finish_reason"]))
        raise BadReply(f"the reply ended with finish_reason {reason!r:.200}")
    if not isinstance(text, str):
        raise BadReply(f"the reply has no text: {shown:.200}")
    usage = document.get("usage") or {}
    try:
        tokens = [_tokens(usage.get(key)) for key in ("prompt_tokens", "completion_tokens")]
    except (AttributeError, ValueError) as error:
        raise BadReply(f"the reply's usage is not counts of tokens: {shown:.200}") from error
    return Reply(scrub(text), *tokens)


def _tokens(count: object) -> int:
    """A count of tokens; an endpoint that does not count says nothing or null."""
    if count is None:
        return 0
    if not isinstance(count, int | float) or not math.isfinite(count) or count < 0:
        raise ValueError(f"{count!r:.50} is no count")
    return int(count)


def _retry_after(header: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header: a number or a date; ``None`` when it is neither.

    A sleep of ``nan`` would break the order of the event loop's timers.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
        except (ValueError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
