"""Tasks: enough of them, graded difficulty, no way to answer without the tools, no leaks."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from skyrl_apex_miniworld.build import Built, Split, build, draw_split
from skyrl_apex_miniworld.company import draw_company, is_reserved
from skyrl_apex_miniworld.gateway.documents import Documents
from skyrl_apex_miniworld.gateway.filesystem import FileSystem
from skyrl_apex_miniworld.questions import KINDS
from skyrl_apex_miniworld.tiny_model.demonstrations import demonstrations


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("world")
    return build(folder, images=folder / "images")


@pytest.fixture(scope="module")
def train() -> Split:
    return draw_split(0, held_out=False)


@pytest.fixture(scope="module")
def held_out() -> Split:
    return draw_split(0, held_out=True)


def answer(task: Path) -> str:
    golden = json.loads((task / "tests/golden_responses.json").read_text())
    return str(golden[0]["response"])


def world_text(image: Path, world: str) -> str:
    """Everything that the tools can show of a world."""
    root = image / "app/worlds" / world
    files = FileSystem(str(root / "filesystem"))
    documents = Documents(files, str(root / "parsed.json"))
    shown = []
    for name in files.files():
        if name.endswith(".xlsx"):
            shown.append(repr(documents.tabs(name)))
        elif not name.endswith(".png"):
            shown.append(documents.text(name))
    return "\n".join(shown)


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def test_there_are_enough_tasks_of_every_level(built: Built) -> None:
    assert len(built.train) >= 200
    assert len(built.held_out) >= 64
    levels = Counter(
        json.loads((task / "archipelago.json").read_text())["level"] for task in built.held_out
    )
    assert set(levels) == {1, 2, 3, 4}


def test_answers_are_in_the_world_and_not_in_the_question(built: Built, held_out: Split) -> None:
    texts = {world: world_text(built.image_directory, world) for world in held_out.companies}
    for task in held_out.tasks:
        answer = task.question.answer
        assert answer not in task.instruction
        if task.question.kind == "orders":
            (call,) = task.question.plan.calls
            client = call.arguments["code"].split()[2]
            assert len(re.findall(rf"^{client},", texts[task.world], re.M)) == int(answer)
        else:
            assert answer.removesuffix("000") in texts[task.world]


def test_held_out_answers_occur_nowhere_in_training(built: Built, train: Split) -> None:
    seen = set()
    for task in built.train:
        for path in task.rglob("*"):
            if path.is_file() and path.suffix in (".md", ".json"):
                seen |= numbers(path.read_text())
    for world, company in train.companies.items():
        seen |= numbers(world_text(built.image_directory, world))
        seen |= {str(count) for count in company.orders.values()}
    held_out = {answer(task) for task in built.held_out}
    assert len(held_out) > 60
    assert not held_out & seen


def test_held_out_answers_occur_nowhere_in_the_warm_up(built: Built) -> None:
    seen: set[str] = set()
    for shown in islice(demonstrations("0/warm-up"), 2000):
        texts = [shown.user, *(turn.text + (turn.observation or "") for turn in shown.turns)]
        seen |= numbers("\n".join(texts))
    assert not {answer(task) for task in built.held_out} & seen


def test_no_answer_is_common_enough_to_guess(train: Split, held_out: Split) -> None:
    """An agent that sees no tool results does best by saying the most common answer."""
    for split in (train, held_out):
        answers = Counter(task.question.answer for task in split.tasks)
        assert answers.most_common(1)[0][1] / len(split.tasks) < 0.05


def test_traps_end_in_wrong_figures(train: Split, held_out: Split) -> None:
    for split in (train, held_out):
        for task in split.tasks:
            assert task.question.trap.answer != task.question.answer


def test_only_held_out_companies_have_reserved_figures() -> None:
    for held_out in (False, True):
        company = draw_company("x", held_out=held_out)
        figures = [value for row in company.sales.values() for value in row.values()]
        figures += [value for row in company.assets.values() for value in row.values()]
        figures += list(company.orders.values())
        figures += [amount for pair in company.offers.values() for amount in pair]
        figures += [contract.fee for contract in company.contracts]
        assert {is_reserved(figure) for figure in figures} == {held_out}


def test_equal_seeds_give_equal_worlds(tmp_path: Path, built: Built) -> None:
    again = build(tmp_path, images=tmp_path / "images")
    assert again.image == built.image
    assert [task.name for task in again.train] == [task.name for task in built.train]
    other = build(tmp_path, seed=1, images=tmp_path / "images")
    assert other.image != built.image


def test_a_task_directory_holds_what_archipelago_tasks_hold(built: Built) -> None:
    task = built.train[0]
    fields = json.loads((task / "archipelago.json").read_text())
    assert {
        "task_id",
        "task_name",
        "task_slug",
        "world_id",
        "world_short_name",
        "ecr_image",
        "required_env_keys",
        "needs_snapshot",
    } <= set(fields)
    assert fields["ecr_image"] == built.image
    assert fields["task_slug"] == task.name
    assert built.installed.name == built.image.replace(":", "@")
    (verifier,) = json.loads((task / "tests/verifiers.json").read_text())
    assert set(verifier) == {
        "verifier_id",
        "verifier_version",
        "world_id",
        "task_id",
        "eval_config_id",
        "verifier_values",
        "verifier_index",
        "verifier_dependencies",
    }
    assert (task / "tests/test.sh").stat().st_mode & 0o111


def test_harbor_reads_the_tasks(built: Built) -> None:
    from harbor.models.task.task import Task

    for directory in (built.train[0], built.held_out[-1]):
        task = Task(directory)
        assert task.instruction.endswith("Answer with the number alone.")
        assert task.config.environment.network_mode.value == "no-network"


def test_every_kind_is_asked_in_both_splits(train: Split, held_out: Split) -> None:
    for split in (train, held_out):
        kinds = Counter(task.question.kind for task in split.tasks)
        assert set(kinds) == set(KINDS)
        assert len(set(kinds.values())) == 1
