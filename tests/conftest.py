"""What more than one area of the tests needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@dataclass(frozen=True)
class Python:
    """An interpreter whose environment has this project installed, plus extra import folders."""

    executable: Path
    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str | Path,
        timeout: float = 120,
        cwd: Path | None = None,
        check: bool = True,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter; a failed run shows its output."""
        folders = os.pathsep.join(map(str, self.folders))
        environment = {**os.environ, "PYTHONPATH": folders, **self.variables, **variables}
        command = [str(self.executable), *map(str, arguments)]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment
        )
        if check and result.returncode != 0:
            output = result.stdout + result.stderr
            pytest.fail(f"{command} ended with {result.returncode}:\n{output}")
        return result

    def script(self, name: str) -> Path:
        """A console script beside the interpreter."""
        return self.executable.with_name(name)


def install(distribution: Path, target: Path) -> Path:
    """Really install a distribution (metadata and all) into the folder ``target``."""
    options: Sequence[str] = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", target, distribution]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return target


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which the unrelated distribution ``acme-office`` is installed."""
    return install(
        ROOT / "tests/third_party/acme_office", tmp_path_factory.mktemp("third") / "site"
    )


@pytest.fixture(scope="session")
def python() -> Python:
    """This interpreter: harbor 0.21.0 and SkyRL."""
    return Python(Path(sys.executable))


@pytest.fixture(scope="session")
def python26() -> Python:
    """The interpreter of the environment with harbor 0.26."""
    named = os.environ.get("APEX_HARBOR26_PYTHON", "")
    if not named or not Path(named).exists():
        pytest.skip("APEX_HARBOR26_PYTHON names no interpreter; `make setup` builds one")
    return Python(Path(named))
