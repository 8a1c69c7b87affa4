"""``python -m skyrl_apex_miniworld.tiny_model OUT``: make the tiny model from nothing."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import click

from skyrl_apex_miniworld.tiny_model.demonstrations import demonstrations
from skyrl_apex_miniworld.tiny_model.dialect import Dialect, train_tokenizer
from skyrl_apex_miniworld.tiny_model.warm_up import WarmUp, new_model, warm_up

MERGE_DEMONSTRATIONS = 4000
"""Demonstrations from which the tokenizer's merges are learned."""

REPORT_EVERY = 20


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True)
@click.option("--steps", default=WarmUp().steps, show_default=True, help="Warm-up steps.")
@click.option("--threads", default=2, show_default=True, help="Threads of torch.")
@click.option("--device", default="cpu", show_default=True, help="Device of torch.")
def main(out: Path, seed: int, steps: int, threads: int, device: str) -> None:
    """Write a Qwen3 checkpoint of about 2M parameters with its tokenizer to OUT."""
    import torch

    torch.set_num_threads(threads)
    tokenizer = train_tokenizer(islice(demonstrations(f"{seed}/merges"), MERGE_DEMONSTRATIONS))
    model = new_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, seed)
    model.to(device)  # type: ignore[arg-type]
    click.echo(f"{sum(weight.numel() for weight in model.parameters())} parameters")
    started, recent = time.monotonic(), [0.0] * REPORT_EVERY

    def report(step: int, loss: float) -> None:
        recent[step % REPORT_EVERY] = loss
        if step % REPORT_EVERY == 0:
            mean = sum(recent) / REPORT_EVERY
            click.echo(f"step {step}: loss {mean:.4f}, {time.monotonic() - started:.0f} s")

    shown = demonstrations(f"{seed}/warm-up")
    settings = WarmUp(steps=steps, bare_steps=min(WarmUp().bare_steps, steps))
    warm_up(model, Dialect(tokenizer), shown, settings, report)
    model.to("cpu").save_pretrained(out)  # type: ignore[arg-type]
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
