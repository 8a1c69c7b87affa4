"""Two meta-tests: every hook is documented with its exact signature, every hook has a test."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from skyrl_apex_hookspecs import specs

ROOT = Path(__file__).parents[3]
HOOKS = sorted(
    name for name, value in vars(specs).items() if hasattr(value, f"{specs.PROJECT}_spec")
)


def signature_of(name: str) -> str:
    """``name(argument: Type, …) -> Type`` as the source has it, on one line."""
    tree = ast.parse(inspect.getsource(specs))
    (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return f"{name}({ast.unparse(function.args)}) -> {ast.unparse(function.returns)}"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_exact_signature(hook):
    page = (ROOT / "docs/hooks.md").read_text()
    headings = re.findall(r"^### `(.+)`$", page, flags=re.MULTILINE)
    assert signature_of(hook) in headings, f"docs/hooks.md needs: ### `{signature_of(hook)}`"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_documented_hook_has_an_example(hook):
    page = (ROOT / "docs/hooks.md").read_text()
    section = page.partition(f"### `{hook}(")[2].partition("\n### ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert any(f"def {hook}(" in example for example in examples)
    for example in examples:
        compile(example, "docs/hooks.md", "exec")


def test_no_hook_is_documented_that_does_not_exist():
    page = (ROOT / "docs/hooks.md").read_text()
    documented = re.findall(r"^### `(\w+)\(", page, flags=re.MULTILINE)
    assert sorted(documented) == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook):
    """Some test implements the hook in a plugin and calls it: its source names it."""
    naming = [
        f"{path.name}::{function.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.name.startswith("test_")
        and hook in ast.unparse(function)
    ]
    assert naming, f"no test under tests/ implements or calls {hook}"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_argument_of_a_hook_is_explained(hook):
    function = getattr(specs, hook)
    for argument in inspect.signature(function).parameters:
        assert f":param {argument}:" in function.__doc__, f"{hook}: {argument}"
