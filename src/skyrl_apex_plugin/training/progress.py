"""What a user sees of a run: a live line, and a table for each step. Reads the run's record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from skyrl_apex_plugin.rollout.metrics import plain_name

STEP_DONE = "timing/step"
"""SkyRL logs a step's timings last."""

PASSED_OVER = ("complete", "length", "max_turns", "context_length")
"""Outcomes that are no failures."""

Metrics = dict[str, float]


class Follower:
    """New whole lines of a growing JSON-lines file, without those that a killed run left torn: the
    report of the run counts them, and a view must not end what it shows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._position)
            data = stream.read()
        whole, _, _ = data.rpartition(b"\n")
        if whole:
            self._position += len(whole) + 1
            for line in whole.split(b"\n"):
                with suppress(ValueError):
                    yield json.loads(line)


class RunView:
    """Shows a run while it goes on. Call :meth:`refresh` now and then.

    :param run_dir: where the run keeps its record.
    :param steps: number of steps that are planned, when known.
    """

    def __init__(self, run_dir: Path, console: Console, *, steps: int | None = None) -> None:
        self._metrics_file = Follower(run_dir / "metrics.jsonl")
        self._trials_file = Follower(run_dir / "trials.jsonl")
        self._console = console
        self._steps = steps
        self._ended: Counter[str] = Counter()
        self._running = 0
        self._step: dict[int, Metrics] = {}
        self._done = 0
        self._spinner = Spinner("dots", "starting")
        self._live = Live(self._spinner, console=console, refresh_per_second=4, transient=True)
        self.steps: list[tuple[int, Metrics]] = []
        """Finished steps with their metrics."""
        self.evaluations: list[Metrics] = []
        """Metrics of each evaluation."""

    def __enter__(self) -> RunView:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """Take in what the run wrote since the last call."""
        for line in self._trials_file.new_lines():
            self._take_trial(line)
        for line in self._metrics_file.new_lines():
            # The record writes numbers that are not finite as null.
            found = {key: nan if value is None else value for key, value in line["metrics"].items()}
            self._take_metrics(line["step"] or 0, found)
        self._spinner.update(text=self._status())

    def _take_trial(self, line: Mapping[str, Any]) -> None:
        if line["event"] == "started":
            self._running += 1
        else:
            self._running -= 1 + len(line["retried"])
            self._ended[line["outcome"]] += 1

    def _take_metrics(self, step: int, metrics: Metrics) -> None:
        known = self._step.setdefault(step, {})
        known.update(metrics)
        if STEP_DONE in metrics:
            self._done = step
            self.steps.append((step, known))
            self._live.console.print(step_table(step, self._steps, known))
        if any(key.startswith("eval/all/apex/") for key in metrics):
            self.evaluations.append(metrics)
            self._live.console.print(evaluation_line(step, known))

    def _status(self) -> str:
        if not self._ended and not self._running:
            return "starting engine and trainer"
        of = f" of {self._steps}" if self._steps else ""
        outcomes = ", ".join(f"{count} {name}" for name, count in self._ended.most_common())
        return (
            f"step {self._done + 1}{of}: {self._running} trials running, "
            f"{sum(self._ended.values())} ended{f' ({outcomes})' if outcomes else ''}"
        )


def step_table(step: int, steps: int | None, metrics: Mapping[str, float]) -> Table:
    """One step: what was rolled out, what failed, and where the time went."""
    table = Table(title=f"step {step}{f' of {steps}' if steps else ''}", title_justify="left")
    table.add_column("rollouts", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("training", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("seconds", no_wrap=True)
    table.add_column("", justify="right")
    columns = [_rollouts(metrics), _training(metrics), _seconds(metrics)]
    for index in range(max(map(len, columns))):
        cells: list[str] = []
        for column in columns:
            cells += column[index] if index < len(column) else ("", "")
        table.add_row(*cells)
    return table


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    """An evaluation in one line."""
    prefix = "eval/all/apex/"
    graded = metrics.get(f"{prefix}sum/graded/trials", 0)
    ended = metrics.get(f"{prefix}sum/trials/ended", 0)
    return (
        f"evaluation after step {step}: "
        f"pass@1 {_number(metrics, f'{prefix}pass_at_1', '.3f')} "
        f"over {graded:g} of {ended:g} graded, at least "
        f"{_number(metrics, f'{prefix}pass_at_1_lower_bound', '.3f')}"
    )


def _rollouts(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = [
        ("reward", _number(metrics, "apex/reward", ".3f")),
        ("pass rate", _number(metrics, "apex/pass_at_1", ".3f")),
        ("turns", _number(metrics, "apex/turns", ".1f")),
        ("tokens", _number(metrics, "apex/response_tokens", ".0f")),
        ("tool calls", _number(metrics, "apex/tool_calls", ".1f")),
        ("tool success", _number(metrics, "apex/tool_success", ".3f")),
    ]
    return rows


def _training(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    prefix = "apex/sum/outcome/"
    outcomes = {
        plain_name(key.removeprefix(prefix)): value
        for key, value in metrics.items()
        if key.startswith(prefix)
    }
    failures = [
        (name, f"{value:.0f}") for name, value in outcomes.items() if name not in PASSED_OVER
    ]
    return [
        ("loss", _number(metrics, "policy/policy_loss", ".4f")),
        ("gradient norm", _number(metrics, "policy/grad_norm", ".3f")),
        ("trained rows", _trained(metrics)),
        ("staleness", _number(metrics, "async/staleness_mean", ".2f")),
        *(failures or [("failures", "none")]),
    ]


def _trained(metrics: Mapping[str, float]) -> str:
    ended = metrics.get("apex/sum/trials/ended", 0.0)
    return f"{ended - metrics.get('apex/sum/trials/masked', 0.0):.0f} of {ended:.0f}"


def _seconds(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    generation = "timing/wait_for_generation_buffer"
    if generation not in metrics:
        generation = "timing/generate"
    training = "timing/run_training"
    if training not in metrics:
        training = "timing/train_critic_and_policy"
    return [
        ("generation", _number(metrics, generation, ".1f")),
        ("training", _number(metrics, training, ".1f")),
        ("weight sync", _number(metrics, "timing/sync_weights", ".1f")),
        ("step", _number(metrics, STEP_DONE, ".1f")),
        ("a trial's model", _number(metrics, "apex/seconds/model", ".1f")),
        ("a trial's tools", _number(metrics, "apex/seconds/tools", ".1f")),
    ]


def _number(metrics: Mapping[str, float], key: str, form: str) -> str:
    return format(metrics[key], form) if key in metrics else "-"
