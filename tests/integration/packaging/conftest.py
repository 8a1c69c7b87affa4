"""Fresh environments with this project installed in each of the ways users install it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def fresh_environment(folder: Path) -> Path:
    """A new virtual environment that sees this one's packages, but no ``.pth`` of theirs: the
    project itself is not installed in it, its dependencies are."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "zz_parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def pip(python: Path, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr


OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session", params=["wheel", "editable"])
def installed(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a fresh environment with the project installed as a wheel, or editable."""
    python = fresh_environment(tmp_path_factory.mktemp(request.param) / "venv")
    if request.param == "wheel":
        pip(python, "install", *OFFLINE, request.getfixturevalue("wheel"))
    else:
        pip(python, "install", *OFFLINE, "--editable", ROOT)
    return python
