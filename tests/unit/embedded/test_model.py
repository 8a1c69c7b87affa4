"""The hand-written forward pass against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from skyrl_apex_plugin.embedded.model import Qwen3, Segment, Shape, UnsupportedModel

SHAPES = {
    "grouped heads, tied": {},
    "one head group, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "one key head, long rope": {
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_those_of_transformers(
    qwen3_checkpoint: Callable[..., Path], shape: dict[str, object]
) -> None:
    directory = qwen3_checkpoint(**shape)
    reference = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model = Qwen3.from_pretrained(directory, slots=2, max_len=128)
    ids = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]

    # Two sequences in one step, then a chunk of one together with a single token of the other.
    first = model.forward(ids[:40] + ids[:70], [Segment(0, 0, 40), Segment(1, 0, 70)])
    second = model.forward(ids[40:90] + ids[70:71], [Segment(0, 40, 50), Segment(1, 70, 1)])

    torch.testing.assert_close(model.logits(first[:40]), expected[:40], atol=1e-4, rtol=0)
    torch.testing.assert_close(model.logits(first[40:]), expected[:70], atol=1e-4, rtol=0)
    torch.testing.assert_close(model.logits(second[:50]), expected[40:90], atol=1e-4, rtol=0)
    torch.testing.assert_close(model.logits(second[50:]), expected[70:71], atol=1e-4, rtol=0)


def test_a_copied_slot_continues_like_the_original(checkpoint: Path) -> None:
    model = Qwen3.from_pretrained(checkpoint, slots=2, max_len=64)
    ids = list(range(20))
    model.forward(ids, [Segment(0, 0, 20)])
    model.copy_slot(0, 1, 15)
    original = model.forward([7], [Segment(0, 15, 1)])
    copied = model.forward([7], [Segment(1, 15, 1)])
    torch.testing.assert_close(copied, original)


def test_weights_that_do_not_fit_are_named_and_change_nothing(checkpoint: Path) -> None:
    model = Qwen3.from_pretrained(checkpoint, slots=1, max_len=64)
    before = model.forward([1, 2, 3], [Segment(0, 0, 3)])
    weights = dict(Qwen3ForCausalLM.from_pretrained(checkpoint).state_dict())
    doubled = {name: tensor * 2 for name, tensor in weights.items()}

    lacking = {name: t for name, t in doubled.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"missing \['model.norm.weight'\]"):
        model.load(lacking)
    with pytest.raises(ValueError, match=r"unknown \['model.extra.weight'\]"):
        model.load(doubled | {"model.extra.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"model.norm.weight has shape \(3,\), expected \(64,\)"):
        model.load(doubled | {"model.norm.weight": torch.zeros(3)})

    torch.testing.assert_close(model.forward([1, 2, 3], [Segment(0, 0, 3)]), before)


def test_a_tied_model_takes_one_matrix_and_refuses_two(checkpoint: Path) -> None:
    model = Qwen3.from_pretrained(checkpoint, slots=1, max_len=64)
    weights = dict(Qwen3ForCausalLM.from_pretrained(checkpoint).state_dict())
    assert "lm_head.weight" in weights
    model.load(weights)
    untied = weights | {"lm_head.weight": weights["lm_head.weight"] + 1e-3}
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        model.load(untied)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e6}),
    ],
)
def test_another_architecture_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, field: str, value: object
) -> None:
    config = json.loads((checkpoint / "config.json").read_text()) | {field: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = "rope_type" if field == "rope_parameters" else field
    with pytest.raises(UnsupportedModel, match=name):
        Shape.read(tmp_path)
