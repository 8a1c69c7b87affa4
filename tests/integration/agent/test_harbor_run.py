"""Stock ``harbor run`` on tasks of the sample world, in a real sandbox, on both harbor lines."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_parts import Model

from skyrl_apex_miniworld.build import Built, build, draw_split
from skyrl_apex_miniworld.company import Company
from skyrl_apex_miniworld.expert import play
from skyrl_apex_miniworld.tasks import WorldTask
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_outcome
from skyrl_apex_plugin.tito.ledger import TokenLedger

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
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
    """One ``harbor run`` of a right and a wrong script on two tasks of the sample world."""

    def __init__(self, world: World, model: Model, tmp_path: Path) -> None:
        self._world, self._model, self._folder = world, model, tmp_path
        self.right = world.task_of_kind("assets")
        self.wrong = world.task_of_kind("referral")

    def __call__(self, python: Any, mode: str) -> None:
        tasks = self._folder / "tasks"
        for task, plan in (
            (self.right, self.right.question.plan),
            (self.wrong, self.wrong.question.trap),
        ):
            turns = [turn.text for turn in play(self._world.companies[task.world], plan)]
            self._model.answer(task.question.text, *turns)
            source = next(p for p in self._world.built.train if p.name == task.slug)
            shutil.copytree(source, tasks / task.slug)
        options, variables = self._model_options(mode)
        python.run(
            python.script("harbor"),
            "run",
            *("--agent", "archipelago", "--env", "archipelago-local", "--path", tasks),
            *("--jobs-dir", self._folder / "jobs", "--n-concurrent", "2", "--quiet"),
            *options,
            timeout=550,
            APEX_IMAGES_DIR=str(self._world.images),
            **variables,
        )

    def _model_options(self, mode: str) -> tuple[list[str], dict[str, str]]:
        url = self._model.base_url
        if mode == "hosted":
            return ["--model", "openai/scripted"], {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
        sampler = {"name": "completions", "kwargs": {"base_url": url}}
        tokenizer = f"tokenizer={self._model.tokenizer}"
        return ["--ak", tokenizer, "--ak", f"sampler={json.dumps(sampler)}"], {}

    def trial_dir(self, task: WorldTask) -> Path:
        (result,) = self._folder.glob(f"jobs/*/{task.slug}__*/result.json")
        return result.parent

    def rewards(self, task: WorldTask) -> dict[str, float]:
        result = json.loads((self.trial_dir(task) / "result.json").read_text())
        assert result["exception_info"] is None, result["exception_info"]
        found: dict[str, float] = result["verifier_result"]["rewards"]
        return found


@pytest.fixture
def harbor_run(world: World, model: Model, tmp_path: Path) -> HarborRun:
    return HarborRun(world, model, tmp_path)


@pytest.mark.parametrize("line", ["python", "python26"])
@pytest.mark.parametrize("mode", ["tito", "hosted"])
def test_a_right_run_gets_one_and_a_wrong_one_zero(
    line: str, mode: str, harbor_run: HarborRun, request: pytest.FixtureRequest
) -> None:
    harbor_run(request.getfixturevalue(line), mode)
    assert harbor_run.rewards(harbor_run.right) == {"reward": 1.0}
    assert harbor_run.rewards(harbor_run.wrong) == {"reward": 0.0}
    trial_dir = harbor_run.trial_dir(harbor_run.right)
    outcome = read_outcome(trial_dir)
    assert outcome is not None and outcome.outcome == "complete"
    steps = [step for step in read_trajectory(trial_dir).steps if step.source == "agent"]
    assert len(steps) == len(harbor_run.right.question.plan.calls) + 1
    if mode == "tito":
        assert TokenLedger.load(trial_dir / "agent" / "tokens.apex").turns
