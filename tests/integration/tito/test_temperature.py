"""The temperature rule against the CPU engine: only processed logprobs are what the trainer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_hookspecs import SamplingParams
from skyrl_apex_plugin.agent.sampling import CompletionsSampler
from skyrl_apex_plugin.tito.logprob_gate import GateReport, LogprobMismatch, compare_logprobs

torch = pytest.importorskip("torch")
TEMPERATURE = 0.5


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random Qwen3 of two layers with a byte-level tokenizer, saved and in memory."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("policy")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "vocab_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    # Large initial weights: logits far enough apart for a temperature to matter.
    config = Qwen3Config(**sizes, **heads, initializer_range=0.2, max_position_embeddings=256)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return folder, model


async def sample_and_compare(folder: Path, model: Any, logprobs_mode: str) -> GateReport:
    """Three turns with observations, against logits divided by the temperature."""
    from skyrl_apex_plugin.embedded.launch import EngineOptions, start_engine

    engine = start_engine(folder, EngineOptions(logprobs_mode=logprobs_mode))
    sampler = CompletionsSampler(engine.url)
    try:
        ids, stored, mask = [5, 6, 7], [0.0] * 3, [0] * 3
        params = SamplingParams(max_tokens=20, temperature=TEMPERATURE)
        for _ in range(3):
            sample = await sampler.sample(ids, params, session_id="s")
            ids += [*sample.token_ids, 8, 9]
            stored += [*sample.logprobs, 0.0, 0.0]
            mask += [1] * len(sample.token_ids) + [0, 0]
    finally:
        await sampler.aclose()
        engine.stop()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float() / TEMPERATURE
    chosen = torch.tensor(ids[1:])[:, None]
    recomputed = torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0]
    return compare_logprobs(stored[1:], recomputed, mask[1:])


async def test_processed_logprobs_are_the_trainers(policy: tuple[Path, Any]) -> None:
    report = await sample_and_compare(*policy, "processed_logprobs")
    assert report.tokens == 60
    assert report.mean < 1e-4
    report.require(mean_limit=0.05)


async def test_raw_logprobs_are_stopped_by_the_gate(policy: tuple[Path, Any]) -> None:
    report = await sample_and_compare(*policy, "raw_logprobs")
    with pytest.raises(LogprobMismatch, match="turn 0 of row 0"):
        report.require(mean_limit=0.05)
