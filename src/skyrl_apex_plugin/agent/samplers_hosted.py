"""Samplers for hosted services: OpenAI-compatible ones that take token IDs, and Tinker."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from skyrl_apex_hookspecs import (
    ContextLengthExceeded,
    EngineError,
    Sample,
    SamplingParams,
    TokenError,
)

from .dialects import DIALECTS
from .retries import says_context_is_full
from .sampling import CompletionsSampler


class OpenAISampler(CompletionsSampler):
    """Token-ID completions from a hosted OpenAI-compatible service. Named ``openai``.

    Takes the arguments of :class:`CompletionsSampler` besides these:

    :param dialect: ``fireworks``, or ``vllm`` for services that run it unchanged.
    :param api_key_env: name of the environment variable that holds the key; the key itself is
        never an argument, so it reaches no record.
    :raises ValueError: an unknown dialect, or the variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        dialect: str = "fireworks",
        api_key_env: str = "OPENAI_API_KEY",
        headers: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {dialect!r}; known: {', '.join(DIALECTS)}")
        super().__init__(
            base_url,
            model,
            headers={**(headers or {}), "Authorization": f"Bearer {_key(api_key_env)}"},
            dialect=DIALECTS[dialect],
            **kwargs,
        )


class TinkerSampler:
    """Samples from a Tinker service through its own client. Named ``tinker``.

    The client repeats what may succeed later; its sessions need no finishing.

    :param base_model, model_path: exactly one of them: a model's name, or saved weights
        (``tinker://…``).
    :param base_url: the service, if it is not Tinker's own.
    :param api_key_env: name of the environment variable that holds the key.
    :raises ValueError: not exactly one model, or the variable is not set.
    :raises ImportError: the package ``tinker`` is not installed.
    """

    def __init__(
        self,
        *,
        base_model: str | None = None,
        model_path: str | None = None,
        base_url: str | None = None,
        api_key_env: str = "TINKER_API_KEY",
    ) -> None:
        if (base_model is None) == (model_path is None):
            raise ValueError(f"give one of base_model={base_model!r} and model_path={model_path!r}")
        try:
            import tinker  # type: ignore[import-not-found]
        except ImportError as error:
            raise ImportError("the sampler 'tinker' needs: pip install tinker==0.24.1") from error
        self._tinker: Any = tinker
        where = {} if base_url is None else {"base_url": base_url}
        self._service: Any = tinker.ServiceClient(api_key=_key(api_key_env), **where)
        self._model = {"base_model": base_model, "model_path": model_path}
        self._client: Any = None
        self._turns: dict[str, int] = {}

    async def sample(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, session_id: str
    ) -> Sample:
        """See :meth:`CompletionsSampler.sample`.

        :raises ContextLengthExceeded: the service says that the prompt or turn does not fit.
        :raises TokenError: logprobs are missing, or not as many as token IDs.
        :raises EngineError: any other fault, the client's own retries used up.
        """
        if params.min_p:
            raise EngineError(f"Tinker has no min_p, got {params.min_p}")
        turn = self._turns.setdefault(session_id, 0)
        try:
            if self._client is None:
                self._client = await self._service.create_sampling_client_async(**self._model)
            answer = await self._client.sample_async(
                prompt=self._tinker.types.ModelInput.from_ints(list(prompt_token_ids)),
                num_samples=1,
                sampling_params=self._params(params),
            )
        except self._tinker.TinkerError as error:
            kind = ContextLengthExceeded if says_context_is_full(str(error)) else EngineError
            raise kind(f"Tinker: {type(error).__name__}: {str(error)[:500]}") from error
        sequence = answer.sequences[0]
        ids, logprobs = list(sequence.tokens), sequence.logprobs
        if logprobs is None or len(logprobs) != len(ids) or not ids:
            found = "no" if logprobs is None else len(logprobs)
            raise TokenError(
                f"turn {turn} of session {session_id}: Tinker returned {len(ids)} token IDs and "
                f"{found} logprobs"
            )
        self._turns[session_id] = turn + 1
        return Sample(
            token_ids=array("i", ids),
            logprobs=array("f", logprobs),
            finish_reason=str(sequence.stop_reason),
        )

    def _params(self, params: SamplingParams) -> Any:
        return self._tinker.types.SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=params.seed,
            stop=list(params.stop_token_ids) or None,
        )

    async def finish(self, session_id: str) -> None:
        self._turns.pop(session_id, None)

    async def aclose(self) -> None:
        self._client = None


def _key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        raise ValueError(f"the environment variable {variable} is not set; it holds the API key")
    return key
