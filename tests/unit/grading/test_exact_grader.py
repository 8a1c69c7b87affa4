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
        ("a share of .75", {"kind": "number", "value": 0.75}, True),
        ("see No.75", {"kind": "number", "value": 75}, True),
        ("a loss of \u22125", {"kind": "number", "value": -5}, True),
        ("a loss of -5", {"kind": "number", "value": -5}, True),
        ("a loss of -$1,234", {"kind": "number", "value": -1234}, True),
        ("5-10", {"kind": "number", "value": 10}, True),
        ("5%-10%", {"kind": "number", "value": 10}, True),
        ("1, -5", {"kind": "number", "value": -5}, True),
        ("1,2,3", {"kind": "number", "value": 3}, True),
        ("12,34,567", {"kind": "number", "value": 1234567}, True),
        ("1.5e\u22123", {"kind": "number", "value": "0.0015"}, True),
        ("The total is 42.", {"kind": "number", "value": 42}, True),
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
        ({"kind": "regex", "value": "("}, "unterminated subpattern"),
        ({"kind": "equals"}, "value is missing"),
        ({"kind": "file"}, "path is missing"),
        ({"kind": "file", "path": "/a", "value": "a\nb"}, "one line"),
        ({"kind": "number", "value": "four"}, "to float: .four."),
        ({"kind": "number", "value": 4, "tolerence": 0.1}, "unknown fields tolerence"),
        ({"kind": "number", "value": 4, "tolerance": -0.1}, "tolerance=-0.1"),
        ({"kind": "number", "value": 4, "tolerance": float("nan")}, "tolerance=nan"),
        ({"kind": "number", "value": "nan"}, "value='nan'"),
        ({"kind": "number", "value": float("inf")}, "value=inf"),
        ({"kind": "number", "value": True}, "value=True"),
        ({"kind": "equals", "value": None}, "value=None"),
        ({"kind": "equals", "value": "4", "ignore_case": "false"}, "ignore_case='false'"),
        ({"kind": "equals", "value": "4", "primary": 1}, "primary=1"),
        ({"kind": "equals", "value": "4", "weight": 0}, "weight=0"),
        ({"kind": "equals", "value": "4", "weight": -1}, "weight=-1"),
        ({"kind": "equals", "value": "4", "weight": float("inf")}, "weight=inf"),
        ("equals", "expected an object"),
    ],
)
async def test_faulty_checks_are_errors(bench: Any, check: Any, message: str) -> None:
    """A right answer beside a faulty check gives no score, and the error says where to look."""
    good = {"kind": "equals", "value": "4"}
    with pytest.raises(VerifierError, match=message) as raised:
        await score(bench, "4", check, good)
    assert "apex.grader.kwargs.checks: check 0" in str(raised.value)
    path = bench.task_dir / "tests" / "exact.json"
    path.write_text(json.dumps([good, check]))
    with pytest.raises(VerifierError, match=message) as raised:
        await ExactGrader().grade(bench.finished(answer="4"))
    assert f"{path}: check 1" in str(raised.value)


async def test_missing_and_empty_checks_are_errors(bench: Any) -> None:
    with pytest.raises(VerifierError, match=r"exact\.json; write one"):
        await ExactGrader().grade(bench.finished())
    with pytest.raises(VerifierError, match="empty"):
        await score(bench, "4")
    (bench.task_dir / "tests" / "exact.json").write_text("{}")
    with pytest.raises(VerifierError, match=r"exact\.json: expected a list of checks, found dict"):
        await ExactGrader().grade(bench.finished())
