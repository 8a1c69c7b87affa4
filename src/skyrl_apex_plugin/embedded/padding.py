"""Columns that are padding in every row of a micro-batch are not computed.

SkyRL lays all rows of a training batch out to the longest one, padded on the left, and removes the
padding by flash attention, which has no CPU kernels. One long trajectory would make every
micro-batch as long as itself; here a micro-batch is as long as its own longest row.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.nn.functional import pad


def drop_common_padding(module: Any) -> None:
    """Make SkyRL's policy wrapper skip the leading columns that ``attention_mask`` leaves out.

    :param module: SkyRL's ``model_wrapper`` module. Its ``HFModelWrapper.forward`` is replaced in
        this process: sequences and mask of shape ``[B, L]`` lose their common padding, and the
        logprobs ``[B, num_actions]`` and entropies ``[B, L]`` are filled up on the left with zeros,
        where the loss mask is zero.
    """
    forward = module.HFModelWrapper.forward

    @wraps(forward)
    def trimmed(
        self: Any,
        sequences: torch.Tensor,
        num_actions: int,
        attention_mask: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        masked = int((attention_mask.sum(0) == 0).long().cumprod(0).sum())
        unused = min(masked, sequences.shape[1] - 2)  # a logprob needs a token before it
        inner = min(num_actions, sequences.shape[1] - unused - 1)
        result = forward(
            self, sequences[:, unused:], inner, attention_mask[:, unused:], *args, **kwargs
        )
        if not isinstance(result, tuple):
            return pad(result, (num_actions - inner, 0))
        logprobs, output = result
        if "entropy" in output:
            output["entropy"] = pad(output["entropy"], (unused, 0))
        return pad(logprobs, (num_actions - inner, 0)), output

    module.HFModelWrapper.forward = trimmed
