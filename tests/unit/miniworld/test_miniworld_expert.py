"""The scripted expert: its view of the world is the gateway's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from skyrl_apex_miniworld.build import draw_split
from skyrl_apex_miniworld.expert import call_text, observe, play
from skyrl_apex_miniworld.gateway.apps import APPS
from skyrl_apex_miniworld.gateway.catalogue import BundledServer, Catalogue
from skyrl_apex_miniworld.gateway.documents import write_parsed
from skyrl_apex_miniworld.gateway.world import open_world
from skyrl_apex_miniworld.paperwork import write_company
from skyrl_apex_miniworld.questions import SHEETS, Call
from skyrl_apex_miniworld.tasks import ALLOWED_TOOLS, SERVERS

SPLIT = draw_split(0, held_out=True)
WORLD, COMPANY = next(iter(SPLIT.companies.items()))
TASKS = [task for task in SPLIT.tasks if task.world == WORLD]


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    root = tmp_path_factory.mktemp("files")
    write_company(COMPANY, root / "filesystem")
    write_parsed(str(root / "filesystem"), str(root / "parsed.json"))
    world = open_world(str(root / "filesystem"), str(root / "parsed.json"))
    return Catalogue({name: BundledServer(APPS[name](world)) for name in SERVERS}, ALLOWED_TOOLS)


def answer_of(catalogue: Catalogue, call: Call) -> str:
    (tool,) = [tool for tool in catalogue.tools() if tool["name"] == call.tool]
    enveloped = "request" in tool["inputSchema"]["properties"]
    arguments = {"request": call.arguments} if enveloped else call.arguments
    result = catalogue.call(call.tool, arguments)
    assert not result["isError"], result
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.slug)
def test_observations_are_the_gateways(catalogue: Catalogue, task: object) -> None:
    for plan in (task.question.plan, task.question.trap):  # type: ignore[attr-defined]
        for turn in play(COMPANY, plan):
            if turn.call is not None:
                assert answer_of(catalogue, turn.call) == turn.observation


def test_a_file_in_the_wrong_folder_is_an_error_there_too(catalogue: Catalogue) -> None:
    call = Call(
        SHEETS, {"action": "lookup", "file_path": "/sales.xlsx", "row": "A", "column": "Jan"}
    )
    assert observe(COMPANY, call) == answer_of(catalogue, call)


def test_the_answer_is_read_from_the_last_observation() -> None:
    for task in TASKS:
        *calls, last = play(COMPANY, task.question.plan)
        assert last.observation is None
        assert last.text == task.question.answer
        assert task.question.answer.removesuffix("000") in calls[-1].observation  # type: ignore[operator]


def test_calls_are_written_as_the_qwen3_family_writes_them() -> None:
    text = call_text(Call("files_read_file", {"path": "/a.txt"}))
    (body,) = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text).groups()  # type: ignore[union-attr]
    assert json.loads(body) == {"name": "files_read_file", "arguments": {"path": "/a.txt"}}


def test_changed_documents_are_read_anew(tmp_path: Path) -> None:
    write_company(COMPANY, tmp_path / "filesystem")
    write_parsed(str(tmp_path / "filesystem"), str(tmp_path / "parsed.json"))
    world = open_world(str(tmp_path / "filesystem"), str(tmp_path / "parsed.json"))
    before = world.documents.tabs("/Finance/sales.xlsx")
    assert before[0].rows[0][0] == "Client"
    (tmp_path / "filesystem/Finance/sales.xlsx").write_bytes(
        (tmp_path / "filesystem/Finance/assets.xlsx").read_bytes()
    )
    assert world.documents.tabs("/Finance/sales.xlsx")[0].name == "Assets"
    import openpyxl

    workbook = openpyxl.Workbook()
    workbook.worksheets[0].append(["new", 1])
    workbook.save(tmp_path / "filesystem/Finance/sales.xlsx")
    assert world.documents.tabs("/Finance/sales.xlsx")[0].rows == [["new", 1]]
