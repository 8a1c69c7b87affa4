"""Task directories of made-up worlds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TASK_TOML = 'version = "1.0"\n[agent]\n[verifier]\n[environment]\n'

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes one complete task directory and returns it."""

    def make(name: str, root: Path | None = None, criteria: int = 2, **fields: Any) -> Path:
        directory = (root or tmp_path / "tasks") / name
        for folder in ("environment", "tests/runner"):
            (directory / folder).mkdir(parents=True)
        document = {
            "task_id": name,
            "task_name": f"Task {name}",
            "task_slug": f"{name}-slug",
            "world_id": "w1",
            "world_short_name": "law-01",
            "ecr_image": "registry/world:1",
            "required_env_keys": [],
            "needs_snapshot": False,
            **fields,
        }
        verifiers = [
            {
                "verifier_id": f"{name}-{number}",
                "verifier_version": 1,
                "world_id": document["world_id"],
                "task_id": name,
                "eval_config_id": "e1",
                "verifier_values": {
                    "criteria": f"Criterion {number}",
                    "is_primary_objective": number == 0,
                },
                "verifier_index": number,
                "verifier_dependencies": None,
            }
            for number in range(criteria)
        ]
        (directory / "archipelago.json").write_text(json.dumps(document))
        (directory / "instruction.md").write_text(f"Do {name}.\n")
        (directory / "task.toml").write_text(TASK_TOML)
        (directory / "environment" / "Dockerfile").write_text("FROM scratch\n")
        (directory / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
        (directory / "tests" / "test.sh").chmod(0o755)
        (directory / "tests" / "grade.py").write_text("")
        (directory / "tests" / "verifiers.json").write_text(json.dumps(verifiers))
        (directory / "tests" / "golden_responses.json").write_text('["done"]')
        return directory

    return make
