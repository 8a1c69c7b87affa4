"""One self-contained HTML file: no network, no other files."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from skyrl_apex_plugin.files import write_atomic
from skyrl_apex_plugin.report import DEFAULT_PAGES, charts
from skyrl_apex_plugin.report.run import ENTRY_FIELDS, Run, parse, read_object
from skyrl_apex_plugin.report.trajectory import Decode, trajectory_page

CURVES: dict[str, dict[str, tuple[str, ...]]] = {
    "Policy loss": {"loss": ("policy/final_loss", "policy/policy_loss")},
    "Gradient norm": {"norm": ("policy/grad_norm", "policy/raw_grad_norm")},
    "Policy entropy": {"entropy": ("policy/policy_entropy", "policy/entropy")},
    "Rollout against trainer logprobs": {
        "mean difference": ("policy/rollout_train_logprobs_abs_diff_mean",),
        "greatest difference": ("policy/rollout_train_logprobs_abs_diff_max",),
    },
    "Staleness of trained groups": {
        "mean": ("async/staleness_mean",),
        "greatest": ("async/staleness_max",),
    },
    "Seconds of a training step": {
        "step": ("timing/step",),
        "waiting for rollouts": ("timing/wait_for_generation_buffer",),
        "training": ("timing/run_training", "timing/train_critic_and_policy"),
    },
}
"""Titles, and for each line the metric keys to look for; the first one that is there is drawn."""


def write_report(
    run: Run,
    target: Path,
    *,
    pages: int = DEFAULT_PAGES,
    only: Sequence[str] = (),
    tokenizer: str | None = None,
) -> Path:
    """Write the report of ``run`` to ``target``, in one step.

    :param pages: trajectories that get a page, spread evenly over the run.
    :param only: names of trials that get a page instead.
    :param tokenizer: directory of the tokenizer that turns token IDs into text; by default the
        model's, where ``run.json`` names one that is on this machine.

    Raises ``ValueError`` for a name in ``only`` whose directory is not there, and for a tokenizer
    that does not load.
    """
    text = render(run, pages=pages, only=only, tokenizer=tokenizer)
    # Half a surrogate pair in a text of the run is shown escaped: no file can hold it.
    write_atomic(target, text.encode("utf-8", "backslashreplace"))
    return target


def render(run: Run, *, pages: int, only: Sequence[str], tokenizer: str | None) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    chosen = _chosen(run, pages, only)
    facts = _facts(run.info)
    decode = _decoder(tokenizer or facts.get("model"), required=tokenizer is not None)
    packed, damaged = _pages(chosen, decode)
    environment = Environment(
        loader=PackageLoader("skyrl_apex_plugin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    assets = files("skyrl_apex_plugin.report") / "templates"
    return environment.get_template("report.html.j2").render(
        title=run.info.get("name") or run.directory.name,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        facts=facts,
        settings=json.dumps(run.info, indent=1, default=str) if run.info else "",
        summary=_summary(run),
        unreadable=[*run.unreadable, *damaged],
        line_charts=_line_charts(run),
        bar_charts=_bar_charts(run),
        width=charts.WIDTH,
        height=charts.HEIGHT,
        style=(assets / "report.css").read_text(),
        script=(assets / "report.js").read_text(),
        trials=_embedded([{key: each.get(key) for key in ENTRY_FIELDS} for each in run.trials]),
        metrics=_embedded(_series(run)),
        pages=packed,
    )


def _chosen(run: Run, pages: int, only: Sequence[str]) -> dict[str, Path]:
    """Trials that get a page, with their directories."""
    if only:
        found = {name: run.trial_dir(name) for name in only}
        missing = [name for name, directory in found.items() if directory is None]
        if missing:
            raise ValueError(f"no directory of the trials {', '.join(missing)} in {run.directory}")
        return {name: directory for name, directory in found.items() if directory is not None}
    kept = [(each["trial"], run.trial_dir(each["trial"])) for each in run.trials]
    there = [(name, directory) for name, directory in kept if directory is not None]
    if len(there) > pages > 0:
        stride = (len(there) - 1) / max(pages - 1, 1)
        there = [there[round(index * stride)] for index in range(pages)]
    return dict(there if pages else ())


def _pages(chosen: dict[str, Path], decode: Decode | None) -> tuple[dict[str, str], list[str]]:
    """Packed pages by trial, and what is wrong with those trials whose files are damaged."""
    packed, damaged = {}, []
    for name, directory in chosen.items():
        try:
            packed[name] = _packed(trajectory_page(directory, decode))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            damaged.append(f"page of {name}: {type(error).__name__}: {error}")
    return packed, damaged


def _decoder(tokenizer: object, *, required: bool) -> Decode | None:
    """Text of single tokens; ``None`` when the run names no tokenizer that is there."""
    if not tokenizer or not (required or Path(str(tokenizer)).is_dir()):
        return None
    from skyrl_apex_plugin.tito.tokenizer import load_tokenizer

    try:
        loaded = load_tokenizer(str(tokenizer))
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {tokenizer}: does not load: {error}") from error
    return lambda token: str(loaded.decode([token]))


def _summary(run: Run) -> list[tuple[str, str]]:
    """The figures that one looks at first. Graded trials carry scores; the bound below counts
    every ungraded one as failed."""
    ended = [each for each in run.trials if each["outcome"] != "cancelled"]
    graded = [each for each in ended if each.get("score") is not None]
    passed = sum(each["score"] >= 1.0 for each in graded)
    rewards = [each["reward"] for each in ended if each.get("reward") is not None]
    found = [
        ("trials", str(len(run.trials))),
        ("graded", f"{len(graded)} of {len(ended)}"),
        ("pass@1 of graded", _ratio(passed, len(graded))),
        ("lower bound", _ratio(passed, len(ended))),
        ("score", _mean(each["score"] for each in graded)),
        ("reward", _mean(rewards)),
    ]
    return [(name, value) for name, value in found if value]


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else ""


def _mean(values: Iterable[float]) -> str:
    numbers = list(values)
    return f"{sum(numbers) / len(numbers):.3f}" if numbers else ""


def _line_charts(run: Run) -> list[charts.LineChart]:
    training = [each for each in run.trials if each.get("phase") != "eval"]
    evaluation = [each for each in run.trials if each.get("phase") == "eval"]
    terms = dict.fromkeys(name for each in training for name in each.get("terms") or ())
    drawn = [
        charts.line_chart(
            "Reward and score",
            {
                "reward": charts.by_step(training, lambda each: each.get("reward")),
                "score": charts.by_step(training, lambda each: each.get("score")),
                "score, evaluation": charts.by_step(evaluation, lambda each: each.get("score")),
            },
        ),
        charts.line_chart(
            "Share of trials",
            {
                "masked": charts.by_step(training, lambda each: each["treatment"] != "train"),
                "infrastructure faults": charts.by_step(training, _is_fault),
                "out of turns, tokens or time": charts.by_step(training, _is_limit),
            },
        ),
        charts.line_chart(
            "Reward terms",
            {name: charts.by_step(training, _term(name)) for name in terms},
        ),
        charts.line_chart(
            "Turns and tool calls of a trial",
            {
                "turns": charts.by_step(training, lambda each: each.get("turns")),
                "tool calls": charts.by_step(training, lambda each: each.get("tool_calls")),
            },
        ),
    ]
    series = _series(run)
    for title, lines in CURVES.items():
        found = {
            name: next((series[key] for key in keys if key in series), [])
            for name, keys in lines.items()
        }
        drawn.append(charts.line_chart(title, found))
    return [chart for chart in drawn if chart is not None]


def _term(name: str) -> Callable[[charts.Entry], float | None]:
    return lambda each: (each.get("terms") or {}).get(name)


def _is_fault(entry: charts.Entry) -> float:
    faults = ("setup_error", "tool_session_lost", "engine_error", "verifier_error", "token_error")
    return float(entry["outcome"] in faults)


def _is_limit(entry: charts.Entry) -> float:
    limits = ("length", "max_turns", "context_length", "agent_timeout")
    return float(entry["outcome"] in limits)


def _bar_charts(run: Run) -> list[charts.BarChart]:
    drawn = (
        charts.outcome_bars(run.trials),
        charts.score_bars(run.trials),
        charts.phase_bars(run.trials),
        charts.server_bars(_servers(run)),
    )
    return [chart for chart in drawn if chart is not None]


def _servers(run: Run) -> dict[str, dict[str, float]]:
    """Calls by server over all trials whose directory was kept."""
    found: dict[str, dict[str, float]] = {}
    for entry in run.trials:
        directory = run.trial_dir(entry["trial"])
        if directory is None:
            continue
        outcome = read_object(directory / "outcome.json") or {}
        for server, counts in ((outcome.get("metrics") or {}).get("servers") or {}).items():
            sums = found.setdefault(server, {})
            for key, value in counts.items():
                sums[key] = sums.get(key, 0) + (value or 0)  # null where it was not finite
    return found


def _series(run: Run) -> dict[str, list[charts.Point]]:
    """Every logged metric by step, the last value of a step winning."""
    found: dict[str, dict[int, float]] = {}
    for line in run.metrics:
        if line.get("step") is None:
            continue
        for key, value in (line.get("metrics") or {}).items():
            found.setdefault(key, {})[line["step"]] = value
    return {key: sorted(values.items()) for key, values in sorted(found.items())}


FACTS = {
    "model": ("config", "trainer", "policy", "model", "path"),
    "sandbox": ("config", "apex", "sandbox", "name"),
    "grader": ("config", "apex", "grader", "name"),
    "sampler": ("config", "apex", "sampler", "name"),
    "agent": ("agent",),
    "started": ("started_at",),
}
"""What of ``run.json`` stands at the top of the report."""


def _facts(info: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, keys in FACTS.items():
        value: Any = info
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value:
            found[name] = str(value)
    return found


def _embedded(document: Any) -> str:
    """JSON that no content can turn into markup."""
    return json.dumps(document, allow_nan=False, default=str).replace("<", "\\u003c")


def _packed(document: Any) -> str:
    """Compressed JSON: pages of long trajectories are large, and few of them are opened."""
    document = parse(json.dumps(document))  # without numbers that JavaScript cannot read
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
