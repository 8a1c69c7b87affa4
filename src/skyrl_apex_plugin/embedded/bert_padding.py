"""Lends SkyRL's model wrapper the two flash_attn functions that it imports unconditionally.

``skyrl...workers.model_wrapper`` starts with ``from flash_attn.bert_padding import pad_input,
unpad_input``, even with ``trainer.flash_attn=false`` (0.3.0 and 0.4.0). flash_attn is a CUDA
source build of half an hour; the same two functions live in transformers. :func:`lend` makes
that one import statement succeed, on machines with and without a GPU. Nobody else ever sees a
``flash_attn``: transformers and vllm would believe that its kernels are there.

The standard library is all that this module imports, so it can be called in every process.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BORROWER = "skyrl.backends.skyrl_train.workers.model_wrapper"
"""The module whose import statement is served."""
LENT = "flash_attn.bert_padding"


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
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LendingLoader(spec.loader)
                return spec
        return None


class _LendingLoader(Loader):
    """Runs the borrower with an ``__import__`` of its own.

    Code looks up its builtins in the globals of its module, so the replacement reaches the
    statements of this one module and nothing that they import in turn.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import_or_lend}
        self._loader.exec_module(module)


def _import_or_lend(name: str, *args: Any, **kwargs: Any) -> ModuleType:
    if name != LENT:
        return builtins.__import__(name, *args, **kwargs)
    from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input

    padding = ModuleType(LENT)
    padding.pad_input = _pad_input  # type: ignore[attr-defined]
    padding.unpad_input = _unpad_input  # type: ignore[attr-defined]
    return padding
