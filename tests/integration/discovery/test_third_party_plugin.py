"""An installed third-party package swaps a sandbox, a grader and a reward term, core untouched."""

from __future__ import annotations

import json
import shutil

import pytest

REWARD = """
import json, sys
from array import array
from pathlib import Path
from skyrl_apex_hookspecs import *
from skyrl_apex_plugin.discovery import registered, resolve
from skyrl_apex_plugin.grading.rewards import RewardShaper

task = Task(task_id="t", directory=Path("."), instruction="")
trajectory = Trajectory(
    task=task, outcome=Outcome.COMPLETE, tokens=array("i", [1, 2]), logprobs=array("f", [0, -1]),
    loss_mask=bytes([0, 1]), prompt_length=1,
    turns=(Turn(index=0, start=1, end=2, finish_reason="stop"),),
    verdict=Verdict(grader="task", score=1.0),
)
shaped = RewardShaper().shape(trajectory)
print(json.dumps({
    "reward": shaped.reward,
    "terms": {term.name: term.value for term in shaped.terms},
    "sandbox": "acme-box" in registered("sandbox") and resolve("sandbox", "acme-box").__module__,
    "grader": "acme-answer" in registered("grader"),
}))
"""


def seen(python, third_party, **variables: str) -> dict:
    result = python.run("-c", REWARD, PYTHONPATH=str(third_party), **variables)
    return json.loads(result.stdout.splitlines()[-1])


def test_its_names_and_its_reward_term_are_in_force(python, third_party):
    assert seen(python, third_party) == {
        "reward": 0.99,
        "terms": {"acme_brevity": -0.01},
        "sandbox": "acme_office.environment",
        "grader": True,
    }


def test_the_allow_list_keeps_it_out(python, third_party):
    nothing = {"reward": 1.0, "terms": {}, "sandbox": False, "grader": False}
    assert seen(python, third_party, APEX_PLUGINS="local,rewards") == nothing


def test_it_is_listed_with_its_hooks_and_owner(python, third_party):
    script = python.script("skyrl-apex")
    listed = python.run(script, "plugins", "list", "--json", PYTHONPATH=str(third_party))
    (acme,) = [p for p in json.loads(listed.stdout)["plugins"] if p["name"] == "acme"]
    assert acme["owner"] == "acme-office 2.1"
    assert "apex_reward_terms" in acme["hooks"]


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize(("word", "reward"), [("42", 1.0), ("43", 0.0)])
def test_its_grader_grades_in_its_sandbox_under_stock_harbor(
    python, third_party, task_directory, tmp_path, word, reward
):
    job = {
        "jobs_dir": str(tmp_path / "jobs"),
        "agents": [{"name": "acme"}],
        "environment": {"type": "acme-box"},
        "tasks": [{"path": str(task_directory)}],
        "verifier": {
            "import_path": "skyrl_apex_plugin.grading.verifier:ApexVerifier",
            "kwargs": {"grader": {"name": "acme-answer", "kwargs": {"word": word}}},
        },
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    python.run(
        *(python.script("harbor"), "run", "--config", tmp_path / "job.json"),
        PYTHONPATH=str(third_party),
    )
    (trial,) = (tmp_path / "jobs").glob("*/*/result.json")
    assert json.loads(trial.read_text())["verifier_result"]["rewards"] == {"reward": reward}
    verdict = json.loads((trial.parent / "verifier/verdict.json").read_text())
    assert verdict["grader"] == "acme-answer" and verdict["criteria"][0]["criterion_id"] == "word"
