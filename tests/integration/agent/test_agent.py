"""The whole agent against a real gateway and a real model server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harbor.models.agent.context import AgentContext

from conftest import Gateway, Model, call
from skyrl_apex_hookspecs import Outcome
from skyrl_apex_plugin.agent.agent import ArchipelagoAgent
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_outcome, read_turns
from skyrl_apex_plugin.tito.ledger import TokenLedger

pytestmark = pytest.mark.usefixtures("no_leaks")


class Run:
    """One run of the agent, and what it left."""

    def __init__(self, tmp_path: Path, gateway: Gateway, model: Model) -> None:
        self.trial_dir = tmp_path / "trial"
        self.task_dir = tmp_path / "task"
        self.gateway, self.model = gateway, model
        self.context = AgentContext()
        self.files: dict[str, str] = {}

    async def __call__(self, *turns: str, mode: str = "tito", **kwargs: Any) -> Any:
        instruction = self.model.play(*turns)
        (self.task_dir / "environment").mkdir(parents=True)
        (self.task_dir / "instruction.md").write_text(instruction)
        (self.trial_dir / "agent").mkdir(parents=True)
        if mode == "tito":
            sampler = {"name": "completions", "kwargs": {"base_url": self.model.base_url}}
            kwargs = {"tokenizer": str(self.model.tokenizer), "sampler": sampler, **kwargs}
        else:
            kwargs = {"api_base": self.model.base_url, "model_name": "x/scripted", **kwargs}
        prepare = {"gateway_url": self.gateway.url, "servers": ["files", "mail"]}
        prepare |= kwargs.pop("prepare", {})
        agent = ArchipelagoAgent(self.trial_dir / "agent", prepare=prepare, **kwargs)
        environment = HostEnvironment(self.task_dir / "environment", self.files)
        await agent.setup(environment)
        await agent.run(instruction, environment, self.context)
        return read_outcome(self.trial_dir)

    @property
    def ledger(self) -> TokenLedger:
        return TokenLedger.load(self.trial_dir / "agent" / "tokens.apex")


class HostEnvironment:
    """The three calls that a world which already runs gets. Sandboxes have tests of their own."""

    def __init__(self, environment_dir: Path, files: dict[str, str]) -> None:
        self.environment_dir = environment_dir
        self._files = files

    async def exec(self, command: str, **_: Any) -> Any:
        return SimpleNamespace(return_code=1, stdout="", stderr="")

    async def upload_file(self, source_path: Path, target_path: str) -> None:
        self._files[target_path] = Path(source_path).read_text()  # noqa: ASYNC240


@pytest.fixture
def run(tmp_path: Path, gateway: Gateway, model: Model) -> Run:
    return Run(tmp_path, gateway, model)


@pytest.mark.parametrize("mode", ["tito", "chat"])
async def test_works_through_its_tools_to_an_answer(run: Run, mode: str) -> None:
    path = f"/{mode}/{run.trial_dir.parent.name}"
    outcome = await run(
        call("files_write", path=path, text="forty-two"),
        call("files_read", path=path) + "\n" + call("files_read", path="/none"),
        "It is forty-two.",
        mode=mode,
    )
    assert outcome.outcome is Outcome.COMPLETE
    assert outcome.answer == "It is forty-two."
    assert run.files["/logs/agent/answer.txt"] == "It is forty-two."
    assert outcome.metrics["turns"] == 3
    assert outcome.metrics["servers"]["files"]["calls"] == 3
    assert run.gateway.actions().count(f"write {path}") == 1
    trajectory = read_trajectory(run.trial_dir)
    results = [r.content for s in trajectory.steps if s.observation for r in s.observation.results]
    assert results[1:] == ["forty-two", "(the tool returned nothing)"]


async def test_the_token_record_holds_what_was_sampled(run: Run) -> None:
    await run(call("files_read", path="/none"), "Nothing.")
    ledger = run.ledger
    assert len(ledger.turns) == 2
    assert [c.name for c in ledger.turns[0].calls] == ["files_read"]
    detail = run.context.rollout_details[0]
    assert detail["completion_token_ids"][1] == ledger.tokens[ledger.turns[1].start :].tolist()
    assert detail["prompt_token_ids"][1] == ledger.tokens[: ledger.turns[1].start].tolist()
    steps = [s for s in read_trajectory(run.trial_dir).steps if s.source == "agent"]
    assert steps[0].metrics.completion_token_ids == detail["completion_token_ids"][0]


async def test_chat_has_no_token_record(run: Run) -> None:
    await run("Done.", mode="chat")
    assert not (run.trial_dir / "agent" / "tokens.apex").exists()
    assert run.context.rollout_details is None
    assert json.loads((run.trial_dir / "outcome.json").read_text())["schema"] == 1


async def test_turns_are_on_disk_before_the_run_ends(run: Run) -> None:
    await run(call("files_read", path="/none"), "Done.")
    kinds = [line["kind"] for line in read_turns(run.trial_dir)]
    assert kinds == ["start", "model", "tools", "model", "tools"]
