"""A Docker engine and loop settings for the sandbox tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from docker_engine import Engine, NoEngine, docker_engine

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def running_engine() -> Iterator[Engine]:
    # Not under pytest's own folder: the path of a Unix socket may have 107 characters.
    data = Path(tempfile.mkdtemp(prefix="apexdk"))
    try:
        with docker_engine(ROOT / ".cache/docker-engine", data) as engine:
            yield engine
    except NoEngine as reason:
        pytest.skip(f"no Docker engine: {reason}")
    finally:
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def engine(running_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that ``docker`` on the search path talks to."""
    for name, value in running_engine.variables.items():
        monkeypatch.setenv(name, value)
    return running_engine


@pytest.fixture
def bwrap() -> str:
    path = shutil.which(os.environ.get("APEX_BWRAP", "bwrap"))
    if path is None:
        pytest.skip("bubblewrap is not installed: apt-get install -y bubblewrap")
    return path
