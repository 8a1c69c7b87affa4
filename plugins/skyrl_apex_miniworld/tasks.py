"""Writes questions as standard harbor task directories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random

from skyrl_apex_miniworld.company import Company
from skyrl_apex_miniworld.questions import KINDS, Question, ask

SERVERS = ("sheets", "mail", "shell", "files")
"""The world's servers, in the order in which their tools are listed."""

ALLOWED_TOOLS = ("spreadsheet", "mailbox", "code_exec", "read_file")
DIFFICULTIES = {1: "easy", 2: "medium", 3: "hard", 4: "hard"}
REQUEST = "Answer with the number alone."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTask:
    """A question as a task of a world."""

    slug: str
    world: str
    question: Question

    @property
    def instruction(self) -> str:
        return f"{self.question.text}\n{REQUEST}"


def draw_tasks(company: Company, world: str, *, per_kind: int, seed: str) -> Iterator[WorldTask]:
    """``per_kind`` tasks of every kind of question about ``company``."""
    rng = Random(seed)
    for kind in KINDS:
        questions = list(ask(company, kind, rng))[:per_kind]
        for number, question in enumerate(questions, 1):
            yield WorldTask(slug=f"{world}-{kind}-{number}", world=world, question=question)


def write_task(task: WorldTask, image: str, directory: Path) -> None:
    """Write one task directory. ``image`` is the name of the world's image."""
    question = task.question
    for folder in ("tests", "environment", "solution"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    (directory / "instruction.md").write_text(task.instruction, encoding="utf-8")
    _fill(
        "task.toml", directory, {"difficulty": DIFFICULTIES[question.level], "kind": question.kind}
    )
    _fill("Dockerfile", directory / "environment", {})
    _fill("solve.sh", directory / "solution", {"answer": question.answer})
    _fill("test.sh", directory / "tests", {})
    _fill("grade.py", directory / "tests", {})
    _write_json(directory / "archipelago.json", _archipelago(task, image))
    _write_json(directory / "tests/verifiers.json", [_verifier(task)])
    _write_json(directory / "tests/golden_responses.json", [{"response": question.answer}])


def _archipelago(task: WorldTask, image: str) -> dict[str, object]:
    return {
        "task_id": task.slug,
        "task_name": task.question.text,
        "task_slug": task.slug,
        "world_id": task.world,
        "world_short_name": f"miniworld-{task.world}",
        "ecr_image": image,
        "required_env_keys": [],
        "needs_snapshot": False,
        "mcp_servers": list(SERVERS),
        "kind": task.question.kind,
        "level": task.question.level,
    }


def _verifier(task: WorldTask) -> dict[str, object]:
    return {
        "verifier_id": f"{task.slug}-answer",
        "verifier_version": 1,
        "world_id": task.world,
        "task_id": task.slug,
        "eval_config_id": "miniworld",
        "verifier_values": {
            "criteria": f"The final answer is {task.question.answer}",
            "is_primary_objective": True,
        },
        "verifier_index": 0,
        "verifier_dependencies": [],
    }


def _fill(name: str, folder: Path, values: Mapping[str, str]) -> None:
    """Copy a task file of this package, its ``{name}`` fields filled in."""
    text = (files("skyrl_apex_miniworld") / "task_files" / name).read_text(encoding="utf-8")
    for field, value in values.items():
        text = text.replace("{" + field + "}", value)
    target = folder / name
    target.write_text(text, encoding="utf-8")
    if name.endswith(".sh"):
        target.chmod(0o755)


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
