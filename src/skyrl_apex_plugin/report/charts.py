"""Charts as plain numbers: the template draws them as SVG."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLOURS = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5",
    "#9c6b4e", "#9498a0",
)  # fmt: skip
WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 24

Point = tuple[float, float]
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    colour: str
    path: str
    """Points of an SVG polyline."""
    dots: list[tuple[float, float, str]]
    """Place and label of each value."""


@dataclass(frozen=True, slots=True)
class LineChart:
    title: str
    series: list[Series]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Rows of stacked bars: label, segments (colour, offset, width, remark), remark of the row."""

    title: str
    legend: list[tuple[str, str]]
    rows: list[tuple[str, list[tuple[str, float, float, str]], str]]


def line_chart(title: str, lines: Mapping[str, Sequence[Point]]) -> LineChart | None:
    """A chart of named lines; ``None`` when no line has a point."""
    lines = {
        name: [point for point in points if all(map(math.isfinite, point))]
        for name, points in lines.items()
    }
    everything = [point for points in lines.values() for point in points]
    if not everything:
        return None
    x_low, x_high = _range([x for x, _ in everything])
    y_low, y_high = _range([y for _, y in everything])

    def place(point: Point) -> Point:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    series = [
        Series(
            name,
            COLOURS[index % len(COLOURS)],
            " ".join(f"{x},{y}" for x, y in map(place, points)),
            [(*place(point), f"{name}, step {point[0]:g}: {point[1]:.4g}") for point in points],
        )
        for index, (name, points) in enumerate(lines.items())
        if points
    ]
    return LineChart(
        title,
        series,
        [(place((x, y_low))[0], f"{x:g}") for x in _ticks(x_low, x_high, whole=True)],
        [(place((x_low, y))[1], f"{y:.4g}") for y in _ticks(y_low, y_high)],
    )


def bar_chart(
    title: str, rows: Iterable[tuple[str, Mapping[str, float], str]], names: Sequence[str] = ()
) -> BarChart | None:
    """Stacked bars, all on one scale. ``names`` fixes which segments there are, and their order."""
    rows = list(rows)
    fixed = bool(names)
    names = names or list(dict.fromkeys(name for _, parts, _ in rows for name in parts))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    longest = max((sum(parts.values()) for _, parts, _ in rows), default=0.0)
    if longest <= 0:
        return None
    drawn = []
    for label, parts, remark in rows:
        offset, segments = 0.0, []
        for name in names:
            width = 100 * parts.get(name, 0.0) / longest
            if width > 0:
                shown = f"{name}: {parts[name]:.4g}"
                segments.append((colours[name], round(offset, 2), round(width, 2), shown))
            offset += width
        drawn.append((label, segments, remark))
    legend = [(name, colours[name]) for name in names] if fixed or len(names) > 1 else []
    return BarChart(title, legend, drawn)


def by_step(trials: Iterable[Entry], value: Callable[[Entry], float | None]) -> list[Point]:
    """Mean of a value over the trials of each step; trials without a step or value are left out."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for trial in trials:
        number = value(trial)
        if trial.get("step") is not None and number is not None:
            found[trial["step"]].append(number)
    return [(step, math.fsum(values) / len(values)) for step, values in sorted(found.items())]


def outcome_bars(trials: Sequence[Entry]) -> BarChart | None:
    """How trials ended, by world kind."""
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        kinds[trial.get("kind") or "unknown"][trial["outcome"]] += 1
    names = [name for name, _ in Counter(trial["outcome"] for trial in trials).most_common()]
    rows = [(kind, counts, f"{counts.total()} trials") for kind, counts in sorted(kinds.items())]
    return bar_chart("How trials ended, by world kind", rows, names)


def score_bars(trials: Sequence[Entry], bins: int = 10) -> BarChart | None:
    """Trials by score, in tenths of the range from 0 to 1."""
    scores = [trial["score"] for trial in trials if trial.get("score") is not None]
    counts = Counter(min(max(int(score * bins), 0), bins - 1) for score in scores)
    rows = [
        (f"{bin_ / bins:g} to {(bin_ + 1) / bins:g}", {"trials": counts[bin_]}, str(counts[bin_]))
        for bin_ in range(bins)
    ]
    return bar_chart("Scores of graded trials", rows)


PHASES = ("setup", "model", "tools", "agent, other", "verifier", "other")


def phase_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a trial by phases that do not overlap: the agent's time holds its model calls
    and tools, the total holds everything."""
    parts = {name: seconds.get(name, 0.0) for name in ("setup", "model", "tools", "verifier")}
    agent = seconds.get("agent", 0.0) - parts["model"] - parts["tools"]
    parts["agent, other"] = max(agent, 0.0)
    parts["other"] = max(seconds.get("total", 0.0) - sum(parts.values()), 0.0)
    return parts


def phase_bars(trials: Sequence[Entry], most_rows: int = 24) -> BarChart | None:
    """Mean seconds of a trial by phase: one bar for each step, or one for all."""
    groups: defaultdict[Any, list[dict[str, float]]] = defaultdict(list)
    for trial in trials:
        groups[trial.get("step")].append(phase_seconds(trial.get("seconds") or {}))
    steps = sorted(groups, key=lambda step: -1 if step is None else step)
    if len(steps) > most_rows:
        stride = -(-len(steps) // most_rows)
        steps = steps[::stride]
    rows = []
    for step in steps:
        of_step = groups[step]
        means = {name: math.fsum(each[name] for each in of_step) / len(of_step) for name in PHASES}
        label = "all trials" if step is None else f"step {step}"
        rows.append((label, means, f"{sum(means.values()):.1f} s"))
    return bar_chart("Seconds of a trial, by phase", rows, PHASES)


def server_bars(servers: Mapping[str, Mapping[str, float]]) -> BarChart | None:
    """Tool calls by server: good and failed, with the mean time of a call."""
    rows = []
    for name, counts in sorted(servers.items(), key=lambda item: -item[1].get("calls", 0)):
        calls, failed = counts.get("calls", 0), counts.get("failed", 0)
        each = counts.get("milliseconds", 0) / max(calls, 1)
        parts = {"succeeded": calls - failed, "failed": failed}
        rows.append((name, parts, f"{calls:g} calls, {each:.0f} ms each"))
    return bar_chart("Tool calls, by server", rows, ("succeeded", "failed"))


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) / 2 or 0.5
        return low - room, high + room
    return low, high


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Some five round numbers between ``low`` and ``high``."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    if whole:
        stride = max(round(stride), 1)
    first = math.ceil(low / stride - 1e-9)
    last = math.floor(high / stride + 1e-9)
    return [index * stride for index in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Band:
    """Runs of one kind: a line for each, and their mean."""

    name: str
    runs: Sequence[Sequence[Point]]


def band_svg(title: str, bands: Sequence[Band]) -> str:
    """A picture of its own, for a page that is not a report: rates between 0 and 1 by step."""
    points = [point for band in bands for run in band.runs for point in run]
    if not points:
        raise ValueError(f"{title!r}: no run has a value to draw")
    last = max(x for x, _ in points)
    # Room for the longest name, whose letters are about 7.5 wide.
    right = 60 + round(7.5 * max((len(band.name) for band in bands), default=0))
    wide, high, left, low = 580 + right, 360, 52, 40
    legend = wide - right + 14

    def place(point: Point) -> str:
        x = left + point[0] / last * (wide - left - right)
        return f"{x:.1f},{high - low - point[1] * (high - low - 36):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="sans-serif" font-size="13" fill="#333">',
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
        f'<text x="{left}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for rate in (0, 0.2, 0.4, 0.6, 0.8, 1):
        height = place((0, rate)).partition(",")[2]
        parts += [
            f'<path d="M{left} {height}H{wide - right}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{height}" dy="4" text-anchor="end">{rate:g}</text>',
        ]
    for step in _ticks(0, last, whole=True):
        across = place((step, 0)).partition(",")[0]
        parts.append(f'<text x="{across}" y="{high - 18}" text-anchor="middle">{step:g}</text>')
    for index, band in enumerate(bands):
        colour = COLOURS[index % len(COLOURS)]
        means: defaultdict[float, list[float]] = defaultdict(list)
        for run in band.runs:
            for x, y_value in run:
                means[x].append(y_value)
            thin = " ".join(map(place, run))
            parts.append(
                f'<polyline points="{thin}" fill="none" stroke="{colour}" opacity="0.35"/>'
            )
        mean = " ".join(place((x, math.fsum(ys) / len(ys))) for x, ys in sorted(means.items()))
        row = 60 + 22 * index
        parts += [
            f'<polyline points="{mean}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
            f'<path d="M{legend} {row}h18" stroke="{colour}" stroke-width="2.5"/>',
            f'<text x="{legend + 24}" y="{row + 4}">{escape(band.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
