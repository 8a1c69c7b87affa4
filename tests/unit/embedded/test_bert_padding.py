"""The loan of flash_attn's two functions, each case in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BORROWER = "skyrl.backends.skyrl_train.workers.model_wrapper"


def test_the_real_borrower_imports_and_flash_attn_stays_invisible(python: Any) -> None:
    python.run(
        "-c",
        f"""
import importlib.util, sys
from skyrl_apex_plugin.embedded import bert_padding
bert_padding.lend()
bert_padding.lend()
import {BORROWER} as borrower
from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input
assert borrower.pad_input is _pad_input and borrower.unpad_input is _unpad_input
assert importlib.util.find_spec("flash_attn") is None
assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]
from transformers.utils.import_utils import is_flash_attn_2_available
assert not is_flash_attn_2_available()
try:
    import flash_attn
except ImportError:
    pass
else:
    raise AssertionError("flash_attn is importable")
""",
    )


def test_lending_imports_nothing_heavy(python: Any) -> None:
    python.run(
        "-c",
        """
import sys
from skyrl_apex_plugin.embedded import bert_padding
bert_padding.lend()
assert not {"torch", "transformers", "ray", "skyrl"} & sys.modules.keys()
""",
    )


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A small package in place of skyrl whose borrower does what the real one does."""
    module = tmp_path.joinpath(*BORROWER.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    for package in module.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    module.write_text("from flash_attn.bert_padding import pad_input\n")
    return tmp_path


def test_an_installed_flash_attn_is_used_as_it_is(stand_ins: Path, python: Any) -> None:
    package = stand_ins / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bert_padding.py").write_text("pad_input = 'the real one'\n")
    python.run(
        "-c",
        f"""
import sys; sys.path.insert(0, {str(stand_ins)!r})
from skyrl_apex_plugin.embedded import bert_padding
bert_padding.lend()
import {BORROWER} as borrower, flash_attn
assert borrower.pad_input == "the real one"
""",
    )


def test_a_borrower_that_fails_leaves_nothing_behind_and_can_be_tried_again(
    stand_ins: Path, python: Any
) -> None:
    module = stand_ins.joinpath(*BORROWER.split(".")).with_suffix(".py")
    module.write_text("from flash_attn.bert_padding import pad_input\nimport not_there\n")
    python.run(
        "-c",
        f"""
import importlib, sys; sys.path.insert(0, {str(stand_ins)!r}); sys.dont_write_bytecode = True
from skyrl_apex_plugin.embedded import bert_padding
bert_padding.lend()
for attempt in range(2):
    try:
        importlib.import_module({BORROWER!r})
    except ModuleNotFoundError as error:
        assert error.name == "not_there", error
    else:
        raise AssertionError("imported")
    assert "flash_attn" not in sys.modules
""",
    )
