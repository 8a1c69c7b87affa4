"""harbor's ``TrialConfig`` for a task, from the ``apex`` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyrl_apex_hookspecs import Task
from skyrl_apex_plugin.discovery import resolve

if TYPE_CHECKING:
    from harbor.models.trial.config import TrialConfig

AGENT = "skyrl_apex_plugin.agent.agent:ArchipelagoAgent"
VERIFIER = "skyrl_apex_plugin.grading.verifier:ApexVerifier"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfigBuilder:
    """What all trials of a run share."""

    sandbox: str
    sandbox_kwargs: Mapping[str, Any] = field(default_factory=dict)
    agent_kwargs: Mapping[str, Any] = field(default_factory=dict)
    grader: str = "task"
    grader_kwargs: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """``apex.trial``: merged over everything else, section by section."""
    model_name: str | None = None

    def build(
        self, task: Task, *, trials_dir: Path, trial_name: str, agent_kwargs: Mapping[str, Any]
    ) -> TrialConfig:
        """The configuration of one attempt.

        :param agent_kwargs: over those that all trials share: sampling of this phase.

        Raises ``UnknownName`` or ``BrokenName`` for the sandbox, and pydantic's
        ``ValidationError`` for what ``apex.trial`` adds.
        """
        from harbor.models.trial.config import TrialConfig

        document: dict[str, Any] = {
            "task": {"path": str(task.directory)},
            "trial_name": trial_name,
            "trials_dir": str(trials_dir),
            "agent": {
                "import_path": AGENT,
                "model_name": self.model_name,
                "kwargs": {**self.agent_kwargs, **agent_kwargs},
            },
            "environment": {
                "import_path": import_path(self.sandbox),
                "kwargs": dict(self.sandbox_kwargs),
            },
            "verifier": {
                "import_path": VERIFIER,
                "kwargs": {"grader": {"name": self.grader, "kwargs": dict(self.grader_kwargs)}},
            },
        }
        if "type" in (self.extra.get("environment") or {}):
            del document["environment"]["import_path"]  # one of harbor's own environments
        return TrialConfig.model_validate(merged(document, self.extra))


def import_path(sandbox: str) -> str:
    """``module:Class`` of a sandbox, registered or spelled out, for harbor to import."""
    found = resolve("sandbox", sandbox)
    return f"{found.__module__}:{found.__qualname__}"


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top; mappings are merged, all else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = merged(below, value)
        result[key] = value
    return result
