"""The HTTP surface that SkyRL's ``RemoteInferenceClient`` and OpenAI clients expect."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import PreTrainedTokenizerBase

from .async_engine import AsyncEngine, EngineFailed, PauseMode, WeightUpdateError
from .chat import parse_message, template_messages
from .decoding import Choice, Decoding
from .protocol import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    InitInfo,
    SamplingFields,
    TokenizeBody,
    UpdateInfo,
    refuse_unsupported,
)
from .scheduler import Request
from .transfer import WeightMetadata

logger = logging.getLogger(__name__)

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[HttpRequest], Awaitable[Response]]


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is served under which names."""

    engine: AsyncEngine
    tokenizer: PreTrainedTokenizerBase
    model_names: tuple[str, ...]
    """The first is reported, all are accepted."""
    max_len: int


class Service:
    """One method for each endpoint."""

    def __init__(self, served: Served) -> None:
        self.engine = served.engine
        self.tokenizer = served.tokenizer
        self.served = served

    # Data plane

    async def generate(self, http: HttpRequest) -> Response:
        raw = await _json(http)
        refuse_unsupported(raw)
        refuse_unsupported(raw.get("sampling_params") or {})
        body = _parse(GenerateBody, raw)
        self._check_model(body.model)
        params = body.sampling_params
        room = self._room(body.token_ids)
        decodings = params.decodings(
            max_tokens=min(room, params.max_tokens or room),
            top_logprobs=params.logprobs or 0,
            prompt_logprobs=params.prompt_logprobs,
        )
        requests = await self._run(
            http, body.token_ids, decodings, salt=body.cache_salt, session_id=None
        )
        return JSONResponse(
            {
                "request_id": f"generate-tokens-{uuid.uuid4().hex}",
                "choices": [
                    {
                        "index": index,
                        "token_ids": request.output_ids,
                        "finish_reason": request.finish_reason,
                        "stop_reason": request.stop_reason,
                        "logprobs": None
                        if params.logprobs is None
                        else {"content": [_by_id(choice) for choice in request.output]},
                        "weight_version": request.weight_version,
                    }
                    for index, request in enumerate(requests)
                ],
                "prompt_logprobs": _prompt_logprobs(requests[0]),
                "weight_version": requests[0].weight_version,
            }
        )

    async def completions(self, http: HttpRequest) -> Response:
        raw = await _json(http)
        refuse_unsupported(raw)
        body = _parse(CompletionBody, raw)
        self._check_model(body.model)
        prompts = self._prompts(body.prompt)
        finished = await asyncio.gather(
            *[
                self._run(
                    http,
                    prompt,
                    body.decodings(
                        max_tokens=self._checked_max_tokens(prompt, body.max_tokens),
                        top_logprobs=body.logprobs or 0,
                        prompt_logprobs=body.prompt_logprobs,
                    ),
                    salt=body.cache_salt,
                    session_id=body.session_id,
                )
                for prompt in prompts
            ]
        )
        requests = [request for group in finished for request in group]
        choices = [self._completion_choice(body, i, r) for i, r in enumerate(requests)]
        return JSONResponse(self._envelope("text_completion", "cmpl", choices, requests))

    async def chat_completions(self, http: HttpRequest) -> Response:
        raw = await _json(http)
        refuse_unsupported(raw)
        body = _parse(ChatBody, raw)
        self._check_model(body.model)
        prompt = self._render(body)
        asked = body.max_completion_tokens or body.max_tokens
        requests = await self._run(
            http,
            prompt,
            body.decodings(
                max_tokens=self._checked_max_tokens(prompt, asked or self._room(prompt)),
                top_logprobs=body.top_logprobs or 0,
            ),
            salt=body.cache_salt,
            session_id=body.session_id,
        )
        choices = [self._chat_choice(body, i, r) for i, r in enumerate(requests)]
        envelope = self._envelope("chat.completion", "chatcmpl", choices, requests)
        if body.return_token_ids:
            envelope["prompt_token_ids"] = prompt
        return JSONResponse(envelope)

    async def render(self, http: HttpRequest) -> Response:
        body = _parse(ChatBody, await _json(http))
        self._check_model(body.model)
        return JSONResponse({"model": self._name, "token_ids": self._render(body)})

    async def tokenize(self, http: HttpRequest) -> Response:
        body = _parse(TokenizeBody, await _json(http))
        if body.messages is not None:
            ids = self._render(
                ChatBody(
                    messages=body.messages,
                    tools=body.tools,
                    add_generation_prompt=body.add_generation_prompt,
                    chat_template_kwargs=body.chat_template_kwargs,
                )
            )
        elif body.prompt is not None:
            ids = self.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
        else:
            raise ApiError("either prompt or messages is required", param="prompt")
        return JSONResponse(
            {"count": len(ids), "max_model_len": self.served.max_len, "tokens": ids}
        )

    async def detokenize(self, http: HttpRequest) -> Response:
        body = _parse(DetokenizeBody, await _json(http))
        return JSONResponse({"prompt": self.tokenizer.decode(body.tokens)})

    async def models(self, http: HttpRequest) -> Response:
        data = [
            {"id": name, "object": "model", "owned_by": "embedded", "max_model_len": self.served.max_len}
            for name in self.served.model_names
        ]
        return JSONResponse({"object": "list", "data": data})

    async def finish_session(self, http: HttpRequest) -> Response:
        session_id = http.query_params.get("session_id")
        if not session_id:
            raise ApiError("the query parameter session_id is required", param="session_id")
        await self.engine.finish_session(session_id)
        return JSONResponse({"status": "ok"})

    # Control plane

    async def pause(self, http: HttpRequest) -> Response:
        name = http.query_params.get("mode", PauseMode.ABORT.value)
        try:
            mode = PauseMode(name)
        except ValueError:
            raise ApiError(
                f"mode={name!r} is not one of {[m.value for m in PauseMode]}", param="mode"
            ) from None
        clear_cache = http.query_params.get("clear_cache", "true").lower() == "true"
        await self.engine.pause(mode, clear_cache=clear_cache)
        return JSONResponse({"status": "paused"})

    async def resume(self, http: HttpRequest) -> Response:
        await self.engine.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, http: HttpRequest) -> Response:
        return JSONResponse({"is_paused": self.engine.paused is not None})

    async def sleep(self, http: HttpRequest) -> Response:
        await self.engine.sleep(http.query_params.getlist("tags"))
        return JSONResponse({"status": "ok"})

    async def wake_up(self, http: HttpRequest) -> Response:
        await self.engine.wake_up(http.query_params.getlist("tags"))
        return JSONResponse({"status": "ok"})

    async def is_sleeping(self, http: HttpRequest) -> Response:
        return JSONResponse({"is_sleeping": bool(self.engine.asleep)})

    async def reset_prefix_cache(self, http: HttpRequest) -> Response:
        body = await _json(http)
        await self.engine.reset_prefix_cache(running=bool(body.get("reset_running_requests")))
        return JSONResponse({"status": "ok"})

    async def world_size(self, http: HttpRequest) -> Response:
        return JSONResponse({"world_size": 1})

    async def health(self, http: HttpRequest) -> Response:
        return JSONResponse({}, status_code=200 if self.engine.failure is None else 503)

    async def stats(self, http: HttpRequest) -> Response:
        scheduler = self.engine.scheduler
        return JSONResponse(
            {
                **asdict(scheduler.counters),
                "weight_version": scheduler.weight_version,
                "in_flight": self.engine.in_flight,
                "running": len(scheduler.running),
            }
        )

    # Weight transfer: the calls of SkyRL 0.3.0 (/collective_rpc) and of 0.4.0

    async def init_weight_transfer(self, http: HttpRequest) -> Response:
        info = _parse(InitInfo, (await _json(http)).get("init_info"))
        await self.engine.join_transfer_group(
            address=info.master_address,
            port=info.master_port,
            rank=info.rank_offset,
            world_size=info.world_size,
        )
        return JSONResponse({"message": "weight transfer initialized"})

    async def start_weight_update(self, http: HttpRequest) -> Response:
        self.engine.start_weight_update()
        return JSONResponse({"message": "weight update started"})

    async def update_weights(self, http: HttpRequest) -> Response:
        await self._receive((await _json(http)).get("update_info"))
        return JSONResponse({"message": "weights received"})

    async def finish_weight_update(self, http: HttpRequest) -> Response:
        return JSONResponse({"weight_version": await self.engine.finish_weight_update()})

    async def collective_rpc(self, http: HttpRequest) -> Response:
        body = await _json(http)
        method, kwargs = body.get("method"), body.get("kwargs") or {}
        if method == "skyrl_start_weight_update":
            self.engine.start_weight_update()
        elif method == "update_weights_nccl":
            await self._receive(kwargs.get("update_info"))
        elif method == "skyrl_finish_weight_update":
            await self.engine.finish_weight_update()
        else:
            raise ApiError(f"method={method!r} is not known to the CPU engine", param="method")
        return JSONResponse({"results": [None]})

    async def _receive(self, update_info: Any) -> None:
        info = _parse(UpdateInfo, update_info)
        await self.engine.receive_weights(
            WeightMetadata(info.names, info.dtype_names, info.shapes)
        )

    # Requests

    @property
    def _name(self) -> str:
        return self.served.model_names[0]

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self.served.model_names:
            raise ApiError(
                f"The model `{name}` does not exist; served: {', '.join(self.served.model_names)}",
                status=404,
                kind="NotFoundError",
                param="model",
            )

    def _prompts(self, prompt: str | list[int] | list[str] | list[list[int]]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self.tokenizer.encode(prompt)]
        if prompt and isinstance(prompt[0], int):
            return [prompt]  # type: ignore[list-item]
        return [p if isinstance(p, list) else self.tokenizer.encode(str(p)) for p in prompt]

    def _render(self, body: ChatBody) -> list[int]:
        try:
            text = self.tokenizer.apply_chat_template(
                template_messages(body.messages),
                tools=body.offered_tools,
                add_generation_prompt=body.add_generation_prompt,
                tokenize=False,
                **body.chat_template_kwargs,
            )
        except ValueError as error:
            raise ApiError(str(error), param="messages") from error
        return list(self.tokenizer.encode(str(text), add_special_tokens=False))

    def _room(self, prompt: Sequence[int]) -> int:
        """How many tokens may follow ``prompt``; raises when there are none."""
        vocabulary = self.engine.scheduler.model.shape.vocab_size
        if not prompt:
            raise ApiError("the prompt is empty", param="prompt")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ApiError(f"token IDs must be in [0, {vocabulary})", param="prompt")
        if len(prompt) >= self.served.max_len:
            raise self._context_error(len(prompt), 1)
        return self.served.max_len - len(prompt)

    def _checked_max_tokens(self, prompt: Sequence[int], asked: int | None) -> int:
        room = self._room(prompt)
        if asked is not None and asked > room:
            raise self._context_error(len(prompt), asked)
        return asked if asked is not None else room

    def _context_error(self, prompt: int, asked: int) -> ApiError:
        return ApiError(
            f"This model's maximum context length is {self.served.max_len} tokens. However, you "
            f"requested {asked} output tokens and your prompt contains at least {prompt} input "
            f"tokens, for a total of at least {prompt + asked} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )

    async def _run(
        self,
        http: HttpRequest,
        prompt: list[int],
        decodings: Sequence[Decoding],
        *,
        salt: str | None,
        session_id: str | None,
    ) -> list[Request]:
        """Run to the end; a client that hangs up has its requests aborted."""
        session = http.headers.get("x-session-id") or session_id
        requests = [
            Request(prompt=prompt, decoding=decoding, salt=salt, session_id=session)
            for decoding in decodings
        ]
        running = asyncio.ensure_future(self.engine.generate(requests))
        hung_up = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.wait({running, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ClientGone
            await running
        finally:
            for task in (running, hung_up):
                task.cancel()
            await asyncio.gather(running, hung_up, return_exceptions=True)
        return requests

    # Answers

    def _envelope(
        self, kind: str, prefix: str, choices: list[dict[str, Any]], requests: Sequence[Request]
    ) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt) for prompt in {id(r.prompt): r.prompt for r in requests}.values())
        completion_tokens = sum(len(request.output) for request in requests)
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self._name,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "weight_version": requests[0].weight_version,
        }

    def _completion_choice(
        self, body: CompletionBody, index: int, request: Request
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": self._text(body, request),
            "finish_reason": request.finish_reason,
            "stop_reason": request.stop_reason,
            "logprobs": None,
            "prompt_logprobs": _prompt_logprobs(request),
            "weight_version": request.weight_version,
        }
        if body.logprobs is not None:
            choice["logprobs"] = self._completion_logprobs(body, request)
        if body.return_token_ids:
            choice["token_ids"] = request.output_ids
            choice["prompt_token_ids"] = request.prompt
        return choice

    def _completion_logprobs(self, body: CompletionBody, request: Request) -> dict[str, Any]:
        as_ids = body.return_tokens_as_token_ids
        tokens = [self._token_text(choice.token_id, as_ids) for choice in request.output]
        offsets, position = [], 0
        for token in tokens:
            offsets.append(position)
            position += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [choice.logprob for choice in request.output],
            "top_logprobs": [
                {
                    self._token_text(token, as_ids): logprob
                    for token, logprob in ((choice.token_id, choice.logprob), *choice.top)
                }
                for choice in request.output
            ],
            "text_offset": offsets,
        }

    def _chat_choice(self, body: ChatBody, index: int, request: Request) -> dict[str, Any]:
        text = self._text(body, request, skip_special_tokens=False)
        message = parse_message(text, tools=bool(body.offered_tools))
        finish = request.finish_reason
        choice: dict[str, Any] = {
            "index": index,
            "message": message.as_dict(),
            "finish_reason": "tool_calls" if message.tool_calls and finish == "stop" else finish,
            "stop_reason": request.stop_reason,
            "logprobs": None,
            "weight_version": request.weight_version,
        }
        if body.logprobs:
            choice["logprobs"] = {
                "content": [
                    self._chat_logprob(choice_, body.return_tokens_as_token_ids)
                    for choice_ in request.output
                ]
            }
        if body.return_token_ids:
            choice["token_ids"] = request.output_ids
        return choice

    def _chat_logprob(self, choice: Choice, as_ids: bool) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._token_text(token, as_ids)
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        top = [entry(token, logprob) for token, logprob in choice.top]
        return {**entry(choice.token_id, choice.logprob), "top_logprobs": top}

    def _token_text(self, token: int, as_id: bool) -> str:
        return f"token_id:{token}" if as_id else str(self.tokenizer.decode([token]))

    def _text(
        self, body: SamplingFields, request: Request, *, skip_special_tokens: bool | None = None
    ) -> str:
        """The completion as text, without the token or string that stopped it."""
        ids = request.output_ids
        stopped_by_token = request.finish_reason == "stop" and not isinstance(
            request.stop_reason, str
        )
        if stopped_by_token and not body.include_stop_str_in_output:
            ids = ids[:-1]
        skip = body.skip_special_tokens if skip_special_tokens is None else skip_special_tokens
        text = str(self.tokenizer.decode(ids, skip_special_tokens=skip))
        if isinstance(request.stop_reason, str) and not body.include_stop_str_in_output:
            text = text[: text.rfind(request.stop_reason)]
        return text


def build_app(served: Served) -> Starlette:
    """The application; whoever serves it also runs ``served.engine.run()``."""
    service = Service(served)
    post, get = ["POST"], ["GET"]
    routes: list[tuple[str, Handler, list[str]]] = [
        ("/inference/v1/generate", service.generate, post),
        ("/v1/completions", service.completions, post),
        ("/v1/chat/completions", service.chat_completions, post),
        ("/v1/chat/completions/render", service.render, post),
        ("/tokenize", service.tokenize, post),
        ("/detokenize", service.detokenize, post),
        ("/v1/models", service.models, get),
        ("/finish_session", service.finish_session, post),
        ("/pause", service.pause, post),
        ("/resume", service.resume, post),
        ("/is_paused", service.is_paused, get),
        ("/sleep", service.sleep, post),
        ("/wake_up", service.wake_up, post),
        ("/is_sleeping", service.is_sleeping, get),
        ("/reset_prefix_cache", service.reset_prefix_cache, post),
        ("/get_world_size", service.world_size, get),
        ("/init_weight_transfer_engine", service.init_weight_transfer, post),
        ("/start_weight_update", service.start_weight_update, post),
        ("/update_weights", service.update_weights, post),
        ("/finish_weight_update", service.finish_weight_update, post),
        ("/collective_rpc", service.collective_rpc, post),
        ("/health", service.health, get),
        ("/stats", service.stats, get),
    ]
    return Starlette(
        routes=[Route(path, handler, methods=methods) for path, handler, methods in routes],
        exception_handlers={
            ApiError: _answer_api_error,
            WeightUpdateError: _answer_bad_request,
            EngineFailed: _answer_engine_failed,
            ClientGone: _answer_nobody,
        },
    )


async def _answer_api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, status_code=error.status)


async def _answer_bad_request(http: HttpRequest, error: Exception) -> Response:
    return await _answer_api_error(http, ApiError(str(error)))


async def _answer_engine_failed(http: HttpRequest, error: Exception) -> Response:
    failed = ApiError(str(error), status=500, kind="InternalServerError")
    return await _answer_api_error(http, failed)


async def _answer_nobody(http: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)


async def _json(http: HttpRequest) -> dict[str, Any]:
    content = await http.body()
    if not content:
        return {}
    try:
        body = json.loads(content)
    except json.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _parse(model: type[Body], raw: Any) -> Body:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ApiError(f"{where}: {first['msg']}", param=where) from error


async def _disconnected(http: HttpRequest) -> None:
    """Returns when the client has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _by_id(choice: Choice) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}

    top = [entry(token, logprob) for token, logprob in choice.top]
    return {**entry(choice.token_id, choice.logprob), "top_logprobs": top}


def _prompt_logprobs(request: Request) -> list[dict[str, Any] | None] | None:
    """vllm's shape: for each prompt token a map from token ID to logprob; none for the first."""
    if request.decoding.prompt_logprobs is None:
        return None
    return [
        None,
        *(
            {
                str(token): {"logprob": logprob}
                for token, logprob in (*choice.top, (choice.token_id, choice.logprob))
            }
            for choice in request.prompt_scores
        ),
    ]
