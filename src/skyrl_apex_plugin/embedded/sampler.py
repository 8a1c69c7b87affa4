"""The sampler of an embedded run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skyrl_apex_plugin.agent.sampling import CompletionsSampler

LEAN = {"logprobs": 0, "return_tokens_as_token_ids": True}
"""No alternative tokens and no texts: the engine shares its cores with everything else."""


class EmbeddedSampler(CompletionsSampler):
    """Token-ID completions from the CPU engine that the run itself has started.

    Takes the arguments of :class:`CompletionsSampler`. Named ``embedded``, it also selects the
    CPU engine and the CPU workers of the trainer; ``apex.sampler.kwargs`` are then the options
    of the engine (:class:`~skyrl_apex_plugin.embedded.launch.EngineOptions`).
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        cache_salt: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        body = {**LEAN, **(extra_body or {})}
        super().__init__(base_url, model, cache_salt=cache_salt, extra_body=body, **kwargs)
