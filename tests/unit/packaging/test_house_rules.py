"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(p for root in ("src", "hookspecs", "plugins") for p in (ROOT / root).rglob("*.py"))
LONGEST_FUNCTION = 60
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}


def packages() -> set[str]:
    return {
        path.parent.name
        for root in ("src", "hookspecs", "plugins")
        for path in (ROOT / root).glob("*/__init__.py")
    }


def test_the_import_linter_watches_every_package():
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == packages()


def test_every_package_is_typed():
    untyped = [name for name in packages() if not any(ROOT.glob(f"*/{name}/py.typed"))]
    assert untyped == []


def test_no_module_has_a_vague_name():
    assert [path for path in SOURCES if path.stem in VAGUE or path.parent.name in VAGUE] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_finished_and_its_functions_fit_a_screen(path):
    text = path.read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b", text)
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert long == []


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", page.read_text()):
            if not (page.parent / link).exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_commands_in_the_documentation_exist():
    from skyrl_apex_plugin.cli.main import COMMANDS

    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        (page.name, command)
        for page in pages
        for command in re.findall(r"skyrl-apex ([a-z]+)", page.read_text())
    }
    assert {pair for pair in named if pair[1] not in COMMANDS} == set()
