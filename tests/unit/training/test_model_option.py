"""``--model``: a name of the Hub, or a path that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from skyrl_apex_plugin.cli.main import cli
from skyrl_apex_plugin.cli.train import _model


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize("given", ["/nowhere/policy", "./policy", "runs/one/export/policy"])
def test_a_path_that_does_not_exist_is_named_before_anything_starts(
    command: str, given: str
) -> None:
    result = CliRunner().invoke(cli, [command, "--preset", "smoke", "--model", given])
    assert result.exit_code == 1
    assert f"--model {given}: there is no such directory" in result.output


def test_names_stay_and_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/b/policy").mkdir(parents=True)
    assert _model("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert _model("a/b/policy") == str(tmp_path / "a/b/policy")
    assert _model(None) is None
