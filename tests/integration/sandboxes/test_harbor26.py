"""The sandboxes on the newest harbor: the same tests, run by its interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.parametrize(
    ("file", "selected"),
    [
        ("test_modal.py", "not too_many"),
        pytest.param("test_local.py", "", marks=pytest.mark.full),
        pytest.param("test_docker.py", "", marks=pytest.mark.full),
        ("test_local.py", "contract and (commands or files or tunnel or no_network)"),
        ("test_docker.py", "contract and (commands or tunnel) or leftovers"),
    ],
)
def test_on_harbor_26(file: str, selected: str, python26: Any) -> None:
    done = python26.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / file, "-k", selected),
        cwd=ROOT,
        timeout=280,
        check=False,
    )
    summary = done.stdout.splitlines()[-1] if done.stdout else ""
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert " passed" in summary or "skipped" in summary
