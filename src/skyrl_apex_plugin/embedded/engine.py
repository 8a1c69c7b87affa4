"""The CPU engine's process: ``python -m skyrl_apex_plugin.embedded.engine --model DIR``.

Serves one Qwen3 checkpoint over HTTP (``server.py``) until it is told to stop, its standard
input closes (``--exit-with-stdin``), or a step fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
import uvicorn
from transformers import PreTrainedTokenizerFast

from .async_engine import AsyncEngine
from .data_plane import Served
from .model import Qwen3, Shape
from .scheduler import Limits, Scheduler
from .server import build_app

logger = logging.getLogger(__name__)

DEFAULT_MAX_LEN = 8192


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="skyrl_apex_plugin.embedded.engine", description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="directory of a Qwen3 checkpoint")
    add("--served-model-name", default=None, help="name in requests, beside the directory")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--slots", type=int, default=32, help="sequences computed or remembered at once")
    add("--max-model-len", type=int, default=None, help="prompt and completion, in tokens")
    add("--step-tokens", type=int, default=1024, help="tokens computed in one step at most")
    add("--threads", type=int, default=1, help="of the linear algebra library")
    add(
        "--logprobs-mode",
        choices=["processed_logprobs", "raw_logprobs"],
        default="processed_logprobs",
    )
    add("--ready-fd", type=int, default=None, help="descriptor that is told the address")
    add("--exit-with-stdin", action="store_true", help="end when standard input closes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Exits with status 1 when the engine fails."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if args.exit_with_stdin:
        threading.Thread(target=_exit_with_stdin, daemon=True).start()
    torch.set_num_threads(args.threads)
    listener = socket.create_server((args.host, args.port), backlog=2048)
    asyncio.run(_serve(args, listener))


async def _serve(args: argparse.Namespace, listener: socket.socket) -> None:
    served = _load(args)
    config = uvicorn.Config(
        build_app(served), log_level="warning", access_log=False, timeout_keep_alive=120
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stepping = asyncio.ensure_future(served.engine.run())
    host, port = listener.getsockname()[:2]
    logger.info("serving %s at http://%s:%d", args.model, host, port)
    if args.ready_fd is not None:
        with os.fdopen(args.ready_fd, "w") as ready:
            json.dump({"host": host, "port": port}, ready)
    await asyncio.wait({serving, stepping}, return_when=asyncio.FIRST_COMPLETED)
    if stepping.done():
        server.should_exit = True  # answers what is in flight, with the failure
        await serving
        sys.exit(1)
    stepping.cancel()


def _load(args: argparse.Namespace) -> Served:
    shape = Shape.read(args.model)
    max_len = args.max_model_len or min(DEFAULT_MAX_LEN, shape.max_position_embeddings)
    if max_len > shape.max_position_embeddings:
        raise SystemExit(
            f"--max-model-len {max_len} exceeds the model's max_position_embeddings "
            f"{shape.max_position_embeddings} ({args.model}/config.json)"
        )
    # AutoTokenizer would import every model's code first, which takes longer than all the rest.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.model)
    scheduler = Scheduler(
        Qwen3.from_pretrained(args.model, slots=args.slots, max_len=max_len),
        Limits(max_len=max_len, step_tokens=args.step_tokens),
        logprobs_mode=args.logprobs_mode,
        decode_text=tokenizer.decode,
    )
    names = (args.served_model_name, str(args.model))
    return Served(
        AsyncEngine(scheduler), tokenizer, tuple(filter(None, dict.fromkeys(names))), max_len
    )


def _exit_with_stdin() -> None:
    """The parent holds the other end of standard input; it closes however the parent dies.

    A parent-death signal would fire when the thread that started this process ends, which need
    not be the end of the parent.
    """
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
