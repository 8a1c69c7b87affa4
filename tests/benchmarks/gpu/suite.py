"""Everything that one GPU can show, in one script of under ten minutes; the table comes last.

``python suite.py OUT --tokenizer QWEN3_TOKENIZER_DIR`` runs, from the same command line that
users type: training of the sample model (colocated vLLM and FSDP), its checkpoint loaded back,
vLLM's tool parser against the renderer's, prefix-cache hits, and a run of a 0.6B model with 64
concurrent trials. A stage that fails is named in the table; the others still run. ``--seconds``
bounds the whole: what is not over by then is ended, and the table says what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

import skyrl_apex_miniworld
from skyrl_apex_miniworld.build import build
from skyrl_apex_plugin.tito.ledger import TokenLedger

HERE = Path(__file__).parent
SAMPLE_MODEL = Path(skyrl_apex_miniworld.__file__).parent / "checkpoint"
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.0f} s] {text}", flush=True)


def run(command: list[str], log: Path, *, seconds: float) -> str:
    """Run a command with its output in ``log``; returns that output.

    :raises RuntimeError: it failed or ran out of time; says the last lines.
    """
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
        )
        try:
            status: int | str = child.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            status = "out of time"
            end(child)
    text = log.read_text(errors="replace")
    if status != 0:
        tail = "\n".join(text.splitlines()[-15:])
        raise RuntimeError(f"{command[0]} … ended with {status}; {log.name} ends with:\n{tail}")
    return text


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end what it started and itself, then kill its group."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


class Watch(ABC):
    """Samples something in a thread while a stage runs."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _watch(self) -> None:
        """Take samples until ``self._stop`` is set."""


class GpuBusy(Watch):
    """Samples ``nvidia-smi`` while a stage runs."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, int]] = []
        super().__init__()

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used"]
        while not self._stop.wait(0.5):
            out = subprocess.run(
                [*query, "--format=csv,noheader,nounits"], capture_output=True, text=True
            ).stdout
            busy, used = (int(x) for x in out.splitlines()[0].split(","))  # the run uses the first
            self.samples.append((time.time(), busy, used))

    def share(self, begin: float, end: float) -> float:
        """Mean utilization between two wall-clock times."""
        inside = [busy for at, busy, _ in self.samples if begin <= at <= end]
        return sum(inside) / max(1, len(inside)) / 100


def metrics_by_step(run_dir: Path) -> dict[int, dict[str, float]]:
    """What the run's tracker was given, by step."""
    steps: dict[int, dict[str, float]] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        steps.setdefault(entry["step"], {}).update(entry["metrics"])
    return steps


def ledgers(run_dir: Path) -> Iterator[TokenLedger]:
    """Tokens of every trial that sampled any."""
    return map(TokenLedger.load, sorted(run_dir.glob("trials/*/agent/tokens.apex")))


def gate_by_turn(run_dir: Path) -> list[tuple[str, str]]:
    """Table rows: differences of the engine's and the trainer's logprobs over all steps."""
    tokens: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    largest: dict[int, float] = {}
    record = run_dir / "gate.jsonl"
    if not record.exists():
        return [(f"{run_dir.name} gate", "no batch with trained tokens got there")]
    for line in map(json.loads, record.read_text().splitlines()):
        for each in line["turns"]:
            turn = each["turn"] + 1
            tokens[turn] += each["tokens"]
            sums[turn] += each["mean"] * each["tokens"]
            largest[turn] = max(largest.get(turn, 0.0), each["max"])
    return [
        (
            f"{run_dir.name} gate, turn {turn}",
            f"mean {sums[turn] / tokens[turn]:.3g}, max {largest[turn]:.3g}, {tokens[turn]} tokens",
        )
        for turn in sorted(tokens)
    ]


def own_seconds(run_dir: Path) -> tuple[list[float], float]:
    """Seconds of every turn that neither the model nor the tools took, and of all turns whole."""
    own, whole = [], 0.0
    for path in run_dir.glob("trials/*/agent/turns.jsonl"):
        before: float | None = None
        spent = 0.0
        for line in map(json.loads, path.read_text().splitlines()):
            at = datetime.fromisoformat(line["at"]).timestamp()
            if before is not None:
                whole += at - before
                spent += max(0.0, at - before - line.get("seconds", 0.0))
            if line["kind"] == "tools":
                own.append(spent)
                spent = 0.0
            before = at
    return own, whole


def ended_trials(run_dir: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run_dir / "trials.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "ended"]


def load_back(checkpoint: Path) -> str:
    """Load an exported checkpoint with transformers and take one forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    if not bool(torch.isfinite(logits).all()):
        raise RuntimeError(f"{checkpoint} gives logits that are not finite")
    parameters = sum(p.numel() for p in model.parameters())
    return f"{parameters / 1e6:.1f}M parameters, finite logits"


class Suite:
    """The stages, each writing rows of the last table."""

    def __init__(self, out: Path, tokenizer: Path, seconds: float) -> None:
        self.out, self.tokenizer = out, tokenizer
        self._deadline = STARTED + seconds
        self.rows: list[tuple[str, str]] = []

    def left(self, most: float) -> float:
        """Seconds that a stage may take, with time kept to end it and to print the table."""
        return min(most, self._deadline - time.monotonic() - 25)

    def stage(self, name: str, action: Callable[[], None]) -> None:
        say(f"{name} …")
        try:
            action()
            say(f"{name} done")
        except Exception as error:
            self.rows.append((name, "FAILED: " + " | ".join(str(error).splitlines()[-2:])))
            say(f"{name} failed: {error}")

    def train(self, name: str, *settings: str, model: Path | None = None, seconds: float) -> None:
        run_dir = self.out / name
        command = [
            *(sys.executable, "-m", "skyrl_apex_plugin.cli.main", "train", "--preset"),
            *("smoke-1gpu", "--run-dir", str(run_dir)),
            *("--tasks", str(self.out / "world"), "--model", str(model or SAMPLE_MODEL)),
            "apex.sampler.gate.steps=-1",
            "generator.inference_engine.engine_init_kwargs.kv_cache_memory_bytes=8000000000",
            *settings,
        ]
        try:
            run(command, self.out / f"{name}.log", seconds=self.left(seconds))
        finally:  # the steps of a run that was cut short count
            self.steps(run_dir)

    def steps(self, run_dir: Path) -> None:
        for step, metrics in sorted(metrics_by_step(run_dir).items()):
            for key in sorted(metrics):
                if any(word in key for word in SHOWN):
                    self.rows.append((f"{run_dir.name} step {step} {key}", f"{metrics[key]:.6g}"))
        self.rows += gate_by_turn(run_dir)
        self.rows.append(
            (f"{run_dir.name} turns", f"{sum(len(x.turns) for x in ledgers(run_dir))}")
        )

    def smoke(self) -> None:
        self.train("smoke", "trainer.hf_save_interval=3", "trainer.ckpt_interval=3", seconds=320)

    def checkpoint(self) -> None:
        exports = sorted((self.out / "smoke").glob("export/global_step_*/policy"))
        if not exports:
            raise RuntimeError("the run left no export")
        self.rows.append(("checkpoint loaded back", load_back(exports[-1])))

    def parsers(self) -> None:
        command = [sys.executable, str(HERE / "parsers.py"), str(SAMPLE_MODEL)]
        text = run(
            [*command, str(self.out / "smoke/trials")],
            self.out / "parsers.log",
            seconds=self.left(90),
        )
        self.rows.append(("vLLM parser against renderer", text.splitlines()[-1]))

    def prefix_cache(self) -> None:
        command = [sys.executable, str(HERE / "prefix_cache.py"), str(SAMPLE_MODEL)]
        text = run(command, self.out / "prefix_cache.log", seconds=self.left(300))
        lines = [line for line in text.splitlines() if line.startswith("prefix cache:")]
        self.rows += [("prefix cache", line.partition(": ")[2]) for line in lines]

    def warm_model(self) -> None:
        command = [sys.executable, str(HERE / "warm_model.py"), str(self.tokenizer)]
        text = run(
            [*command, str(self.out / "model"), "--seconds", "160"],
            self.out / "warm_model.log",
            seconds=self.left(230),
        )
        self.rows.append(("0.6B warm-up", text.strip().splitlines()[-1]))

    def large(self) -> None:
        busy, memory = GpuBusy(), Processes()
        try:
            self.large_run(busy, memory)
        finally:
            self.throughput(self.out / "large", busy, memory)

    def large_run(self, busy: GpuBusy, memory: Processes) -> None:
        with busy, memory:
            self.train(
                "large",
                "trainer.max_training_steps=1",
                "trainer.train_batch_size=16",
                "trainer.policy_mini_batch_size=16",
                "generator.n_samples_per_prompt=16",
                "generator.inference_engine.engine_init_kwargs.max_model_len=16384",
                "generator.inference_engine.engine_init_kwargs.kv_cache_memory_bytes=40000000000",
                "generator.inference_engine.gpu_memory_utilization=0.5",
                "apex.agent.max_context=16384",
                "apex.runner.max_concurrent_trials=64",
                # Rewards that differ, so that there are gradients, whatever the model can do.
                "apex.rewards.terms={format: {weight: 0.05}}",
                "trainer.ckpt_interval=-1",
                "trainer.hf_save_interval=-1",
                model=self.out / "model",
                seconds=280,
            )

    def throughput(self, run_dir: Path, busy: GpuBusy, memory: Processes) -> None:
        trials = [trial for trial in ended_trials(run_dir) if trial["phase"] == "train"]
        lines = map(json.loads, (run_dir / "trials.jsonl").read_text().splitlines())
        times = [datetime.fromisoformat(line["at"]).timestamp() for line in lines]
        begin, end = min(times), max(times)
        tokens = [(len(x.tokens), sum(x.loss_mask)) for x in ledgers(run_dir)]
        sampled = sum(each for _, each in tokens)
        total = {
            name: sum(trial["seconds"].get(name, 0.0) for trial in trials)
            for name in ("agent", *WAITED_FOR, "setup", "verifier", "total")
        }
        own = total["agent"] - sum(total[name] for name in WAITED_FOR)
        cores = memory.cores(begin, end)
        turns, whole = own_seconds(run_dir)
        p99 = quantiles(turns, n=100)[-1] * 1000
        self.rows += [
            ("large: trials", f"{len(trials)} in {end - begin:.1f} s, 64 at once"),
            ("large: sampled tokens/s", f"{sampled / (end - begin):.0f} of {sampled}"),
            ("large: longest trajectory", f"{max(tokens)[0]} tokens, 16384 allowed"),
            ("large: GPU busy during generation", f"{busy.share(begin, end):.0%}"),
            (
                "large: seconds by phase, all trials",
                json.dumps({k: round(v, 1) for k, v in total.items()}),
            ),
            ("large: our time in a turn", f"p50 {median(turns) * 1000:.1f} ms, p99 {p99:.1f} ms"),
            ("large: our share of the turns' time", f"{sum(turns) / whole:.2%}"),
            ("large: our share of the agent's time", f"{own / total['agent']:.1%}"),
            ("large: our share of a trial's time", f"{own / total['total']:.1%}"),
            ("large: CPU of the rollout process", f"{cores:.2f} cores"),
            (
                "large: that CPU as a share of the trials' time",
                f"{cores * (end - begin) / total['total']:.1%}",
            ),
            (
                "large: memory of the rollout process",
                f"{memory.grown('experiment') / 64:.1f} MB a trial",
            ),
            ("large: memory of the sandboxes", f"{memory.peak('sandbox') / 64:.1f} MB a trial"),
        ]

    def print_table(self) -> None:
        rows = list(self.rows)
        width = max((len(name) for name, _ in rows), default=0)
        print("\n".join(f"{name:{width}}  {value}" for name, value in rows), flush=True)


SHOWN = (
    *("reward/avg", "loss/", "policy_loss", "grad_norm", "apex/gate", "apex/pass_at_1"),
    *("apex/reward", "apex/turns", "apex/tool_success", "apex/failed", "timing/generate"),
    *("timing/sync", "timing/train", "timing/step", "logprob"),
)
"""Words in the names of metrics that the table shows."""


WAITED_FOR = ("model", "tools", "upload", "close")
"""Phases in which the agent waits for an engine, a world or a sandbox."""


class Processes(Watch):
    """Samples memory (MB) of the rollout process and of what runs in sandboxes, and CPU seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {"experiment": [], "sandbox": []}
        self._cpu: list[tuple[float, float]] = []
        super().__init__()

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            listing = subprocess.run(
                ["ps", "-eo", "rss,cputimes,args"], capture_output=True, text=True
            ).stdout
            sums, cpu = {"experiment": 0.0, "sandbox": 0.0}, 0.0
            for line in listing.splitlines()[1:]:
                rss, seconds, args = line.split(maxsplit=2)
                if "experiment_entrypoint" in args:
                    sums["experiment"] += int(rss) / 1024
                    cpu += int(seconds)
                elif "/app/server" in args or "bwrap" in args:
                    sums["sandbox"] += int(rss) / 1024
            self._cpu.append((time.time(), cpu))
            for kind, value in sums.items():
                self._seen[kind].append(value)

    def cores(self, begin: float, end: float) -> float:
        """Processor cores that the rollout process kept busy between two wall-clock times."""
        inside = [sample for sample in self._cpu if begin - 1 <= sample[0] <= end + 1]
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) / (last - first)

    def peak(self, kind: str) -> float:
        return max(self._seen[kind], default=0.0)

    def grown(self, kind: str) -> float:
        """The peak less what the process held when trials began to run."""
        sandboxes = self._seen["sandbox"]
        first = next((i for i, used in enumerate(sandboxes) if used), len(sandboxes))
        return self.peak(kind) - max(self._seen[kind][:first], default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=580.0)
    parser.add_argument("--no-prefix-cache", action="store_true", help="leave that stage out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    build(args.out / "world")
    suite = Suite(args.out.resolve(), args.tokenizer.resolve(), args.seconds)
    stages = threading.Thread(
        target=run_stages, args=(suite, not args.no_prefix_cache), daemon=True
    )
    stages.start()
    stages.join(suite.left(args.seconds) + 22)
    suite.print_table()
    os._exit(0)  # threads of a stage that hangs would hold the script


def run_stages(suite: Suite, prefix_cache: bool) -> None:
    """Some stages share the GPU at first, since most of what they do is to start."""
    shared = [("training", suite.smoke), ("0.6B warm-up", suite.warm_model)]
    if prefix_cache:
        shared.append(("prefix cache", suite.prefix_cache))
    first = [threading.Thread(target=suite.stage, args=each, daemon=True) for each in shared]
    for thread in first:
        thread.start()
    for thread in first:
        thread.join()
    suite.stage("checkpoint", suite.checkpoint)
    later = threading.Thread(target=suite.stage, args=("parsers", suite.parsers), daemon=True)
    later.start()
    suite.stage("64 trials of a 0.6B model", suite.large)
    later.join()


if __name__ == "__main__":
    main()
