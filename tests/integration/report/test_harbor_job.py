"""Stock ``harbor run`` with our verifier and job plugin, on the local sandbox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HARBOR = Path(sys.executable).with_name("harbor")
VERIFIER = "skyrl_apex_plugin.grading.verifier:ApexVerifier"

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def task(path: Path, test_script: str) -> Path:
    for folder in ("tests", "environment", "solution"):
        (path / folder).mkdir(parents=True)
    (path / "task.toml").write_text('version = "1.0"\n[agent]\n[verifier]\n[environment]\n')
    (path / "instruction.md").write_text("Say 4.")
    (path / "environment" / "Dockerfile").write_text("FROM scratch\n")
    (path / "tests" / "test.sh").write_text(f"#!/bin/sh\n{test_script}\n")
    (path / "solution" / "solve.sh").write_text("#!/bin/sh\ntrue\n")
    return path


def harbor_run(task_dir: Path, jobs: Path, *more: str) -> Path:
    command = [HARBOR, "run", "-p", task_dir, "-a", "oracle", "-e", "archipelago-local"]
    command += ["--verifier", VERIFIER, "--plugin", "apex", "-o", jobs, "--job-name", "job", *more]
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return jobs / "job"


def entry(job: Path) -> dict[str, Any]:
    (line,) = (job / "trials.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def verdict(job: Path) -> dict[str, Any]:
    (path,) = job.glob("*/verifier/verdict.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_graded_job_leaves_record_and_report(tmp_path: Path) -> None:
    script = "echo 0.25 > /logs/verifier/reward.txt"
    job = harbor_run(task(tmp_path / "t", script), tmp_path / "jobs")
    assert entry(job)["score"] == 0.25 and entry(job)["treatment"] == "graded"
    assert entry(job)["seconds"]["total"] > 0
    assert verdict(job)["score"] == 0.25
    assert json.loads((job / "run.json").read_text())["agent"] == "oracle"
    assert entry(job)["trial"] in (job / "report.html").read_text()


def test_a_judge_that_failed_gives_the_job_no_reward(tmp_path: Path) -> None:
    """The reference runner's failure: exit code 0, a score of 0.0, and a status that says no."""
    result = {"grading_run_status": "error", "scoring_results": {"final_score": 0.0}}
    script = (
        f"echo '{json.dumps(result)}' > /logs/verifier/grades.json\n"
        "echo '{\"reward\": 0.0}' > /logs/verifier/reward.json"
    )
    job = harbor_run(task(tmp_path / "t", script), tmp_path / "jobs")
    assert verdict(job)["score"] is None and "status 'error'" in verdict(job)["error"]
    found = entry(job)
    assert (found["outcome"], found["score"], found["reward"]) == ("verifier_error", None, None)
    (trial,) = json.loads((job / "result.json").read_text())["stats"]["evals"].values()
    assert trial["n_errors"] == 1 and not trial["reward_stats"]


def test_another_grader_by_name(tmp_path: Path) -> None:
    made = task(tmp_path / "t", "exit 1")
    checks = [{"kind": "file", "path": "/tests/exact.json"}]
    (made / "tests" / "exact.json").write_text(json.dumps(checks))
    job = harbor_run(made, tmp_path / "jobs", "--verifier-kwarg", "grader=exact")
    assert verdict(job)["grader"] == "exact" and entry(job)["score"] == 0.0
