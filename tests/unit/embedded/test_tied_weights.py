"""SkyRL's FSDP set-up must not make two matrices of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def is_tied(model: Any) -> bool:
    return model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_on_the_meta_device_is_tied_again_before_it_is_sharded(
    qwen3_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl_apex_plugin.embedded import bert_padding

    bert_padding.lend()
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy
    from transformers import AutoModelForCausalLM

    from skyrl_apex_plugin.embedded.tied_weights import keep_tied_weights

    seen: list[bool] = []
    monkeypatch.setattr(fsdp_strategy, "apply_fsdp2", lambda model, *_: seen.append(is_tied(model)))
    model = AutoModelForCausalLM.from_pretrained(qwen3_checkpoint(tie_word_embeddings=True))
    assert is_tied(model)
    model = model.to("meta")
    assert not is_tied(model), "the move no longer unties: keep_tied_weights can go"
    keep_tied_weights()
    fsdp_strategy.apply_fsdp2(model, {}, None)
    assert seen == [True]
