"""The sampling client: token IDs in, token IDs out, over ``/v1/completions``."""

from __future__ import annotations

import functools
import json
import logging
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from skyrl_apex_hookspecs import EngineError, Sample, SamplingParams, TokenError

from .dialects import VLLM, Dialect, ids_of, inside, spelled_ids
from .retries import Budgets, Retrier
from .tls import shared_tls

logger = logging.getLogger(__name__)

SESSIONS_KEPT = 4096
ECHO_KEY = b'"prompt_token_ids":'


class CompletionsSampler:
    """Samples from vLLM, SkyRL's router, or any server that takes token IDs as they do.

    :param base_url: with or without ``/v1``.
    :param model: the served model's name; ``None`` leaves it out.
    :param timeout: seconds for one request, ``connect_timeout`` for its connection.
    :param timeout_retries, rate_limit_retries, transient_retries: separate budgets of one call.
    :param cache_salt: keeps prefix-cache blocks of different policies apart (a weight version);
        fixed for one trajectory, never empty.
    :param headers: sent with every request; may hold secrets, which are not logged.
    :param extra_body: further fields of the body.
    :param dialect: how the service differs from vllm.
    :raises ValueError: an empty ``cache_salt``.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        timeout: float = 1800.0,
        connect_timeout: float = 30.0,
        timeout_retries: int = 1,
        rate_limit_retries: int = 8,
        transient_retries: int = 5,
        cache_salt: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        dialect: Dialect = VLLM,
    ) -> None:
        if cache_salt is not None and not cache_salt:
            raise ValueError("cache_salt is empty; leave it out or give the weight version")
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._salt = cache_salt
        self._extra = dict(extra_body or {})
        self._client = httpx.AsyncClient(
            headers=dict(headers or {}),
            timeout=httpx.Timeout(timeout, connect=connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            verify=shared_tls(),
        )
        self._retrier = Retrier(Budgets(timeout_retries, rate_limit_retries, transient_retries))
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._dialect = dialect
        self._finishes = dialect.has_sessions

    @property
    def metrics(self) -> dict[str, float]:
        """Counts of this sampler: requests, retries by class, aborted turns, seconds waited."""
        return self._retrier.metrics()

    async def sample(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, session_id: str
    ) -> Sample:
        """Sample one completion. A turn that the engine aborts (a weight update) is taken up
        where it stopped, so no sampled token is lost.

        :raises ContextLengthExceeded: the engine says that the prompt or the turn does not fit.
        :raises TokenError: logprobs are missing, or not as many as token IDs.
        :raises EngineError: the retries are used up, or the engine refuses the request.
        """
        session = self._session(session_id)
        turn = session.turn
        ids: array[int] = array("i")
        logprobs: array[float] = array("f")
        while True:
            prompt = session.encode(prompt_token_ids, ids)
            body = self._body(prompt, params, len(ids), session_id, lean=session.lean)
            raw = await self._retrier.run(functools.partial(self._post, body, session_id))
            choice = _read_choice(
                raw, prompt, f"turn {turn} of session {session_id}", self._dialect
            )
            session.lean = choice.spelled
            ids.extend(choice.token_ids)
            logprobs.extend(choice.logprobs)
            if choice.finish_reason != "abort":
                break
            self._retrier.aborted()
            if len(ids) >= params.max_tokens:
                break
        session.turn += 1
        finish = "length" if choice.finish_reason == "abort" else choice.finish_reason
        return Sample(
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=finish,
            weight_version=choice.weight_version,
        )

    async def finish(self, session_id: str) -> None:
        """Tell the engine that the trajectory is over. Never raises."""
        self._sessions.pop(session_id, None)
        if not self._finishes:
            return
        try:
            response = await self._client.post(
                f"{self._root}/finish_session", params={"session_id": session_id}, timeout=10.0
            )
            # Plain vLLM has no sessions to finish.
            self._finishes = response.status_code not in (404, 405)
        except httpx.HTTPError as error:
            logger.debug("finish_session %s: %r", session_id, error)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > SESSIONS_KEPT:
            self._sessions.popitem(last=False)
        return session

    def _body(
        self, prompt: bytes, params: SamplingParams, done: int, session_id: str, *, lean: bool
    ) -> bytes:
        fields: dict[str, Any] = {
            "max_tokens": params.max_tokens - done,
            **self._dialect.parameters(params),
            **self._dialect.body,
            **(self._dialect.lean if lean else {}),
            **self._extra,
        }
        if self._model is not None:
            fields["model"] = self._model
        if self._dialect.session_field is not None:
            fields[self._dialect.session_field] = session_id
        if self._dialect.salt_field is not None and self._salt is not None:
            fields[self._dialect.salt_field] = self._salt
        head = json.dumps(fields, separators=(",", ":")).encode()
        return b'{"prompt":[' + prompt + b"]," + head[1:]

    async def _post(self, body: bytes, session_id: str) -> bytes:
        response = await self._client.post(
            f"{self._root}/v1/completions",
            content=body,
            headers={"Content-Type": "application/json", self._dialect.session_header: session_id},
        )
        if response.is_error:
            raise httpx.HTTPStatusError(
                f"{response.status_code}", request=response.request, response=response
            )
        return response.content


class _Session:
    """What one trajectory's requests have in common: its prompt so far, already as JSON.

    A conversation only grows, so only new IDs are turned into digits. That the earlier ones are
    unchanged is checked by comparing memory.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.lean = False
        self._ids = b""
        self._json = bytearray()

    def encode(self, prompt: Sequence[int], sampled: Sequence[int]) -> bytes:
        """``prompt`` and ``sampled`` as the inside of a JSON list, without spaces."""
        whole = array("i", prompt)
        whole.extend(sampled)
        raw = whole.tobytes()
        if raw[: len(self._ids)] != self._ids:
            self._ids, self._json = b"", bytearray()
        new = whole[len(self._ids) // whole.itemsize :]
        if new:
            if self._json:
                self._json += b","
            self._json += ",".join(map(str, new)).encode()
        self._ids = raw
        return bytes(self._json)


class _Choice:
    """The parts of a completion that matter."""

    def __init__(
        self,
        token_ids: list[int],
        logprobs: list[float],
        finish_reason: str,
        weight_version: int | None,
        spelled: bool,
    ) -> None:
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.finish_reason = finish_reason
        self.weight_version = weight_version
        self.spelled = spelled


def _read_choice(raw: bytes, prompt: bytes, where: str, dialect: Dialect) -> _Choice:
    """Read a completion and check it.

    :raises TokenError: lengths differ, logprobs are missing, or the engine saw another prompt.
    :raises EngineError: the answer is no completion.
    """
    raw = _check_echo(raw, prompt, where)
    try:
        answer = json.loads(raw)
        choice = answer["choices"][0]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineError(
            f"{where}: the engine's answer is no completion: {raw[:200]!r}"
        ) from error
    ids = ids_of(choice, dialect)
    finish = str(choice.get("finish_reason"))
    if ids is None:
        path = ".".join(dialect.token_ids)
        raise TokenError(f"{where}: the engine returned no token IDs (no {path} in its answer)")
    logprobs = inside(choice, dialect.logprobs)
    if logprobs is None and not (finish == "abort" and not ids):
        raise TokenError(f"{where}: the engine returned {len(ids)} token IDs and no logprobs")
    logprobs = logprobs or []
    if len(ids) != len(logprobs):
        raise TokenError(
            f"{where}: the engine returned {len(ids)} token IDs and {len(logprobs)} logprobs"
        )
    if None in logprobs:
        raise TokenError(f"{where}: logprob {logprobs.index(None)} of {len(ids)} is missing")
    if not ids and finish != "abort":
        raise TokenError(f"{where}: the engine returned no tokens (finish reason {finish!r})")
    version = choice.get("weight_version", answer.get("weight_version"))
    return _Choice(
        ids,
        logprobs,
        finish,
        version if isinstance(version, int) else None,
        spelled_ids(choice, dialect) == ids,
    )


def _check_echo(raw: bytes, prompt: bytes, where: str) -> bytes:
    """Cut the echoed prompt out of an answer, after checking that the engine saw just our IDs.

    Parsing it would cost more than all else in a long trajectory. The key cannot occur inside a
    JSON string, where its quotes would be escaped.
    """
    at = raw.find(ECHO_KEY)
    if at < 0:
        return raw
    start = at + len(ECHO_KEY)
    while raw[start : start + 1].isspace():
        start += 1
    if raw[start : start + 1] != b"[":
        return raw
    end = raw.index(b"]", start)
    echo = raw[start + 1 : end]
    # Servers write lists without spaces or with them; taking them out is the slow way.
    if echo != prompt and echo.translate(None, b" \n\r\t") != prompt:
        raise TokenError(f"{where}: the engine saw a prompt that is not the one that was sent")
    return raw[: start + 1] + raw[end:]
