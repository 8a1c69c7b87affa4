"""Build a Qwen3 of about 0.6B parameters from a configuration and warm it up in the sample world.

``python warm_model.py TOKENIZER_DIR OUT [--seconds 60]``: random weights would babble until the
token cap; a minute of demonstrations makes a model that calls tools, so that its trials load the
engine, the sandboxes and the agent like real ones do. Needs a GPU.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from skyrl_apex_miniworld.tiny_model.demonstrations import Demonstration, demonstrations
from skyrl_apex_miniworld.tiny_model.dialect import Dialect
from skyrl_apex_miniworld.tiny_model.warm_up import WarmUp, warm_up


def is_short(demonstration: Demonstration) -> bool:
    return sum(len(turn.observation or "") for turn in demonstration.turns) <= 100


class OutOfTime(Exception):
    """Raised by the progress callback to end the warm-up."""


def qwen3_600m(vocabulary: int, eos: int, pad: int) -> Qwen3Config:
    """The shape of the public Qwen3-0.6B."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        eos_token_id=eos,
        pad_token_id=pad,
        bos_token_id=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    torch.manual_seed(0)
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(qwen3_600m(151936, eos, pad)).to(torch.bfloat16)
    # Of one form, so that a step is one pass: the time goes into launching kernels.
    alike = (each for each in demonstrations("gpu") if not each.system and is_short(each))
    started = time.monotonic()
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}, {time.monotonic() - started:.0f} s", flush=True)
        if time.monotonic() - started > args.seconds:
            raise OutOfTime

    settings = WarmUp(bare_steps=80, steps=400, batch=64, learning_rate=3e-4, warm_up_steps=30)
    try:
        warm_up(model, Dialect(tokenizer), alike, settings, report)
    except OutOfTime:
        print(f"stopped after {len(losses)} steps, loss {losses[-1]:.3f}", flush=True)
    model.to("cpu").save_pretrained(args.out)
    for file in args.tokenizer.iterdir():
        if file.suffix in (".json", ".jinja", ".txt"):
            shutil.copy(file, args.out)


if __name__ == "__main__":
    main()
