"""The report in headless Chromium, without network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_plugin.report.html import write_report
from skyrl_apex_plugin.report.run import load_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

OPEN_ALL = """
setTimeout(() => document.querySelectorAll("main details").forEach((d) => d.open = true), 500)
"""
KEEP = os.environ.get("APEX_SCREENSHOTS")
"""Directory for screenshots that a person wants to look at."""


@pytest.fixture(scope="module")
def report(run_dir: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(load_run(run_dir), target, tokenizer=str(tokenizer_dir), pages=12)


def chromium(report: Path, tmp_path: Path, fragment: str = "", script: str = "") -> str:
    """The page's DOM once its scripts ran. ``script`` is run at the end, as a user would click."""
    page = report
    if script:
        page = tmp_path / "report.html"
        text = report.read_text()
        page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=4000",
        "--window-size=1400,1700",
        "--hide-scrollbars",
    ]
    url = f"{page.as_uri()}{fragment}"
    dump = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    faults = [line for line in dump.stderr.splitlines() if "CONSOLE" in line]
    assert not faults, faults
    if KEEP:
        name = Path(KEEP) / f"{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png"
        subprocess.run([*command, f"--screenshot={name}", url], capture_output=True, timeout=120)
    return dump.stdout


def rows(dom: str) -> list[str]:
    table = re.search(r'<table id="trials">.*?<tbody>(.*?)</tbody>', dom, re.S)
    assert table
    return re.findall(r"<tr>(.*?)</tr>", table[1], re.S)


def test_overview_shows_curves_and_all_trials(report: Path, tmp_path: Path) -> None:
    dom = chromium(report, tmp_path)
    assert "<title>demo run</title>" in dom, "a hostile trial must not have run its script"
    assert len(rows(dom)) == 108
    assert dom.count("<polyline") >= 12
    assert "108 of 108 trials, 12 with a page" in dom
    assert '<option value="policy/final_loss">' in dom


def test_filters_and_sorting(report: Path, tmp_path: Path) -> None:
    script = """
      $("filter-kind").value = "law"; $("filter-outcome").value = "complete";
      $("filter-outcome").dispatchEvent(new Event("change"));
      [...document.querySelectorAll("th")].find((th) => th.textContent === "reward").click();
    """
    found = rows(chromium(report, tmp_path, script=script))
    assert 0 < len(found) < 108
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in found]
    assert {(each[4], each[5]) for each in cells} == {("law", "complete")}
    rewards = [float(each[8]) for each in cells]
    assert rewards == sorted(rewards, reverse=True)


def test_trajectory_page_shows_tokens_with_mask_and_shading(
    report: Path, tmp_path: Path, run_dir: Path
) -> None:
    name = _page_of(report, run_dir, outcome="complete")
    script = """
      new MutationObserver(() => document.querySelectorAll("details").forEach((d) => d.open = true))
        .observe($("page"), { childList: true });
    """
    dom = chromium(report, tmp_path, f"#{name}", script)
    assert "<h2>Verdict</h2>" in dom and "★ States the total" in dom
    assert "<h2>Reward</h2>" in dom and "<h2>Final answer</h2>" in dom
    assert "excel_read" in dom and "/Finance/pnl.xlsx" in dom
    assert "<title>demo run</title>" in dom
    sampled = re.findall(
        r'<span class="t" title="token \d+, logprob ([-\d.]+), mask 1"([^>]*)>', dom
    )
    assert len(sampled) == 40 * _turns(run_dir, name)
    shades = {float(logprob): style for logprob, style in sampled}
    assert "rgba(255, 114, 92" in shades[min(shades)] and shades[min(shades)] != shades[max(shades)]
    assert len(re.findall(r'<span class="masked" title="token \d+, mask 0">', dom)) == (
        30 + 60 * _turns(run_dir, name)
    )


def test_a_failed_trials_page_says_why(report: Path, tmp_path: Path, run_dir: Path) -> None:
    dom = chromium(report, tmp_path, f"#{_page_of(report, run_dir, outcome='setup_error')}")
    assert "SetupError: server mail did not come up" in dom
    assert "No score: judge is down" in dom


def _page_of(report: Path, run_dir: Path, outcome: str) -> str:
    """A trial with this outcome; the report is written again when none of its pages has it."""
    name = next(
        str(each["trial"]) for each in load_run(run_dir).trials if each["outcome"] == outcome
    )
    if f'data-trial="{name}"' not in report.read_text():
        write_report(load_run(run_dir), report, only=[name])
    return name


def _turns(run_dir: Path, name: str) -> Any:
    return next(each["turns"] for each in load_run(run_dir).trials if each["trial"] == name)
