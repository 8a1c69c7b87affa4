"""Finished requests as vllm's OpenAI server reports them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from .chat import parse_message
from .decoding import Choice
from .protocol import ChatBody, CompletionBody, GenerateBody, SamplingFields
from .request import Request


@dataclass(frozen=True, slots=True)
class Answers:
    """Builds response bodies. ``weight_version`` in them is this engine's own addition."""

    tokenizer: PreTrainedTokenizerBase
    model_name: str
    _texts: dict[int, str] = field(default_factory=dict)
    """Texts of single tokens, decoded once: they are asked for with every logprob."""

    def generate(self, body: GenerateBody, requests: Sequence[Request]) -> dict[str, Any]:
        """The answer of ``/inference/v1/generate``."""
        with_logprobs = body.sampling_params.logprobs is not None
        choices = [
            {
                "index": index,
                "token_ids": request.output_ids,
                "finish_reason": request.finish_reason,
                "stop_reason": request.stop_reason,
                "logprobs": {"content": [self._chat_logprob(c, True) for c in request.output]}
                if with_logprobs
                else None,
                "weight_version": request.weight_version,
            }
            for index, request in enumerate(requests)
        ]
        return {
            "request_id": f"generate-tokens-{uuid.uuid4().hex}",
            "choices": choices,
            "prompt_logprobs": _prompt_logprobs(requests[0]),
            "weight_version": requests[0].weight_version,
        }

    def completions(self, body: CompletionBody, requests: Sequence[Request]) -> dict[str, Any]:
        """The answer of ``/v1/completions``."""
        choices = [self._completion(body, index, r) for index, r in enumerate(requests)]
        return self._envelope("text_completion", "cmpl", choices, requests)

    def chat(self, body: ChatBody, requests: Sequence[Request]) -> dict[str, Any]:
        """The answer of ``/v1/chat/completions``."""
        choices = [self._message(body, index, r) for index, r in enumerate(requests)]
        answer = self._envelope("chat.completion", "chatcmpl", choices, requests)
        if body.return_token_ids:
            answer["prompt_token_ids"] = requests[0].prompt
        return answer

    def _envelope(
        self, kind: str, prefix: str, choices: list[dict[str, Any]], requests: Sequence[Request]
    ) -> dict[str, Any]:
        prompts = {id(request.prompt): len(request.prompt) for request in requests}
        prompt_tokens = sum(prompts.values())  # counted once for n completions
        completion_tokens = sum(len(request.output) for request in requests)
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model_name,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "weight_version": requests[0].weight_version,
        }

    def _completion(self, body: CompletionBody, index: int, request: Request) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": self._text(body, request, skip_special_tokens=body.skip_special_tokens),
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
        tokens = [self._token(choice.token_id, as_ids) for choice in request.output]
        offsets, position = [], 0
        for token in tokens:
            offsets.append(position)
            position += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [choice.logprob for choice in request.output],
            "top_logprobs": [
                {
                    self._token(token, as_ids): logprob
                    for token, logprob in ((choice.token_id, choice.logprob), *choice.top)
                }
                for choice in request.output
            ],
            "text_offset": offsets,
        }

    def _message(self, body: ChatBody, index: int, request: Request) -> dict[str, Any]:
        text = self._text(body, request, skip_special_tokens=False)  # tags may be special tokens
        message = parse_message(text, tools=bool(body.offered_tools))
        called = message.tool_calls and request.finish_reason == "stop"
        choice: dict[str, Any] = {
            "index": index,
            "message": message.as_dict(),
            "finish_reason": "tool_calls" if called else request.finish_reason,
            "stop_reason": request.stop_reason,
            "logprobs": None,
            "weight_version": request.weight_version,
        }
        if body.logprobs:
            as_ids = body.return_tokens_as_token_ids
            content = [self._chat_logprob(sampled, as_ids) for sampled in request.output]
            choice["logprobs"] = {"content": content}
        if body.return_token_ids:
            choice["token_ids"] = request.output_ids
        return choice

    def _chat_logprob(self, choice: Choice, as_ids: bool) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._token(token, as_ids)
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        top = [entry(token, logprob) for token, logprob in choice.top]
        return {**entry(choice.token_id, choice.logprob), "top_logprobs": top}

    def _token(self, token: int, as_id: bool) -> str:
        if as_id:
            return f"token_id:{token}"
        if token not in self._texts:
            self._texts[token] = str(self.tokenizer.decode([token]))
        return self._texts[token]

    def _text(self, body: SamplingFields, request: Request, *, skip_special_tokens: bool) -> str:
        """The completion without the token or string that stopped it."""
        ids, stopped_by = request.output_ids, request.stop_reason
        keeps_stop = body.include_stop_str_in_output
        if request.finish_reason == "stop" and not isinstance(stopped_by, str) and not keeps_stop:
            ids = ids[:-1]
        text = str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
        if isinstance(stopped_by, str) and not keeps_stop:
            text = text[: text.rfind(stopped_by)]
        return text


def _prompt_logprobs(request: Request) -> list[dict[str, Any] | None] | None:
    """For each prompt token a map from token ID to logprob; ``None`` for the first."""
    if request.decoding.prompt_logprobs is None:
        return None
    scores = [
        {
            str(token): {"logprob": logprob}
            for token, logprob in (*choice.top, (choice.token_id, choice.logprob))
        }
        for choice in request.prompt_scores
    ]
    return [None, *scores]
