"""Tokens per second of the CPU engine, against transformers in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from skyrl_apex_plugin.embedded.decoding import Decoding
from skyrl_apex_plugin.embedded.model import Qwen3
from skyrl_apex_plugin.embedded.request import Request
from skyrl_apex_plugin.embedded.scheduler import Limits, Scheduler

pytestmark = pytest.mark.benchmark

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}
PROMPT, OUTPUT = 200, 64


@pytest.fixture(scope="module")
def checkpoint(qwen3_checkpoint: Callable[..., Path]) -> Path:
    torch.set_num_threads(1)
    return qwen3_checkpoint(**SHAPE)


def scheduler(checkpoint: Path, slots: int) -> Scheduler:
    model = Qwen3.from_pretrained(checkpoint, slots=slots, max_len=4096)
    return Scheduler(model, Limits(max_len=4096), decode_text=str)


def run(engine: Scheduler, prompts: list[list[int]], max_tokens: int) -> float:
    """Seconds until all prompts have ``max_tokens`` tokens."""
    decoding = Decoding(max_tokens=max_tokens, ignore_eos=True)
    for prompt in prompts:
        engine.submit(Request(prompt=prompt, decoding=decoding))
    started = time.perf_counter()
    while engine.busy:
        engine.step()
    return time.perf_counter() - started


def prompts(count: int, length: int = PROMPT) -> list[list[int]]:
    return [[(7 * n + 13 * row) % 2000 for n in range(length)] for row in range(count)]


def test_batches_decode_faster_than_single_requests_and_than_transformers(
    checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    rates = {}
    for batch in (1, 8, 32):
        seconds = run(scheduler(checkpoint, batch), prompts(batch), OUTPUT)
        rates[f"engine, batch {batch}"] = batch * OUTPUT / seconds
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor(prompts(32))
    started = time.perf_counter()
    model.generate(ids, max_new_tokens=OUTPUT, min_new_tokens=OUTPUT, do_sample=True)
    rates["transformers, batch 32"] = 32 * OUTPUT / (time.perf_counter() - started)
    for name, rate in rates.items():
        record_property(name, rate)
        print(f"{name}: {rate:.0f} tokens/s")
    assert rates["engine, batch 32"] > 2 * rates["engine, batch 1"]
    assert rates["engine, batch 32"] > rates["transformers, batch 32"]


def test_the_second_turn_of_a_long_session_costs_a_fraction_of_the_first(
    checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    engine = scheduler(checkpoint, slots=2)
    history = prompts(1, length=3000)[0]
    first = run(engine, [history], 1)
    second = run(engine, [[*history, *range(50)]], 1)
    record_property("speed-up by prefix reuse", first / second)
    print(f"3000 tokens: {first:.3f} s; 50 more: {second:.3f} s")
    assert engine.counters.reused_tokens == len(history)
    assert second < first / 3
