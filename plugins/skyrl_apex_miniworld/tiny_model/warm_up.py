"""Supervised warm-up on demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any

from skyrl_apex_miniworld.tiny_model.demonstrations import Demonstration
from skyrl_apex_miniworld.tiny_model.dialect import CONTEXT, Dialect

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3ForCausalLM

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Settings of the warm-up; the defaults made the checkpoint that ships."""

    bare_steps: int = 800
    """Steps at first in which conversations begin at the user's message: what is learned there,
    above all to copy, needs no tool catalogue and costs half as much without it."""
    steps: int = 1600
    """All steps."""
    batch: int = 96
    group: int = 24
    """Most demonstrations in one pass; changes speed and rounding only (96 where the checkpoint was
    made, on a GPU)."""
    learning_rate: float = 1.5e-3
    warm_up_steps: int = 50
    weight_decay: float = 0.05
    seed: int = 0


def new_model(vocabulary: int, pad: int, eos: int, seed: int) -> Qwen3ForCausalLM:
    """A fresh Qwen3 of about 2M parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=64 * math.ceil(vocabulary / 64),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.02,
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=None,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def warm_up(
    model: Qwen3ForCausalLM,
    dialect: Dialect,
    demonstrations: Iterator[Demonstration],
    settings: WarmUp,
    report: Callable[[int, float], None],
) -> None:
    """Train ``model`` in place. ``report`` gets the step and the loss of every step."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings))
    model.train()
    for step in range(1, settings.steps + 1):
        batch = [next(demonstrations) for _ in range(settings.batch)]
        optimizer.zero_grad()
        losses = [
            _loss(model, dialect, group, bare=step <= settings.bare_steps)
            * (len(group) / len(batch))
            for group in _groups(batch, settings.group)
        ]
        loss = torch.stack(losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        report(step, loss.item())


def _rate(step: int, settings: WarmUp) -> float:
    """Linear rise, then a half cosine down to a twentieth."""
    if step < settings.warm_up_steps:
        return (step + 1) / settings.warm_up_steps
    done = (step - settings.warm_up_steps) / (settings.steps - settings.warm_up_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _groups(batch: list[Demonstration], most: int) -> Iterator[list[Demonstration]]:
    """Demonstrations of one system prompt and of similar length: padding is work too."""
    alike: dict[str, list[Demonstration]] = {}
    for each in sorted(batch, key=_length):
        alike.setdefault(each.system, []).append(each)
    for demonstrations in alike.values():
        yield from map(list, batched(demonstrations, most))


def _length(demonstration: Demonstration) -> int:
    """Characters after the system prompt, about in proportion to tokens."""
    said = sum(len(turn.text) + len(turn.observation or "") for turn in demonstration.turns)
    return len(demonstration.user) + said


def _loss(
    model: Qwen3ForCausalLM, dialect: Dialect, group: list[Demonstration], *, bare: bool
) -> torch.Tensor:
    """Cross entropy of what the model says, over demonstrations with one system prompt.

    They share everything up to the user's message. That part is run once and its keys and
    values serve the whole batch, gradients included: three times as fast as full sequences.
    """
    import torch

    encoded = [dialect.encode(each) for each in group]
    shared = _common_prefix(encoded)
    width = max(len(ids) for ids, _ in encoded) - shared
    ids = torch.full((len(group), width), dialect.padding)
    labels = torch.full((len(group), width), IGNORED)
    for row, (tokens, mask) in enumerate(encoded):
        length = len(tokens) - shared
        ids[row, :length] = torch.tensor(tokens[shared:])
        said = [token if flag else IGNORED for token, flag in zip(tokens, mask, strict=True)]
        labels[row, :length] = torch.tensor(said[shared:])
    cache: Any = None
    if not bare:
        prefix = torch.tensor([encoded[0][0][:shared]], device=model.device)
        cache = model(input_ids=prefix, use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(group))
    hidden = model.model(
        input_ids=ids.to(model.device), past_key_values=cache, use_cache=not bare
    ).last_hidden_state
    wanted = labels[:, 1:].to(model.device)
    logits = model.lm_head(hidden[:, :-1][wanted != IGNORED])
    return torch.nn.functional.cross_entropy(logits, wanted[wanted != IGNORED])


def _common_prefix(encoded: list[tuple[list[int], list[int]]]) -> int:
    """Number of leading tokens that all rows share, short of what the model says first."""
    first, mask = encoded[0]
    for index in range(mask.index(1) - 1):
        if any(tokens[index] != first[index] for tokens, _ in encoded):
            return index
    return mask.index(1) - 1
