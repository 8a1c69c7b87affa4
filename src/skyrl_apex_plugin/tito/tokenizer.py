"""Loading a model's tokenizer, once in each process."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PROBE = "Two  words – précisément:\n\tfoo_bar(1, 23456); 数字 🍎"  # noqa: RUF001


@functools.lru_cache(maxsize=8)
def load_tokenizer(path: str | Path) -> Any:
    """The Hugging Face tokenizer at ``path`` (a directory, or a hub name), cached.

    Code that ships with a model is not run. A tokenizer class that encodes otherwise than the
    checkpoint's own ``tokenizer.json`` is passed over for that file: some releases of transformers
    rebuild the pre-tokenizer of checkpoints that call themselves Llama.

    :raises FileNotFoundError: an absolute or relative path that holds no tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = Path(path)
    looks_like_path = folder.is_absolute() or str(path).startswith(".")
    if looks_like_path and not any(folder.glob("tokenizer*")):
        raise FileNotFoundError(f"no tokenizer files (tokenizer.json, …) in {folder}")
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


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encode_with(file: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

    return list(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)
