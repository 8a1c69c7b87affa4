"""What more than one area of the tests needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# The same examples in every run, and no limit that a busy machine can break; `make test-full` looks
# for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("repeatable")
# A shell starts its background jobs with interrupts ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Python:
    """An interpreter whose environment has this project installed, plus extra import folders."""

    executable: Path
    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str | Path,
        timeout: float = 120,
        cwd: Path | None = None,
        check: bool = True,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter; a failed run shows its output."""
        folders = os.pathsep.join(map(str, self.folders))
        environment = {**os.environ, "PYTHONPATH": folders, **self.variables, **variables}
        command = [str(self.executable), *map(str, arguments)]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment
        )
        if check and result.returncode != 0:
            output = result.stdout + result.stderr
            pytest.fail(f"{command} ended with {result.returncode}:\n{output}")
        return result

    def script(self, name: str) -> Path:
        """A console script beside the interpreter."""
        return self.executable.with_name(name)


def install(distribution: Path, target: Path) -> Path:
    """Really install a distribution (metadata and all) into the folder ``target``."""
    options: Sequence[str] = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", target, distribution]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return target


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which the unrelated distribution ``acme-office`` is installed."""
    return install(
        ROOT / "tests/third_party/acme_office", tmp_path_factory.mktemp("third") / "site"
    )


@pytest.fixture(scope="session")
def python() -> Python:
    """This interpreter: harbor 0.21.0 and SkyRL."""
    return Python(Path(sys.executable))


def interpreter_named_by(variable: str, built_by: str) -> Python:
    """The interpreter of another environment; its tests are skipped where there is none."""
    named = os.environ.get(variable, "")
    if not named or not Path(named).exists():
        pytest.skip(f"{variable} names no interpreter; {built_by} builds one")
    return Python(Path(named))


@pytest.fixture(scope="session")
def python26() -> Python:
    """The interpreter of the environment with harbor 0.26."""
    return interpreter_named_by("APEX_HARBOR26_PYTHON", "`make setup`")


@pytest.fixture(scope="session")
def python_skyrl04() -> Python:
    """The interpreter of the environment with SkyRL 0.4.0 and harbor 0.26.0."""
    return interpreter_named_by("APEX_SKYRL04_PYTHON", "scripts/setup.sh skyrl04")


@pytest.fixture(scope="session")
def qwen3_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a checkpoint with random weights, as ``qwen3_checkpoint(hidden_size=..., ...)``.

    The tokenizer is byte level with the special tokens of Qwen3's chat format.
    """
    return lambda **shape: random_qwen3(tmp_path_factory.mktemp("qwen3"), **shape)


def random_qwen3(directory: Path, **shape: Any) -> Path:
    """Save a random Qwen3 and a byte-level tokenizer into ``directory``; returns it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    small = {
        "vocab_size": len(fast),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "eos_token_id": fast.eos_token_id,
        "pad_token_id": fast.pad_token_id,
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**{**small, **shape})).float().save_pretrained(directory)
    return directory


CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


CHECK = """#!/bin/sh
if [ "$(cat /logs/agent/answer.txt)" = 42 ]; then reward=1; else reward=0; fi
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
"""


@pytest.fixture
def task_directory(tmp_path: Path) -> Path:
    """A harbor task that any agent solves by writing 42."""
    task = tmp_path / "say-42"
    for folder in ("environment", "tests"):
        (task / folder).mkdir(parents=True)
    (task / "instruction.md").write_text("Say 42.")
    (task / "task.toml").write_text('version = "1.0"\n[agent]\ntimeout_sec = 60\n')
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    (task / "tests/test.sh").write_text(CHECK)
    (task / "tests/test.sh").chmod(0o755)
    return task
