"""Request bodies of the HTTP surface, as vllm's OpenAI server takes them.

A parameter that the engine does not have is accepted at the value that means nothing and refused
at any other: it would change what is sampled. Fields unknown to vllm's API are ignored.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .decoding import Decoding

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (1, None),
    "use_beam_search": (False, None),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "stream": (False, None),
    "echo": (False, None),
    "suffix": (None,),
    "features": (None,),
    "truncate_prompt_tokens": (None,),
}
"""Parameters that the engine does not have, with the values at which they mean nothing."""


class ApiError(Exception):
    """An answer in vllm's error shape, ``{"error": {message, type, param, code}}``."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class SamplingFields(BaseModel):
    """Sampling parameters that all bodies share."""

    model_config = ConfigDict(extra="ignore")

    n: int = Field(default=1, ge=1)
    temperature: float | None = Field(default=1.0, ge=0)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = 0
    min_p: float | None = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def decodings(
        self, *, max_tokens: int, top_logprobs: int, prompt_logprobs: int | None = None
    ) -> list[Decoding]:
        """One for each of the ``n`` completions; each draws from a seed of its own."""
        if max_tokens < 1:
            raise ApiError(f"max_tokens must be at least 1, got {max_tokens}", param="max_tokens")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [
            Decoding(
                max_tokens=max_tokens,
                min_tokens=self.min_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=max(0, self.top_k or 0),
                min_p=self.min_p or 0.0,
                seed=None if self.seed is None else self.seed + index,
                stop=tuple(text for text in stop if text),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                ignore_eos=self.ignore_eos,
                top_logprobs=top_logprobs,
                prompt_logprobs=prompt_logprobs,
            )
            for index in range(self.n)
        ]


class GenerateParams(SamplingFields):
    """``sampling_params`` of ``/inference/v1/generate``."""

    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class GenerateBody(BaseModel):
    """``POST /inference/v1/generate``: token IDs in, token IDs out."""

    token_ids: list[int]
    sampling_params: GenerateParams = GenerateParams()
    model: str | None = None
    cache_salt: str | None = None


class CompletionBody(SamplingFields):
    """``POST /v1/completions``."""

    prompt: str | list[int] | list[str] | list[list[int]]
    model: str | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: str | None = None
    session_id: str | None = None


class ChatBody(SamplingFields):
    """``POST /v1/chat/completions`` and ``/v1/chat/completions/render``."""

    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: str | None = None
    session_id: str | None = None

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """The tools the template shows; ``tool_choice`` other than none or auto is refused."""
        if self.tool_choice == "none":
            return None
        if self.tool_choice not in (None, "auto"):
            raise ApiError(
                f"tool_choice={self.tool_choice!r} needs constrained sampling; use auto or none",
                param="tool_choice",
            )
        return self.tools


class TokenizeBody(BaseModel):
    """``POST /tokenize`` with a text; with messages the body is a :class:`ChatBody`."""

    prompt: str
    add_special_tokens: bool = True


class DetokenizeBody(BaseModel):
    """``POST /detokenize``."""

    tokens: list[int]


class InitInfo(BaseModel):
    """Where the trainer's rank 0 waits, and this engine's first rank in the group."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


class UpdateInfo(BaseModel):
    """What the trainer is about to broadcast."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Raise :class:`ApiError` for a parameter the engine lacks, given at a meaningful value."""
    for name, meaningless in NEUTRAL.items():
        if name in body and body[name] not in meaningless:
            raise ApiError(f"{name}={body[name]!r} is not supported by the CPU engine", param=name)
