"""Weights that a model shares stay shared through SkyRL's FSDP set-up.

SkyRL 0.3.0 moves the model to the meta device before it shards, which makes two parameters of a
shared one. The output matrix and the embeddings would then be trained apart, while the engine and
the exported checkpoint have one of them: rollouts would come from another policy than the trained
one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def keep_tied_weights() -> None:
    """Tie them again just before the sharding, in this process."""
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy

    shard = fsdp_strategy.apply_fsdp2

    @wraps(shard)
    def tie_and_shard(module: Any, *args: Any, **kwargs: Any) -> None:
        module.tie_weights()
        shard(module, *args, **kwargs)

    fsdp_strategy.apply_fsdp2 = tie_and_shard
