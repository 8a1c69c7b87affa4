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
    (tmp_path / "trials.jsonl").write_bytes(b"{oops\n" + lines)
    with pytest.raises(ValueError, match=r"trials\.jsonl:1: not JSON"):
        load_run(tmp_path)


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
