"""What the report says of a run, and that nothing in a run can turn into markup."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skyrl_apex_plugin.cli.report import report
from skyrl_apex_plugin.report.charts import bar_chart, by_step, line_chart, phase_seconds
from skyrl_apex_plugin.report.html import render
from skyrl_apex_plugin.report.run import load_run


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(report, [str(each) for each in arguments])


def html(run_dir: Path, **settings: Any) -> str:
    fields = {"pages": 40, "only": (), "tokenizer": None}
    return render(load_run(run_dir), **{**fields, **settings})


def embedded(text: str, name: str) -> Any:
    found = re.search(rf'id="data-{name}">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def pages(text: str) -> dict[str, Any]:
    found = re.findall(r'class="trajectory" data-trial="(.*?)">(.*?)</script>', text, re.S)
    return {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in found}


def test_every_trial_is_in_the_table_and_every_metric_in_the_picker(run_dir: Path) -> None:
    text = html(run_dir)
    trials = embedded(text, "trials")
    assert len(trials) == 12 * 8 + 3 * 4
    assert {each["phase"] for each in trials} == {"train", "eval"}
    assert embedded(text, "metrics")["policy/final_loss"][1] == [2, 0.5]
    for title in (
        "Reward and score",
        "Reward terms",
        "Share of trials",
        "Policy loss",
        "Seconds of a trial, by phase",
        "Tool calls, by server",
        "How trials ended, by world kind",
    ):
        assert f"<figcaption>{title}</figcaption>" in text


def test_a_page_holds_turns_calls_tokens_verdict_and_terms(
    run_dir: Path, tokenizer_dir: Path
) -> None:
    name = next(
        each["trial"]
        for each in load_run(run_dir).trials
        if each["outcome"] == "complete" and each["turns"] == 2
    )
    (page,) = pages(html(run_dir, only=[name], tokenizer=str(tokenizer_dir))).values()
    assert [turn["calls"][0]["arguments"]["row"] for turn in page["turns"]] == [0, 1]
    assert [turn["results"][0]["ok"] for turn in page["turns"]] == [True, False]
    tokens = page["tokens"]
    assert len(tokens["ids"]) == len(tokens["logprobs"]) == 30 + 2 * 100
    assert tokens["turns"][0] == {
        "start": 30,
        "end": 70,
        "observation_end": 130,
        "weight_version": 3,
    }
    assert len(tokens["texts"]) == len(set(tokens["ids"]))
    assert page["verdict"]["criteria"][0]["primary"] is True
    assert page["reward"]["terms"] == [{"name": "turns", "value": -0.02}]


def test_no_text_of_a_run_becomes_markup(run_dir: Path) -> None:
    text = html(run_dir)
    assert "<img" not in text and "owned'</script>" not in text
    assert text.count("<script>") == 1  # our own
    assert "default-src 'none'" in text


def test_the_file_asks_for_nothing_from_the_network(run_dir: Path) -> None:
    text = html(run_dir)
    links = re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)([^"']*)""", text)
    assert not links, links
    assert "url(" not in text and "@import" not in text and "fetch(" not in text


def test_pages_are_spread_over_the_run_and_bounded(run_dir: Path) -> None:
    chosen = list(pages(html(run_dir, pages=6)))
    assert len(chosen) == 6
    assert chosen[0].startswith("train1-") and "12" in chosen[-1]
    assert pages(html(run_dir, pages=0)) == {}
    with pytest.raises(ValueError, match="no directory of the trials nobody"):
        html(run_dir, only=["nobody"])


def test_summary_counts_ungraded_trials_as_failed_in_the_lower_bound(run_dir: Path) -> None:
    trials = load_run(run_dir).trials
    graded = [each for each in trials if each["score"] is not None]
    passed = sum(each["score"] >= 1 for each in graded)
    text = html(run_dir)
    shown = dict(re.findall(r'"number">(.*?)</div><div class="quiet">(.*?)<', text))
    shown = {name: value for value, name in shown.items()}
    assert shown["graded"] == f"{len(graded)} of {len(trials)}"
    assert shown["pass@1 of graded"] == f"{passed / len(graded):.3f}"
    assert shown["lower bound"] == f"{passed / len(trials):.3f}"


def test_command_writes_beside_the_run_and_explains_a_wrong_directory(
    run_dir: Path, tmp_path: Path
) -> None:
    result = run(run_dir, "--pages", 1, "-o", tmp_path / "out.html")
    assert result.exit_code == 0 and (tmp_path / "out.html").stat().st_size > 50_000
    (tmp_path / "empty").mkdir()
    result = run(tmp_path / "empty")
    assert result.exit_code == 1 and "no trials.jsonl and no trial directories" in result.stderr
    result = run(run_dir, "--tokenizer", tmp_path / "empty", "-o", tmp_path / "out.html")
    assert result.exit_code == 1 and "does not load" in result.stderr


def test_a_killed_runs_torn_last_line_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    lines = (run_dir / "trials.jsonl").read_bytes()
    (tmp_path / "trials.jsonl").write_bytes(lines[:-30])
    assert len(load_run(tmp_path).trials) == 12 * 8 + 3 * 4 - 1


ENDED: dict[str, Any] = {
    "event": "ended",
    "trial": "t",
    "outcome": "complete",
    "treatment": "train",
}


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("trials.jsonl", '{"event": "end', "Unterminated string"),
        ("trials.jsonl", "[1]", "expected an object, found list"),
        ("trials.jsonl", "[" * 100_000, "nested too deeply"),
        ("trials.jsonl", json.dumps({**ENDED, "reward": "1"}), "reward='1': expected a number"),
        ("trials.jsonl", json.dumps({**ENDED, "terms": [1]}), "terms=[1]: expected an object"),
        ("trials.jsonl", json.dumps({**ENDED, "seconds": {"a": "b"}}), "seconds.a='b'"),
        ("trials.jsonl", json.dumps({"event": "ended"}), "trial=None: expected a text"),
        ("metrics.jsonl", '"loss"', "expected an object, found str"),
        ("metrics.jsonl", '{"step": "1", "metrics": {}}', "step='1': expected a number"),
        ("metrics.jsonl", '{"step": 1, "metrics": {"a": "b"}}', "metrics.a='b'"),
    ],
)
def test_a_damaged_line_is_named_and_counted_and_the_rest_is_shown(
    tmp_path: Path, name: str, line: str, reason: str
) -> None:
    good = {
        "trials.jsonl": json.dumps({**ENDED, "step": 1, "reward": 0.5}),
        "metrics.jsonl": json.dumps({"step": 1, "metrics": {"policy/final_loss": 1}}),
    }
    for each, text in good.items():
        lines = [text, line, text] if each == name else [text, text]
        (tmp_path / each).write_text("\n".join([*lines, ""]))
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert f"1 unreadable entries left out; first: {name}:2: " in result.stderr
    assert reason in result.stderr
    text = (tmp_path / "report.html").read_text()
    assert "1 unreadable entries are left out" in text and f"<li>{name}:2: " in text
    assert len(embedded(text, "trials")) == 2
    assert embedded(text, "metrics") == {"policy/final_loss": [[1, 1]]}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "null"])
def test_a_number_that_is_not_finite_counts_as_missing(tmp_path: Path, value: str) -> None:
    end = json.dumps({**ENDED, "step": 1})[:-1]
    (tmp_path / "trials.jsonl").write_text(
        f'{end}, "reward": {value}, "score": {value}, "terms": {{"a": {value}}}, '
        f'"seconds": {{"total": {value}}}}}\n{end}, "reward": 1.0}}\n'
    )
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "metrics": {{"loss": {value}}}}}\n')
    text = html(tmp_path)
    assert [each["reward"] for each in embedded(text, "trials")] == [None, 1.0]
    assert embedded(text, "metrics") == {} and "unreadable" not in text


def test_a_damaged_page_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    for name, turns in (("a", '{"kind": "mod\n{}\n'), ("b", '{"kind": "model", "seconds": NaN}\n')):
        (tmp_path / "trials" / name / "agent").mkdir(parents=True)
        (tmp_path / "trials" / name / "agent" / "turns.jsonl").write_text(turns)
    lines = [json.dumps({**ENDED, "trial": name, "reason": "\ud83d <b>"}) for name in "ab"]
    (tmp_path / "trials.jsonl").write_text("\n".join([*lines, ""]))
    assert run(tmp_path).exit_code == 0
    text = (tmp_path / "report.html").read_text()
    assert list(pages(text)) == ["b"] and pages(text)["b"]["turns"][0]["seconds"] is None
    assert "<li>page of a: ValueError" in text and "<b>" not in str(text).split("data-trials")[1]


def test_a_place_that_cannot_be_written_is_an_error_without_a_traceback(
    run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = run(run_dir, "--pages", 0, "-o", tmp_path / "file" / "out.html")
    assert result.exit_code == 1 and result.stderr.startswith("Error: ")
    assert "file" in result.stderr


def test_line_charts_cope_with_one_point_equal_values_and_gaps() -> None:
    assert line_chart("t", {"a": []}) is None
    assert line_chart("t", {"a": [(1, float("nan"))]}) is None
    for points in ([(3, 0.5)], [(1, 0.0), (2, 0.0)], [(1, 1.0), (9, float("inf")), (10, -4.0)]):
        chart = line_chart("t", {"a": points, "empty": []})
        assert chart is not None and len(chart.series) == 1
        assert all(0 <= x <= 420 and 0 <= y <= 180 for x, y, _ in chart.series[0].dots)
        assert chart.y_ticks


def test_means_by_step_leave_out_what_has_no_value() -> None:
    trials = [
        {"step": 1, "reward": 1.0},
        {"step": 1, "reward": None},
        {"step": 1, "reward": 0.0},
        {"step": None, "reward": 9.0},
    ]
    assert by_step(trials, lambda each: each["reward"]) == [(1, 0.5)]


def test_phases_do_not_overlap_and_add_up_to_the_total() -> None:
    seconds = {"setup": 3, "agent": 9, "model": 5, "tools": 2.5, "verifier": 1, "total": 14}
    parts = phase_seconds(seconds)
    assert parts["agent, other"] == 1.5 and parts["other"] == 1.0
    assert sum(parts.values()) == 14


def test_bars_share_one_scale() -> None:
    chart = bar_chart("t", [("a", {"x": 1.0, "y": 3.0}, ""), ("b", {"x": 2.0}, "")])
    assert chart is not None
    widths = [[segment[2] for segment in segments] for _, segments, _ in chart.rows]
    assert widths == [[25.0, 75.0], [50.0]]
    assert bar_chart("t", [("a", {"x": 0.0}, "")]) is None
