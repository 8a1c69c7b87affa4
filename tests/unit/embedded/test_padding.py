"""Dropping the padding that all rows share changes the cost, not the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def wrapper(qwen3_checkpoint: Callable[..., Path]) -> Any:
    from skyrl_apex_plugin.embedded import bert_padding

    bert_padding.lend()
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    return HFModelWrapper(str(qwen3_checkpoint()), bf16=False)


def batch(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, 60, (len(lengths), width), generator=generator)
    mask = torch.tensor([[int(i >= width - n) for i in range(width)] for n in lengths])
    return tokens, mask


@pytest.mark.parametrize(
    ("lengths", "actions"), [([9, 5], 6), ([9, 5], 20), ([24, 3], 20), ([2, 1], 23), ([1, 1], 4)]
)
def test_logprobs_entropies_and_gradients_stay(
    wrapper: Any, lengths: list[int], actions: int
) -> None:
    from skyrl_apex_plugin.embedded.padding import drop_common_padding

    tokens, mask = batch(lengths, width=24)
    module = SimpleNamespace(HFModelWrapper=type("Copy", (), {"forward": type(wrapper).forward}))
    drop_common_padding(module)
    widths: list[int] = []
    hook = wrapper.model.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    results = []
    for forward in (type(wrapper).forward, module.HFModelWrapper.forward):
        wrapper.zero_grad()
        logprobs, output = forward(
            wrapper, tokens, actions, mask, return_output=True, compute_entropy=True
        )
        assert logprobs.shape == (len(lengths), actions)
        assert output["entropy"].shape == tokens.shape
        trained = torch.tensor(  # what a model sampled: not the first token of its row
            [[int(i >= actions - n + 1) for i in range(actions)] for n in lengths]
        )
        (logprobs * trained).sum().backward()
        gradients = [p.grad.clone() for p in wrapper.parameters() if p.grad is not None]
        results.append((logprobs * trained, output["entropy"] * mask, gradients))
    hook.remove()
    assert widths == [24, max(2, *lengths)]
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)
