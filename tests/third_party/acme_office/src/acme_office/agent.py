"""A harbor agent that writes a fixed answer."""

from __future__ import annotations

import json
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext


class AcmeAgent(BaseAgent):
    def __init__(self, *args: Any, answer: str = "42", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answer = answer

    @staticmethod
    @override
    def name() -> str:
        return "acme"

    @override
    def version(self) -> str:
        return "2.1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        return

    @override
    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        result = await environment.exec(f"echo '{self._answer}' > /logs/agent/answer.txt")
        if result.return_code != 0:
            raise RuntimeError(f"the answer could not be written: {result.stderr}")
        step = {"step_id": 1, "source": "agent", "message": self._answer}
        (self.logs_dir / "trajectory.json").write_text(json.dumps({"steps": [step]}))
