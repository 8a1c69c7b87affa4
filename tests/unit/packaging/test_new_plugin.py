"""``plugins new`` writes a package that can be installed and imported, or says why it cannot."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from skyrl_apex_plugin.cli.plugins import plugins


@pytest.mark.parametrize("name", ["class", "Import", "3d", "a b", "../up"])
def test_a_name_that_nothing_could_import_is_refused(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(plugins, ["new", "--into", str(tmp_path), "--", name])
    assert result.exit_code == 1 and "cannot name a package" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(plugins, ["new", "--into", str(tmp_path / "file" / "x"), "mine"])
    assert result.exit_code == 1 and result.stderr.startswith("Error: ")
    assert isinstance(result.exception, SystemExit)


def test_the_command_that_it_prints_brings_what_its_tests_need(tmp_path: Path) -> None:
    result = CliRunner().invoke(plugins, ["new", "--into", str(tmp_path), "my-judge"])
    folder = tmp_path / "my-judge"
    assert f"pip install --editable '{folder}[test]'" in result.stdout
    document = tomllib.loads((folder / "pyproject.toml").read_text())
    brought = {Requirement(r).name for r in document["project"]["optional-dependencies"]["test"]}
    assert {"pytest", "pytest-asyncio"} <= brought
    assert document["tool"]["pytest"]["ini_options"]["asyncio_mode"] == "auto"
