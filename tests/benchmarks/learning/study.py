"""Does it learn? The laptop preset with several seeds, controls and ablations, in one table.

``python study.py OUT`` trains every arm with every seed, each run on cores of its own, and writes
``OUT/study.json``, ``OUT/table.md`` and ``OUT/learning.svg``. Finished runs are kept: the same
command goes on where it was stopped, and ``--jobs`` chooses a part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARMS: dict[str, tuple[str, ...]] = {
    "preset": (),
    "rewards_shuffled": ("apex.control=shuffle_rewards",),
    "advantages_zeroed": ("apex.control=zero_advantages",),
    "rewards_inverted": ("apex.control=invert_rewards",),
}
"""The preset and its controls. Greedy held-out evaluation of all kinds of tasks."""

SMALL = (
    'apex.tasks.where=kind in ("budget", "referral")',
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=4",
    "trainer.fully_async.num_parallel_generation_workers=8",
    "trainer.policy.optimizer_config.lr=2e-4",
    "trainer.max_training_steps=8",
    "trainer.eval_interval=8",
    "trainer.eval_before_train=false",
    "trainer.ckpt_interval=-1",
    "trainer.hf_save_interval=-1",
    "generator.eval_n_samples_per_prompt=4",
    "generator.eval_sampling_params.temperature=1.0",
)
"""A sixth of the preset's trials, so that fifteen runs take half an hour: the two kinds of tasks
of CI's two-minute run. Held-out tasks are sampled four times each."""

ABLATIONS: dict[str, tuple[str, ...]] = {
    "recipe": (),
    "token_mean": ("trainer.algorithm.loss_reduction=token_mean",),
    "rollout_is": ("trainer.algorithm.policy_loss_type=rollout_is",),
    "asked_to_check": ("apex.agent.extra_prompt=Check with the tools before you answer.",),
    "length_penalty": (
        "apex.rewards.terms.adaptive_length={assistant: 0.2, environment: 0.1, scale: 64}",
    ),
    "untrained": ("apex.control=zero_advantages",),
}
"""One change each to the small run; ``untrained`` is where all of them start."""

RUNS = ARMS | {name: (*SMALL, *changes) for name, changes in ABLATIONS.items()}
SEEDS = (1, 2, 3)
STEP_PARTS = ("training", "waiting for rollouts", "weight sync")
TRIAL_PARTS = (
    "trial: model",
    "trial: tools",
    "trial: agent's own",
    "trial: sandbox and world",
    "trial: verifier",
)
WALL = ("steps", *STEP_PARTS, *TRIAL_PARTS)
"""Sums of wall seconds: of the trainer's steps and their parts, and of the trials' parts."""
FIFTHS = ("first", "last")
"""Of a run's training trials, as keys of its summary."""
CONTROLS = ("rewards_shuffled", "advantages_zeroed", "rewards_inverted")


def run_arm(arm: str, seed: int, out: Path, cores: Sequence[int], seconds: float) -> None:
    """One training run, unless its directory says that it ended."""
    run_dir = out / f"{arm}-{seed}"
    done = run_dir / "seconds.txt"
    if done.exists():
        return
    command = [
        *("taskset", "-c", ",".join(map(str, cores))),
        *(sys.executable, "-m", "skyrl_apex_plugin.cli.main", "train", "--preset", "laptop"),
        *("--run-dir", str(run_dir), f"trainer.seed={seed}", *RUNS[arm]),
    ]
    begin = time.monotonic()
    with (out / f"{run_dir.name}.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=out)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait()
            status = -1
    took = time.monotonic() - begin
    print(f"{arm}, seed {seed}: {'ended' if status == 0 else 'FAILED'} in {took:.0f} s", flush=True)
    if status == 0:
        done.write_text(f"{took:.1f}\n")


def summary(run_dir: Path) -> dict[str, Any]:
    """What a run's record says, from its held-out evaluations and the ends of its training."""
    lines = map(json.loads, (run_dir / "trials.jsonl").read_text().splitlines())
    trials = [line for line in lines if line["event"] == "ended"]
    evaluations: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for trial in trials:
        if trial["phase"] == "eval":
            evaluations[trial["step"]].append(trial)
    training = [trial for trial in trials if trial["phase"] == "train"]
    size = max(1, len(training) // 5)
    steps: list[dict[str, float]] = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        steps.append(json.loads(line)["metrics"])
    finished = run_dir / "seconds.txt"
    return {
        "heldout": {
            step: statistics.fmean(trial["score"] or 0.0 for trial in evaluated)
            for step, evaluated in sorted(evaluations.items())
        },
        "evaluated": _means(evaluations[max(evaluations)]),
        "first": _means(training[:size]),
        "last": _means(training[-size:]),
        "seconds": float(finished.read_text()) if finished.exists() else math.nan,
        "wall": _wall(steps, training),
    }


def _means(trials: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over trials; "not completed" is a share of them, "failed calls" a count for each."""
    calls = sum(trial["tool_calls"] for trial in trials)
    good = sum(trial["tool_calls_ok"] for trial in trials)
    graded = [trial["reward"] for trial in trials if trial["reward"] is not None]
    return {
        "pass rate": statistics.fmean(trial["score"] or 0.0 for trial in trials),
        "reward": statistics.fmean(graded),
        "turns": statistics.fmean(trial["turns"] for trial in trials),
        "tokens": statistics.fmean(trial["tokens"] for trial in trials),
        "tool success": good / max(1, calls),
        "failed calls": (calls - good) / len(trials),
        "not completed": statistics.fmean(trial["outcome"] != "complete" for trial in trials),
    }


def _wall(steps: Sequence[dict[str, float]], trials: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of wall time by what the trainer did, and the shares of a trial's time."""
    sums: defaultdict[str, float] = defaultdict(float)
    names = {
        "timing/wait_for_generation_buffer": "waiting for rollouts",
        "timing/run_training": "training",
        "timing/sync_weights": "weight sync",
        "timing/step": "steps",
    }
    for step in steps:
        for key, name in names.items():
            sums[name] += step.get(key, 0.0)
    for trial in trials:
        seconds = trial["seconds"]
        agent, model, tools = (seconds.get(name, 0.0) for name in ("agent", "model", "tools"))
        sums["trial: model"] += model
        sums["trial: tools"] += tools
        sums["trial: agent's own"] += max(0.0, agent - model - tools)
        sums["trial: sandbox and world"] += seconds.get("setup", 0.0)
        sums["trial: verifier"] += seconds.get("verifier", 0.0)
    return {name: round(sums[name], 1) for name in WALL}


def spread(values: Sequence[float]) -> str:
    """Mean, and the sample deviation where there is one."""
    mean = statistics.fmean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def table(study: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Markdown: the preset and its controls, an arm a row, with means over :data:`FIFTHS`."""
    names = ("pass rate", "reward", "tool success", "failed calls", "not completed", "turns")
    heads = ["run", "seeds", "held-out before", "after"]
    heads += [f"{name}, {when}" for name in names for when in FIFTHS]
    rows = []
    for arm, runs in study.items():
        if arm not in ARMS:
            continue
        heldout = [list(run["heldout"].values()) for run in runs.values()]
        cells = [spread([scores[0] for scores in heldout])]
        cells += [spread([scores[-1] for scores in heldout])]
        for name in names:
            cells += [spread([run[when][name] for run in runs.values()]) for when in FIFTHS]
        rows.append([arm, str(len(runs)), *cells])
    return markdown(heads, rows)


def ablation_table(study: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Markdown: sampled held-out trials after the small runs, an arm a row."""
    names = ("reward", "pass rate", "turns", "tokens", "tool success")
    rows = [
        [arm, str(len(runs))]
        + [spread([run["evaluated"][name] for run in runs.values()]) for name in names]
        for arm, runs in study.items()
        if arm in ABLATIONS
    ]
    return markdown(["small run", "seeds", *names], rows)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; underscores in a row's name become spaces."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join([row[0].replace('_', ' '), *row[1:]])} |" for row in rows]
    return "\n".join(lines) + "\n"


def wall_table(study: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Markdown: where the wall time of the steps and that of the trials went, an arm a row."""
    heads = ["run", *STEP_PARTS, *(name.removeprefix("trial: ") for name in TRIAL_PARTS)]
    rows = []
    for arm, runs in study.items():
        walls = [run["wall"] for run in runs.values()]
        trial = [sum(wall[name] for name in TRIAL_PARTS) for wall in walls]
        shares = [
            statistics.fmean(wall[name] / wall["steps"] for wall in walls) for name in STEP_PARTS
        ]
        shares += [
            statistics.fmean(wall[name] / whole for wall, whole in zip(walls, trial, strict=True))
            for name in TRIAL_PARTS
        ]
        rows.append([arm, *(f"{share:.1%}" for share in shares)])
    return markdown(heads, rows)


def draw(study: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Held-out pass rates of the preset and its controls, a line for each run."""
    from skyrl_apex_plugin.report.charts import Band, band_svg

    bands = [
        Band(
            arm.replace("_", " "),
            [
                [(float(step), rate) for step, rate in run["heldout"].items()]
                for run in study[arm].values()
            ],
        )
        for arm in ("preset", *CONTROLS)
        if study.get(arm)
    ]
    path.write_text(band_svg("Held-out pass rate (greedy) by training step", bands))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    pairs = [f"{arm}:{seed}" for seed in SEEDS for arm in RUNS]
    parser.add_argument("--jobs", nargs="*", default=pairs, choices=pairs, metavar="ARM:SEED")
    parser.add_argument("--seconds", type=float, default=1800, help="limit of a run")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    jobs: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for pair in args.jobs:
        arm, _, number = pair.rpartition(":")
        jobs.put((arm, int(number)))

    def work(own: Sequence[int]) -> None:
        while True:
            try:
                arm, seed = jobs.get_nowait()
            except queue.Empty:
                return
            run_arm(arm, seed, out, own, args.seconds)

    threads = [
        threading.Thread(target=work, args=(cores[i : i + 2],))
        for i in range(0, max(1, len(cores) - 1), 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study: dict[str, dict[str, Any]] = {}
    for arm in RUNS:
        ended = sorted(out.glob(f"{arm}-[0-9]/seconds.txt"))
        if ended:
            study[arm] = {p.parent.name.rpartition("-")[2]: summary(p.parent) for p in ended}
    (out / "study.json").write_text(json.dumps(study, indent=1) + "\n")
    shown = "\n".join((table(study), ablation_table(study), wall_table(study)))
    (out / "table.md").write_text(shown)
    draw(study, out / "learning.svg")
    print(shown)


if __name__ == "__main__":
    main()
