"""Grader ``exact``: checks of the answer and of files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skyrl_apex_hookspecs import VerifierError
from skyrl_apex_plugin.grading.exact import ExactGrader


async def score(bench: Any, answer: str | None, *checks: dict[str, Any], **kwargs: Any) -> float:
    grader = ExactGrader(checks=checks, **kwargs)
    verdict = await grader.grade(bench.finished(answer=answer, trajectory=bench.trajectory()))
    assert verdict.score is not None
    return verdict.score


async def test_an_agent_that_recorded_nothing_is_not_one_that_said_nothing(bench: Any) -> None:
    grader = ExactGrader(checks=[{"kind": "contains", "value": "4"}])
    with pytest.raises(VerifierError, match="no answer on record"):
        await grader.grade(bench.finished(answer=None, trajectory=None))


@pytest.mark.parametrize(
    ("answer", "check", "passes"),
    [
        (" Oslo\n", {"kind": "equals", "value": "Oslo"}, True),
        ("oslo", {"kind": "equals", "value": "Oslo"}, False),
        ("oslo", {"kind": "equals", "value": "Oslo", "ignore_case": True}, True),
        ("It is Oslo.", {"kind": "contains", "value": "Oslo"}, True),
        ("Q3: 12%", {"kind": "regex", "value": r"\b\d+%"}, True),
        ("From 3 to 1,234.50", {"kind": "number", "value": 1234.5}, True),
        ("1,234.50 in 2024", {"kind": "number", "value": 1234.5}, False),
        ("about 101", {"kind": "number", "value": 100, "tolerance": 0.02}, True),
        ("no figure", {"kind": "number", "value": 0}, False),
        (None, {"kind": "contains", "value": ""}, False),
    ],
)
async def test_answer_checks(bench: Any, answer: Any, check: Any, passes: bool) -> None:
    assert await score(bench, answer, check) == float(passes)


async def test_file_checks_look_into_the_sandbox(bench: Any) -> None:
    (bench.sandbox.root / "work" / "my note.txt").write_text("total: 42\n")
    path = "/work/my note.txt"
    assert await score(bench, None, {"kind": "file", "path": path}) == 1.0
    assert await score(bench, None, {"kind": "file", "path": path, "value": "total: 42"}) == 1.0
    assert await score(bench, None, {"kind": "file", "path": path, "value": "total: 43"}) == 0.0
    assert await score(bench, None, {"kind": "file", "path": "/work/other"}) == 0.0


async def test_weights_and_all_or_nothing(bench: Any) -> None:
    good = {"kind": "contains", "value": "4", "weight": 3}
    bad = {"kind": "contains", "value": "5"}
    assert await score(bench, "4", good, bad) == 0.75
    assert await score(bench, "4", good, bad, scoring="all") == 0.0
    assert await score(bench, "4", good, good, scoring="all") == 1.0


async def test_checks_come_with_the_task(bench: Any) -> None:
    checks = [{"kind": "equals", "value": "4", "id": "sum", "primary": True}]
    (bench.task_dir / "tests" / "exact.json").write_text(json.dumps(checks))
    verdict = await ExactGrader().grade(bench.finished())
    assert verdict.score == 1.0
    assert (verdict.criteria[0].criterion_id, verdict.criteria[0].primary) == ("sum", True)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"kind": "equal", "value": 4}, "unknown kind 'equal'; known: equals"),
        ({"kind": "regex", "value": "("}, "check 0"),
        ({"kind": "equals"}, "KeyError\\('value'\\)"),
        ({"kind": "number", "value": "four"}, "check 0"),
    ],
)
async def test_faulty_checks_are_errors(bench: Any, check: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        await score(bench, "4", check)


async def test_missing_and_empty_checks_are_errors(bench: Any) -> None:
    with pytest.raises(VerifierError, match=r"exact\.json; write one"):
        await ExactGrader().grade(bench.finished())
    with pytest.raises(VerifierError, match="empty"):
        await score(bench, "4")
