"""A small random Qwen3 and a scheduler over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from skyrl_apex_plugin.embedded.decoding import Decoding
from skyrl_apex_plugin.embedded.model import Qwen3
from skyrl_apex_plugin.embedded.request import Request
from skyrl_apex_plugin.embedded.scheduler import Limits, Scheduler

torch.set_num_threads(1)  # these models are smaller than the cost of waking a second thread


@pytest.fixture(scope="session")
def checkpoint(qwen3_checkpoint: Callable[..., Path]) -> Path:
    return qwen3_checkpoint()


@pytest.fixture
def scheduler(checkpoint: Path) -> Scheduler:
    return make_scheduler(checkpoint)


@pytest.fixture
def new_scheduler(checkpoint: Path) -> Callable[..., Scheduler]:
    return lambda **options: make_scheduler(**{"checkpoint": checkpoint, **options})


def make_scheduler(
    checkpoint: Path, *, slots: int = 4, max_len: int = 256, step_tokens: int = 1024
) -> Scheduler:
    return Scheduler(
        Qwen3.from_pretrained(checkpoint, slots=slots, max_len=max_len),
        Limits(max_len=max_len, step_tokens=step_tokens),
        decode_text=lambda ids: "".join(map(chr, ids)),
    )


@pytest.fixture
def finish() -> Callable[[Scheduler], list[Request]]:
    """Steps a scheduler until nothing runs; returns the requests in the order they ended."""

    def run(scheduler: Scheduler) -> list[Request]:
        ended: list[Request] = []
        while scheduler.busy:
            ended += scheduler.step()
        return ended

    return run


@pytest.fixture
def ask() -> Callable[..., Request]:
    """A request of greedy decoding unless told otherwise."""

    def build(prompt: Sequence[int], max_tokens: int = 8, **options: Any) -> Request:
        request_fields = {k: options.pop(k) for k in ("salt", "session_id") if k in options}
        decoding = {"temperature": 0.0, "ignore_eos": True, **options}
        return Request(
            prompt=list(prompt),
            decoding=Decoding(max_tokens=max_tokens, **decoding),
            **request_fields,
        )

    return build
