"""What a task expects of its sandbox."""

from __future__ import annotations

import json
from pathlib import Path

LOG_DIRECTORIES = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Where harbor's agents, whatever user they are, and its verifiers write."""


def image_of_task(task_dir: Path) -> str | None:
    """``ecr_image`` of the task's ``archipelago.json``; ``None`` when the task has no world."""
    path = task_dir / "archipelago.json"
    name = json.loads(path.read_text()).get("ecr_image") if path.is_file() else None
    return str(name) if name else None
