"""``--dry-run`` of every bundled preset, as a user types it: all that needs no GPU is checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.training.preset import load_preset, preset_names, sample_places

KEYS = ("WANDB_API_KEY", "GOOGLE_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
PASSED = ["versions", "config", "data", "keys", "sandbox"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sample world and model: where the tasks and the checkpoint of a team would be."""
    return sample_places(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def dry_run(places: dict[str, str], tmp_path: Path, python: Any) -> Any:
    def run(name: str, *extra: str | Path) -> Any:
        command = ("-m", "skyrl_apex_plugin.cli.main", load_preset(name).purpose, "--preset", name)
        where = ("--tasks", places["tasks"], "--model", places["model"], "--dry-run")
        return python.run(*command, *where, *extra, cwd=tmp_path, check=False)

    return run


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_passes_with_its_keys_in_a_file(
    dry_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    keys = tmp_path / "keys.env"
    keys.write_text("".join(f"{key}=not-a-key\n" for key in KEYS))
    done = dry_run(name, "--env-file", keys)
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert (done.returncode, passed) == (0, PASSED), done.stdout + done.stderr
    assert "not-a-key" not in done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["keys.env"]


def test_what_is_missing_is_named_and_nothing_passes_for_it(
    dry_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    done = dry_run("eval")
    assert done.returncode == 1
    assert "GOOGLE_API_KEY  needed by skyrl_apex_rubric.grader:RubricGrader" in done.stdout
