"""A task that any agent can solve by writing 42."""

from __future__ import annotations

from pathlib import Path

import pytest

CHECK = """#!/bin/sh
if [ "$(cat /logs/agent/answer.txt)" = 42 ]; then reward=1; else reward=0; fi
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
"""


@pytest.fixture
def task_directory(tmp_path: Path) -> Path:
    task = tmp_path / "say-42"
    for folder in ("environment", "tests"):
        (task / folder).mkdir(parents=True)
    (task / "instruction.md").write_text("Say 42.")
    (task / "task.toml").write_text('version = "1.0"\n[agent]\ntimeout_sec = 60\n')
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    (task / "tests/test.sh").write_text(CHECK)
    (task / "tests/test.sh").chmod(0o755)
    return task
