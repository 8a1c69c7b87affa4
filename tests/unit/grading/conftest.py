"""A task directory and a sandbox that is a folder, entered with bubblewrap."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import ExecResult
from harbor.models.task.config import TaskOS
from harbor.models.task.task import Task as HarborTask

from skyrl_apex_hookspecs import FinishedTrial, Outcome, Task, Trajectory

TASK_TOML = 'version = "1.0"\n[agent]\n[verifier]\n[environment]\n'


class FolderSandbox:
    """The part of harbor's environment that graders use, over a folder with /tests and /logs."""

    os = TaskOS.LINUX

    def __init__(self, root: Path) -> None:
        self.root = root
        self.capabilities = type("Capabilities", (), {"mounted": False})()
        for name in ("tests", "logs/verifier", "logs/agent", "work"):
            (root / name).mkdir(parents=True)

    def is_path_mounted(self, *_: Any) -> bool:
        return False

    async def exec(
        self, command: str, env: dict[str, str] | None = None, user: Any = None, **_: Any
    ) -> ExecResult:
        binds = [x for name in ("tests", "logs", "work") for x in self._bind(name)]
        system = [x for name in ("usr", "bin", "lib", "lib64") for x in self._system(name)]
        full = ["bwrap", *system, "--proc", "/proc", "--dev", "/dev", *binds, "sh", "-c", command]
        done = await asyncio.create_subprocess_exec(
            *full,
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await done.communicate()
        return ExecResult(
            stdout=out.decode(), stderr=err.decode(), return_code=done.returncode or 0
        )

    def _bind(self, name: str) -> list[str]:
        return ["--bind", str(self.root / name), f"/{name}"]

    @staticmethod
    def _system(name: str) -> list[str]:
        return ["--ro-bind", f"/{name}", f"/{name}"]

    async def upload_dir(self, source_dir: Path, target_dir: str) -> None:
        shutil.copytree(source_dir, self.root / target_dir.lstrip("/"), dirs_exist_ok=True)

    async def download_dir(self, source_dir: str, target_dir: Path) -> None:
        shutil.copytree(self.root / source_dir.lstrip("/"), target_dir, dirs_exist_ok=True)


@dataclass
class Bench:
    """One trial under construction."""

    task_dir: Path
    trial_dir: Path
    sandbox: FolderSandbox

    def test_script(self, script: str) -> None:
        (self.task_dir / "tests" / "test.sh").write_text("#!/bin/sh\n" + script)

    def runner_script(self, result: dict[str, Any], reward: str | None = None) -> None:
        """A ``test.sh`` that leaves the grading runner's files, as the reference runner does."""
        script = f"cat > /logs/verifier/grades.json <<'END'\n{json.dumps(result)}\nEND\n"
        if reward is not None:
            script += f"echo '{reward}' > /logs/verifier/reward.json\n"
        self.test_script(script)

    def verifiers(self, *criteria: tuple[str, str, bool]) -> None:
        document = [
            {"verifier_id": i, "verifier_values": {"criteria": text, "is_primary_objective": main}}
            for i, text, main in criteria
        ]
        (self.task_dir / "tests" / "verifiers.json").write_text(json.dumps(document))

    def trajectory(self) -> Trajectory:
        return Trajectory(
            task=Task(task_id="t1", directory=self.task_dir, instruction="Say 4."),
            outcome=Outcome.MAX_TURNS,
            tokens=array("i", [1]),
            logprobs=array("f", [0.0]),
            loss_mask=b"\0",
            prompt_length=1,
        )

    def finished(self, **changes: Any) -> FinishedTrial:
        task = Task(task_id="t1", directory=self.task_dir, instruction="Say 4.")
        fields: dict[str, Any] = {
            "task": task,
            "trial_dir": self.trial_dir,
            "environment": self.sandbox,
            "answer": "4",
            "trajectory": None,
            "harbor_task": HarborTask(self.task_dir),
        }
        return FinishedTrial(**{**fields, **changes})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    task_dir = tmp_path / "task"
    for name in ("environment", "tests"):
        (task_dir / name).mkdir(parents=True)
    (task_dir / "task.toml").write_text(TASK_TOML)
    (task_dir / "instruction.md").write_text("Say 4.")
    trial_dir = tmp_path / "trial"
    (trial_dir / "verifier").mkdir(parents=True)
    made = Bench(task_dir, trial_dir, FolderSandbox(tmp_path / "sandbox"))
    made.test_script("echo 1 > /logs/verifier/reward.txt\n")
    return made
