"""``verdict.json`` and the atomic writes under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyrl_apex_hookspecs import CriterionResult, Verdict
from skyrl_apex_plugin.files import write_atomic
from skyrl_apex_plugin.grading.verdict_file import read_verdict, verdict_path, write_verdict

GRADED = Verdict(
    grader="rubric",
    score=0.5,
    criteria=(
        CriterionResult(criterion_id="a", score=1.0, rationale="naïve “quotes”", primary=True),
        CriterionResult(criterion_id="b", score=None, status="error", weight=2.0),
    ),
    metrics={"judge_seconds": 1.5},
)
FAILED = Verdict(grader="task", error="status 'error'")
TORN = Verdict(
    grader="rubric",
    score=1.0,
    criteria=(CriterionResult(criterion_id="\udc00", score=1.0, rationale="half an emoji \ud83d"),),
)


@pytest.mark.parametrize("verdict", [GRADED, FAILED, TORN])
def test_round_trip(tmp_path: Path, verdict: Verdict) -> None:
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path) == verdict
    assert json.loads(verdict_path(tmp_path).read_text())["schema"] == 1


def test_absent_is_none_and_other_schema_is_named(tmp_path: Path) -> None:
    assert read_verdict(tmp_path) is None
    write_atomic(verdict_path(tmp_path), '{"schema": 2}')
    with pytest.raises(ValueError, match=r"verdict\.json: schema 2, this version reads schema 1"):
        read_verdict(tmp_path)


def test_a_file_with_both_score_and_error_is_refused(tmp_path: Path) -> None:
    write_verdict(tmp_path, FAILED)
    document = json.loads(verdict_path(tmp_path).read_text())
    write_atomic(verdict_path(tmp_path), json.dumps({**document, "score": 0.0}))
    with pytest.raises(ValueError, match=r"verdict\.json: not a verdict"):
        read_verdict(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomic(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "\ud800")
    target.chmod(0o600)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "folder", "new")
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "folder"]
