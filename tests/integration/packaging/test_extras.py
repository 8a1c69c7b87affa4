"""Every extra resolves; the GPU-only ones without installing anything."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def resolve(*options: str | Path, python: str) -> list[str]:
    """``name==version`` lines that a GPU machine with this Python would get."""
    command = [sys.executable, "-m", "uv", "pip", "compile", ROOT / "pyproject.toml", *options]
    command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--quiet", "--no-header", "--no-annotate"]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_every_extra_resolves(extra):
    resolved = resolve("--extra", extra, python="3.12")
    if extra in ("train", "vllm", "megatron"):
        assert {"skyrl==0.3.0", "torch==2.11.0", "vllm-router==0.1.14"} <= set(resolved)
    if extra == "train-skyrl04":
        assert {"skyrl==0.4.0", "torch==2.13.0", "vllm-router==0.1.17"} <= set(resolved)


@pytest.mark.full
@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_every_extra_resolves_on_python_3_13(extra):
    assert resolve("--extra", extra, python="3.13")


@pytest.mark.parametrize(
    ("file", "cell"),
    [
        ("skyrl-0.3.0.txt", ["--extra", "train"]),
        ("skyrl-0.3.0-vllm.txt", ["--extra", "vllm"]),
        ("skyrl-0.4.0.txt", ["--extra", "train-skyrl04"]),
        ("harbor-0.26.0.txt", []),
    ],
)
def test_the_pins_still_fit_the_project(file, cell):
    extras = ["--extra", "dev", "--extra", "modal", *cell]
    constraints = ROOT / "constraints" / file
    resolved = resolve(*extras, "--constraint", constraints, python="3.12")
    assert set(resolved) <= {
        line.partition(" ;")[0] for line in constraints.read_text().split("\n")
    }
