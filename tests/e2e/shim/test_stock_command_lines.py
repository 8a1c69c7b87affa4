"""Whole stock runs with a generator of another package: no engine and no GPU needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A tokenizer of bytes: all that this run needs of a model."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>"]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def skyrl(python, third_party, tokenizer_folder, tmp_path):
    """Run a stock SkyRL entry point with the third party's distribution installed."""

    def run(entry_point: str, *overrides: str):
        settings = [
            f"trainer.policy.model.path={tokenizer_folder}",
            "trainer.placement.colocate_all=false",
            "trainer.logger=console",
            "data.dataloader.num_workers=0",
            "generator.inference_engine.enable_ray_prometheus_stats=false",
            *(f"trainer.{kind}_path={tmp_path / kind}" for kind in ("export", "ckpt", "log")),
        ]
        module = f"skyrl.train.entrypoints.{entry_point}"
        return python.run(
            *("-m", module, *overrides, *settings),
            timeout=500,
            cwd=tmp_path,
            PYTHONPATH=str(third_party),
            HF_HUB_OFFLINE="1",
        )

    return run


def test_main_generate_evaluates_another_packages_generator(skyrl):
    result = skyrl("main_generate", "generator=acme_echo", "acme.word=hello")
    assert "'eval/all/generate/max_num_tokens': 5" in result.stdout + result.stderr


def test_main_base_runs_another_packages_generator_and_experiment(skyrl, tmp_path):
    skyrl("main_base", "generator=acme_echo", "acme.word=hello", "generator.n_samples_per_prompt=1")
    assert (tmp_path / "export/trained.txt").read_text() == "hello 2"
