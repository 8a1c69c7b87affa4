"""``make setup`` on machines that are not tidy: broken shims, no uv, not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "scripts/setup.sh"


class Machine:
    """A machine of our own making: its PATH holds basic tools and what a test adds."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        self.bin.mkdir()
        for tool in ("sh", "dirname", "env", "id", "ls", "rm", "touch"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.environment = {"PATH": str(self.bin), "HOME": str(home)}

    def command(self, name: str, body: str) -> None:
        """Put a command on the PATH, in place of a tool of that name."""
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, part: str) -> subprocess.CompletedProcess[str]:
        """Run one part of the script."""
        command = ["/bin/sh", SETUP, part]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def real_pyenv(home: Path, version: str = "3.12.1") -> None:
    folder = home / ".pyenv/versions" / version / "bin"
    folder.mkdir(parents=True)
    name = ".".join(version.split(".")[:2])
    (folder / f"python{name}").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / f"python{name}").chmod(0o755)


HERE = os.path.realpath(sys.executable)


def test_a_shim_that_does_not_run_is_passed_over_for_pyenvs_real_interpreter(machine):
    machine.command("python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    real_pyenv(machine.home)
    assert machine.run("python").stdout.strip() == HERE


def test_pyenv_may_lie_elsewhere(machine, tmp_path):
    real_pyenv(tmp_path / "other")
    machine.environment["PYENV_ROOT"] = str(tmp_path / "other/.pyenv")
    assert machine.run("python").stdout.strip() == HERE


def test_an_interpreter_may_be_named(machine):
    machine.environment["PYTHON"] = sys.executable
    assert machine.run("python").stdout.strip() == HERE


def test_uv_finds_one_where_nothing_else_does(machine):
    machine.command("uv", f'[ "$1 $2" = "python find" ] && echo {sys.executable}')
    assert machine.run("python").stdout.strip() == sys.executable


def test_without_any_the_commands_that_bring_one_are_named(machine):
    machine.command("python3", "exit 1")
    result = machine.run("python")
    assert result.returncode == 1
    for command in ("uv python install 3.12", "pyenv install 3.12", "PYTHON=/path/to/python3.12"):
        assert command in result.stderr


def test_bubblewrap_that_is_there_is_left_alone(machine):
    machine.command("bwrap", "exit 0")
    machine.command("apt-get", "echo touched >&2; exit 1")
    result = machine.run("bubblewrap")
    assert (result.returncode, result.stderr) == (0, "")


def test_bubblewrap_is_installed_by_root(machine):
    machine.command("id", "echo 0")
    machine.command("apt-get", f'echo "$@" >> {machine.home}/calls')
    assert machine.run("bubblewrap").returncode == 0
    assert "install -y --no-install-recommends bubblewrap" in (machine.home / "calls").read_text()


def test_who_is_not_root_is_told_the_command(machine):
    machine.command("id", "echo 1000")
    machine.command("apt-get", "exit 1")
    result = machine.run("bubblewrap")
    assert result.returncode == 1
    assert "sudo apt-get install -y bubblewrap" in result.stderr


def test_a_missing_browser_is_no_obstacle(machine):
    machine.command("id", "echo 1000")
    result = machine.run("browser")
    assert result.returncode == 0
    assert "no chromium: the report's browser tests will be skipped" in result.stderr
