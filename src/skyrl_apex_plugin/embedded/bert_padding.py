"""Lends SkyRL's model wrapper the two flash_attn functions that it imports unconditionally.

``skyrl...workers.model_wrapper`` starts with ``from flash_attn.bert_padding import pad_input,
unpad_input``, even with ``trainer.flash_attn=false`` (0.3.0 and 0.4.0). flash_attn is a CUDA
source build of half an hour; the same two functions live in transformers. :func:`lend` makes
that one import succeed, on machines with and without a GPU, and leaves no ``flash_attn`` behind:
a visible one would make transformers and vllm believe that its kernels are there.

The standard library is all that this module imports, so it can be called in every process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

BORROWER = "skyrl.backends.skyrl_train.workers.model_wrapper"
"""The module whose import is served."""


def lend() -> None:
    """Serve the import in this process from now on. Does nothing where flash_attn is installed.

    Cheap and idempotent: it only puts a finder on ``sys.meta_path``.
    """
    if importlib.util.find_spec("flash_attn") is not None:
        return
    if not any(isinstance(finder, _BorrowerFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BorrowerFinder())


class _BorrowerFinder(MetaPathFinder):
    """Wraps the borrower's own loader; every other import is left to the finders behind it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != BORROWER:
            return None
        sys.meta_path.remove(self)  # find the real spec; the borrower is imported once
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _LendingLoader(spec.loader)
        return spec


class _LendingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _flash_attn_on_loan():
            self._loader.exec_module(module)


@contextmanager
def _flash_attn_on_loan() -> Iterator[None]:
    """``flash_attn.bert_padding`` is importable inside the block, and gone after it."""
    from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input
    from transformers.utils.import_utils import is_flash_attn_2_available

    # transformers caches this answer. Asked during the loan it would look for the metadata of
    # a distribution that does not exist, or say yes for the rest of the process.
    is_flash_attn_2_available()

    package = ModuleType("flash_attn")
    padding = ModuleType("flash_attn.bert_padding")
    padding.pad_input = _pad_input  # type: ignore[attr-defined]
    padding.unpad_input = _unpad_input  # type: ignore[attr-defined]
    package.bert_padding = padding  # type: ignore[attr-defined]
    lent = {"flash_attn": package, "flash_attn.bert_padding": padding}
    sys.modules.update(lent)
    try:
        yield
    finally:
        for name in lent:
            sys.modules.pop(name, None)
