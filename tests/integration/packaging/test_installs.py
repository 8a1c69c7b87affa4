"""A wheel install and an editable one give the same: shim, commands, types, names."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOTS = ("src", "hookspecs", "plugins")
PACKAGES = {path.parent.name for root in ROOTS for path in (ROOT / root).glob("*/__init__.py")}


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, cwd=python.parent, timeout=120
    )


def test_the_shim_is_active_after_installation(installed):
    code = "import skyrl_apex_shim as shim; print(shim.active(), shim.__file__)"
    active, file = run(installed, "-c", code).stdout.split()
    assert active == "True"
    inside = Path(file).is_relative_to(installed.parents[1])
    assert inside or Path(file).is_relative_to(ROOT / "src"), file


def test_the_command_works_and_finds_all_plugins(installed):
    result = run(installed, installed.with_name("skyrl-apex"), "plugins", "list", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert {"core", "local", "rubric"} <= {plugin["name"] for plugin in found["plugins"]}
    assert found["problems"] == []


def test_harbor_learns_the_names(installed):
    code = "from harbor.models.agent.name import AgentName; print(AgentName('archipelago').value)"
    assert run(installed, "-c", code).stdout.strip() == "archipelago"


PROBE = """
from skyrl_apex_hookspecs import RewardTerm, Trajectory, hookimpl
from skyrl_apex_plugin.discovery.hooks import combine_reward
import skyrl_apex_local, skyrl_apex_miniworld

@hookimpl
def apex_reward_terms(trajectory: Trajectory) -> RewardTerm:
    return RewardTerm(name="x", value=len(trajectory.turns))

reveal_type(combine_reward)
RewardTerm(name=3, value="much")
"""


def test_a_type_checker_sees_the_packages(installed, tmp_path):
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed)]
    command += ["--config-file=", "--cache-dir", str(tmp_path / "cache"), str(probe)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "Sequence[skyrl_apex_hookspecs.types.RewardTerm]) -> float" in said
    assert "[import-untyped]" not in said and "[import-not-found]" not in said
    assert said.count("[arg-type]") == 2, said


def test_every_package_of_the_wheel_is_typed_and_the_start_files_are_at_its_root(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names)), "a file is packed twice"
    assert {"skyrl_apex_shim.py", "skyrl_apex_shim.pth", "skyrl_apex_shim.start"} <= set(names)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    top = {name.partition("/")[0] for name in names if "dist-info" not in name}
    assert top == {*PACKAGES, *(f"skyrl_apex_shim.{s}" for s in ("py", "pth", "start"))}


def test_the_wheel_holds_every_file_of_the_source_folders(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src", "hookspecs", "plugins"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert tracked, "not a git checkout"
    missing = {path.partition("/")[2] for path in tracked if (ROOT / path).exists()} - names
    assert missing == set()


def test_uninstalling_leaves_nothing_that_a_python_start_trips_over(wheel, tmp_path):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("packaging_conftest", Path(__file__).with_name("conftest.py"))
    helpers = module_from_spec(spec)
    spec.loader.exec_module(helpers)
    python = helpers.fresh_environment(tmp_path / "venv")
    helpers.pip(python, "install", *helpers.OFFLINE, wheel)
    helpers.pip(python, "uninstall", "--yes", "skyrl-apex-plugin")
    result = run(python, "-c", "import sys; print('skyrl_apex_shim' in sys.modules)")
    assert (result.stdout.strip(), result.stderr) == ("False", "")


@pytest.mark.full
def test_python_3_13_installs_and_runs(wheel, tmp_path):
    """The whole of it, dependencies included, on the other supported Python."""
    import os
    import shutil

    candidates = [*Path.home().glob(".pyenv/versions/3.13*/bin/python3.13")]
    found = next((str(path) for path in candidates), shutil.which("python3.13"))
    if found is None:
        pytest.skip("no Python 3.13 on this machine")
    venv = tmp_path / "venv"
    subprocess.run([found, "-m", "venv", "--without-pip", venv], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", venv / "bin/python"]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    subprocess.run([*uv, wheel], check=True, env=environment, timeout=280)
    python = venv / "bin/python"
    assert run(python, venv / "bin/skyrl-apex", "plugins", "list").returncode == 0
    code = (
        "from harbor.models.environment_type import EnvironmentType as E\n"
        "from harbor.environments.factory import _ENVIRONMENT_REGISTRY as table\n"
        "assert 'archipelago-local' in E and E('archipelago-local') in table; print('fine')"
    )
    assert run(python, "-c", code).stdout.strip() == "fine"
