"""What the tests of the local sandbox start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skyrl_apex_local.environment import LocalEnvironment
from skyrl_apex_plugin.sandboxes.conformance import SandboxMaker


def local(directory: Path, **task: Any) -> SandboxMaker:
    """Maker of local sandboxes for a task with the given ``[environment]`` fields."""
    return SandboxMaker(LocalEnvironment, directory, task=task)
