"""Turning logits into tokens, with the logprobs that a trainer can reproduce.

``processed_logprobs`` (the default) are those of the distribution that was sampled from: logits
divided by the temperature, as SkyRL's trainer divides them, and renormalized after top-k, top-p
and min-p. ``raw_logprobs`` are those of the model at temperature 1. The two names are vllm's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

LogprobsMode = Literal["processed_logprobs", "raw_logprobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How one completion is sampled. Temperature 0 is greedy."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    """How many alternatives are reported for each position."""
    prompt_logprobs: int | None = None
    """When not ``None``, prompt tokens are scored, with so many alternatives each."""

    @property
    def restricted(self) -> bool:
        """Whether some tokens are cut off before sampling."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled position: the token, its logprob, and the alternatives asked for."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits to sample from."""

    decoding: Decoding
    rng: random.Random
    """The request's own generator: its tokens do not depend on who shares the batch."""
    forbidden: tuple[int, ...] = ()
    """Token IDs that may not be sampled here (stop tokens below ``min_tokens``)."""


def choose(logits: torch.Tensor, rows: Sequence[Row], mode: LogprobsMode) -> list[Choice]:
    """Sample one token for each row of ``logits`` (``[rows, vocab_size]``, fp32)."""
    greedy = torch.tensor([row.decoding.temperature == 0.0 for row in rows])
    temperatures = torch.tensor([row.decoding.temperature or 1.0 for row in rows])
    scaled = logits / temperatures.unsqueeze(1)
    for index, row in enumerate(rows):
        if row.forbidden:
            scaled[index, list(row.forbidden)] = -torch.inf
        if row.decoding.restricted:
            scaled[index] = _restrict(scaled[index], row.decoding)
    processed = scaled.log_softmax(dim=-1)
    # Sampling by inverting the distribution function takes one number for each row.
    cumulative = processed.double().exp().cumsum(dim=-1)
    uniform = torch.tensor([[row.rng.random()] for row in rows], dtype=torch.float64)
    sampled = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    sampled = sampled.squeeze(1).clamp_(max=logits.shape[1] - 1)
    tokens = torch.where(greedy, processed.argmax(dim=-1), sampled)
    reported = processed if mode == "processed_logprobs" else logits.log_softmax(dim=-1)
    logprobs = reported.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return [
        Choice(token, logprob, top_tokens(reported[index], row.decoding.top_logprobs))
        for index, (token, logprob, row) in enumerate(
            zip(tokens.tolist(), logprobs.tolist(), rows, strict=True)
        )
    ]


def score_prompt(logits: torch.Tensor, next_ids: Sequence[int], alternatives: int) -> list[Choice]:
    """Raw logprobs of given tokens: ``logits[i]`` predicts ``next_ids[i]``."""
    logprobs = logits.log_softmax(dim=-1)
    given = logprobs.gather(1, torch.tensor(next_ids).unsqueeze(1)).squeeze(1).tolist()
    return [
        Choice(token, logprob, top_tokens(logprobs[index], alternatives))
        for index, (token, logprob) in enumerate(zip(next_ids, given, strict=True))
    ]


def top_tokens(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` most likely tokens of one row, best first."""
    if count == 0:
        return ()
    best = logprobs.topk(min(count, logprobs.shape[-1]))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _restrict(scaled: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Cut one row to its top-k, min-p and top-p tokens, in this order (as vllm does)."""
    if 0 < decoding.top_k < scaled.shape[0]:
        scaled = scaled.masked_fill(scaled < scaled.topk(decoding.top_k).values[-1], -torch.inf)
    if decoding.min_p > 0.0:
        probs = scaled.softmax(dim=-1)
        scaled = scaled.masked_fill(probs < decoding.min_p * probs.max(), -torch.inf)
    if decoding.top_p < 1.0:
        probs, order = scaled.softmax(dim=-1).sort(descending=True)
        beyond = probs.cumsum(dim=-1) - probs >= decoding.top_p  # the best token always stays
        scaled = scaled.index_fill(0, order[beyond], -torch.inf)
    return scaled
