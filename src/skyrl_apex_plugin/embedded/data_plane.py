"""Endpoints that sample, tokenize and render."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from transformers import PreTrainedTokenizerBase

from .answers import Answers
from .async_engine import AsyncEngine
from .chat import template_messages
from .protocol import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    TokenizeBody,
    refuse_unsupported,
)
from .request import Request
from .wire import ClientGone, disconnected, parse, read_json


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, under which names."""

    engine: AsyncEngine
    tokenizer: PreTrainedTokenizerBase
    model_names: tuple[str, ...]
    """The first is reported, all are accepted."""
    max_len: int
    """Prompt and completion of one request, in tokens."""


class DataPlane:
    """One method for each endpoint."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._tokenizer = served.tokenizer
        self._answers = Answers(served.tokenizer, served.model_names[0])

    async def generate(self, http: HttpRequest) -> Response:
        raw = await read_json(http)
        refuse_unsupported(raw)
        refuse_unsupported(raw.get("sampling_params") or {})
        body = parse(GenerateBody, raw)
        self._check_model(body.model)
        params = body.sampling_params
        room = self._room(body.token_ids, asked=params.max_tokens)
        decodings = params.decodings(
            max_tokens=min(room, params.max_tokens or room),
            top_logprobs=params.logprobs or 0,
            prompt_logprobs=params.prompt_logprobs,
        )
        session_id = http.headers.get("x-session-id")
        requests = [
            Request(prompt=body.token_ids, decoding=d, salt=body.cache_salt, session_id=session_id)
            for d in decodings
        ]
        await self._run(http, requests)
        return JSONResponse(self._answers.generate(body, requests))

    async def completions(self, http: HttpRequest) -> Response:
        raw = await read_json(http)
        refuse_unsupported(raw)
        body = parse(CompletionBody, raw)
        self._check_model(body.model)
        session_id = http.headers.get("x-session-id") or body.session_id
        requests = [
            Request(prompt=prompt, decoding=d, salt=body.cache_salt, session_id=session_id)
            for prompt in self._prompts(body.prompt)
            for d in body.decodings(
                max_tokens=self._max_tokens(prompt, body.max_tokens),
                top_logprobs=body.logprobs or 0,
                prompt_logprobs=body.prompt_logprobs,
            )
        ]
        await self._run(http, requests)
        return JSONResponse(self._answers.completions(body, requests))

    async def chat_completions(self, http: HttpRequest) -> Response:
        raw = await read_json(http)
        refuse_unsupported(raw)
        body = parse(ChatBody, raw)
        self._check_model(body.model)
        prompt = self._rendered(body)
        session_id = http.headers.get("x-session-id") or body.session_id
        decodings = body.decodings(
            max_tokens=self._max_tokens(prompt, body.max_completion_tokens or body.max_tokens),
            top_logprobs=body.top_logprobs or 0,
        )
        requests = [
            Request(prompt=prompt, decoding=d, salt=body.cache_salt, session_id=session_id)
            for d in decodings
        ]
        await self._run(http, requests)
        return JSONResponse(self._answers.chat(body, requests))

    async def render(self, http: HttpRequest) -> Response:
        body = parse(ChatBody, await read_json(http))
        self._check_model(body.model)
        name = self._served.model_names[0]
        return JSONResponse({"model": name, "token_ids": self._rendered(body)})

    async def tokenize(self, http: HttpRequest) -> Response:
        raw = await read_json(http)
        if raw.get("messages") is not None:
            ids = self._rendered(parse(ChatBody, raw))
        else:
            body = parse(TokenizeBody, raw)
            ids = self._encoded(body.prompt, add_special_tokens=body.add_special_tokens)
        limit = self._served.max_len
        return JSONResponse({"count": len(ids), "max_model_len": limit, "tokens": ids})

    async def detokenize(self, http: HttpRequest) -> Response:
        body = parse(DetokenizeBody, await read_json(http))
        return JSONResponse({"prompt": self._tokenizer.decode(body.tokens)})

    async def models(self, http: HttpRequest) -> Response:
        limit = self._served.max_len
        data = [
            {"id": name, "object": "model", "owned_by": "embedded", "max_model_len": limit}
            for name in self._served.model_names
        ]
        return JSONResponse({"object": "list", "data": data})

    async def finish_session(self, http: HttpRequest) -> Response:
        session_id = http.query_params.get("session_id")
        if not session_id:
            raise ApiError("the query parameter session_id is required", param="session_id")
        await self._served.engine.finish_session(session_id)
        return JSONResponse({"status": "ok"})

    def _check_model(self, name: str | None) -> None:
        known = self._served.model_names
        if name is not None and name not in known:
            raise ApiError(
                f"The model `{name}` does not exist; served: {', '.join(known)}",
                status=404,
                kind="NotFoundError",
                param="model",
            )

    def _prompts(self, prompt: str | list[int] | list[str] | list[list[int]]) -> list[list[int]]:
        """One list of token IDs for each prompt of the body's four forms."""
        many = prompt if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
        return [p if isinstance(p, list) else self._encoded(p) for p in many]  # type: ignore[misc, arg-type]

    def _encoded(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def _rendered(self, body: ChatBody) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(
                template_messages(body.messages),
                tools=body.offered_tools,  # type: ignore[arg-type]
                add_generation_prompt=body.add_generation_prompt,
                tokenize=False,
                **body.chat_template_kwargs,
            )
        except ValueError as error:
            raise ApiError(str(error), param="messages") from error
        return self._encoded(str(text), add_special_tokens=False)

    def _room(self, prompt: Sequence[int], *, asked: int | None) -> int:
        """How many tokens may follow ``prompt``; raises when there are none."""
        vocabulary = self._served.engine.scheduler.model.shape.vocab_size
        if not prompt:
            raise ApiError("the prompt is empty", param="prompt")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ApiError(f"token IDs must be in [0, {vocabulary})", param="prompt")
        if len(prompt) >= self._served.max_len:
            raise self._context_error(len(prompt), asked or 1)
        return self._served.max_len - len(prompt)

    def _max_tokens(self, prompt: Sequence[int], asked: int | None) -> int:
        """``asked`` tokens, or as many as fit; more than fit is an error, as in vllm."""
        room = self._room(prompt, asked=asked)
        if asked is not None and asked > room:
            raise self._context_error(len(prompt), asked)
        return room if asked is None else asked

    def _context_error(self, prompt: int, asked: int) -> ApiError:
        return ApiError(
            f"This model's maximum context length is {self._served.max_len} tokens. However, you "
            f"requested {asked} output tokens and your prompt contains at least {prompt} input "
            f"tokens, for a total of at least {prompt + asked} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )

    async def _run(self, http: HttpRequest, requests: Sequence[Request]) -> None:
        """Run to the end; a client that hangs up has its requests aborted."""
        running = asyncio.ensure_future(self._served.engine.generate(requests))
        hung_up = asyncio.ensure_future(disconnected(http))
        try:
            await asyncio.wait({running, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ClientGone
            await running
        finally:
            for task in (running, hung_up):
                task.cancel()
            await asyncio.gather(running, hung_up, return_exceptions=True)


def _is_ids(prompt: Sequence[object]) -> bool:
    return not prompt or isinstance(prompt[0], int)
