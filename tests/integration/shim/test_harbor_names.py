"""Names of installed packages in stock ``harbor run``, on both harbor versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


@pytest.fixture(params=["python", "python26"], ids=["harbor-0.21", "harbor-0.26"])
def harbor(request, third_party):
    """Run stock ``harbor`` with the third party's distribution installed."""
    interpreter = request.getfixturevalue(request.param)

    def run(*arguments: str | Path, check: bool = True):
        script = interpreter.script("harbor")
        return interpreter.run(script, *arguments, check=check, PYTHONPATH=str(third_party))

    return run


def rewards(jobs: Path) -> list[float]:
    results = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
    return [result["verifier_result"]["rewards"]["reward"] for result in results]


@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("41", 0.0)])
def test_a_third_partys_agent_and_environment_by_name(
    harbor, task_directory, tmp_path, answer, reward
):
    harbor(
        *("run", "--path", task_directory, "--agent", "acme", "--env", "acme-box"),
        *("--agent-kwarg", f"answer='{answer}'", "--jobs-dir", tmp_path / "jobs"),
    )
    assert rewards(tmp_path / "jobs") == [reward]


def test_the_names_work_in_a_job_file(harbor, task_directory, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"jobs_dir: {tmp_path / 'jobs'}\n"
        "agents: [{name: acme}]\n"
        "environment: {type: acme-box}\n"
        f"tasks: [{{path: {task_directory}}}]\n"
    )
    harbor("run", "--config", job)
    assert rewards(tmp_path / "jobs") == [1.0]


def test_an_unknown_name_is_still_harbors_own_error(harbor, task_directory):
    result = harbor("run", "--path", task_directory, "--env", "acme-bux", check=False)
    assert result.returncode != 0
    assert "archipelago-local" in " ".join((result.stdout + result.stderr).split())
