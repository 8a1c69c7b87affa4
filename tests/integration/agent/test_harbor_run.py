"""Stock ``harbor run`` on tasks of the sample world, in a real sandbox, on both harbor lines."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import Model
from skyrl_apex_miniworld.build import Built, build, draw_split
from skyrl_apex_miniworld.company import Company
from skyrl_apex_miniworld.expert import play
from skyrl_apex_miniworld.questions import Plan
from skyrl_apex_miniworld.tasks import WorldTask
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_outcome
from skyrl_apex_plugin.tito.ledger import TokenLedger

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="archipelago-local needs bubblewrap"),
]


@dataclass(frozen=True)
class World:
    """The built sample world, with what is needed to play its tasks."""

    built: Built
    images: Path
    companies: dict[str, Company]
    tasks: dict[str, WorldTask]

    def task_of_kind(self, kind: str) -> WorldTask:
        return next(task for task in self.tasks.values() if task.question.kind == kind)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    out, images = tmp_path_factory.mktemp("miniworld"), tmp_path_factory.mktemp("images")
    split = draw_split(0, held_out=False)
    return World(
        build(out, images=images),
        images,
        split.companies,
        {task.slug: task for task in split.tasks},
    )


class HarborRun:
    """``harbor run`` of one task with a scripted model."""

    def __init__(self, world: World, model: Model, tmp_path: Path) -> None:
        self._world, self._model, self._jobs = world, model, tmp_path / "jobs"

    def __call__(self, python: Any, task: WorldTask, plan: Plan, mode: str) -> dict[str, Any]:
        turns = [turn.text for turn in play(self._world.companies[task.world], plan)]
        self._model.answer(task.question.text, *turns)
        directory = next(p for p in self._world.built.train if p.name == task.slug)
        python.run(
            python.script("harbor"),
            "run",
            *("--agent", "archipelago", "--env", "archipelago-local", "--path", directory),
            *("--jobs-dir", self._jobs, "--n-concurrent", "1", "--quiet"),
            *self._agent_options(mode),
            timeout=240,
            APEX_IMAGES_DIR=str(self._world.images),
        )
        (result,) = self._jobs.glob("*/*/result.json")
        self.trial_dir = result.parent
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def _agent_options(self, mode: str) -> list[str]:
        if mode == "chat":
            return ["--model", "openai/scripted", "--ak", f"api_base={self._model.base_url}"]
        sampler = {"name": "completions", "kwargs": {"base_url": self._model.base_url}}
        return [
            *("--ak", f"tokenizer={self._model.tokenizer}"),
            *("--ak", f"sampler={json.dumps(sampler)}"),
        ]


@pytest.fixture
def harbor_run(world: World, model: Model, tmp_path: Path) -> HarborRun:
    return HarborRun(world, model, tmp_path)


def rewards(result: dict[str, Any]) -> dict[str, float]:
    assert result["exception_info"] is None, result["exception_info"]
    found: dict[str, float] = result["verifier_result"]["rewards"]
    return found


@pytest.mark.parametrize("line", ["python", "python26"])
@pytest.mark.parametrize("mode", ["tito", "chat"])
def test_a_right_run_gets_one(
    line: str, mode: str, harbor_run: HarborRun, world: World, request: pytest.FixtureRequest
) -> None:
    task = world.task_of_kind("assets")
    result = harbor_run(request.getfixturevalue(line), task, task.question.plan, mode)
    assert rewards(result) == {"reward": 1.0}
    outcome = read_outcome(harbor_run.trial_dir)
    assert outcome is not None and outcome.outcome == "complete"
    steps = [s for s in read_trajectory(harbor_run.trial_dir).steps if s.source == "agent"]
    assert len(steps) == len(task.question.plan.calls) + 1
    if mode == "tito":
        assert TokenLedger.load(harbor_run.trial_dir / "agent" / "tokens.apex").turns


@pytest.mark.parametrize("line", ["python", "python26"])
def test_a_wrong_run_gets_zero(
    line: str, harbor_run: HarborRun, world: World, request: pytest.FixtureRequest
) -> None:
    task = world.task_of_kind("assets")
    result = harbor_run(request.getfixturevalue(line), task, task.question.trap, "tito")
    assert rewards(result) == {"reward": 0.0}
