"""The second set of versions: what trains on SkyRL 0.3.0 trains on 0.4.0 with the newest harbor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TRAINING = "tests/integration/embedded/test_training.py"


@pytest.mark.parametrize(
    "test",
    [
        "tests/e2e/test_smoke.py::test_a_few_steps_train_the_model",
        f"{TRAINING}::test_the_engine_follows_every_update_and_only_through_the_sync",
        f"{TRAINING}::test_two_ranks_share_the_model",
    ],
)
def test_passes_on_skyrl_0_4(python_skyrl04: Any, test: str) -> None:
    cells = "from importlib.metadata import version as v; print(v('skyrl'), v('harbor'))"
    assert python_skyrl04.run("-c", cells).stdout.split() == ["0.4.0", "0.26.0"]
    done = python_skyrl04.run("-m", "pytest", "-q", test, cwd=ROOT, timeout=1700)
    assert "1 passed" in done.stdout
