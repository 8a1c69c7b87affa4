"""Loading a model's tokenizer, once in each process."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

CONFIGS = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "tokenizer.json",
)
SPECIAL_TOKENS = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
PROBE = "Two  words – précisément:\n\tfoo_bar(1, 23456); 数字 🍎"  # noqa: RUF001


@functools.lru_cache(maxsize=8)
def load_tokenizer(path: str | Path) -> Any:
    """The Hugging Face tokenizer at ``path`` (a directory, or a hub name), cached.

    Code that ships with a model is not run. A tokenizer class that encodes otherwise than the
    checkpoint's own ``tokenizer.json`` is passed over for that file: some releases of transformers
    rebuild the pre-tokenizer of checkpoints that call themselves Llama.

    :raises FileNotFoundError: an absolute or relative path that holds no tokenizer.
    :raises ValueError: a file of the tokenizer does not hold what it should; names both.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = Path(path)
    looks_like_path = folder.is_absolute() or str(path).startswith(".")
    if looks_like_path and not any(folder.glob("tokenizer*")):
        raise FileNotFoundError(f"no tokenizer files (tokenizer.json, …) in {folder}")
    _check_files(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(path))
    file = folder / "tokenizer.json"
    if file.is_file() and _encode(tokenizer, PROBE) != _encode_with(file, PROBE):
        logger.warning(
            "%s of %s encodes otherwise than its tokenizer.json, which is used instead",
            type(tokenizer).__name__,
            path,
        )
        return PreTrainedTokenizerFast.from_pretrained(str(path))
    return tokenizer


def _check_files(folder: Path) -> None:
    """Say what is wrong with a tokenizer's files, which transformers' errors do not."""
    for name in CONFIGS:
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{file} must hold a JSON object, not {str(found)[:80]}")
        for key, value in found.items():
            if key in SPECIAL_TOKENS and not isinstance(value, str | dict | None):
                raise ValueError(f"{file}: {key} must be the text of a token, not {value!r}")


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encode_with(file: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

    return list(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)
