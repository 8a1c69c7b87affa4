"""Prefix-cache hits of multi-turn trajectories on vLLM: salts and session stickiness.

``python prefix_cache.py MODEL_DIR``: starts two vLLM servers on one GPU and replays the same
growing prompts against them in four ways. Prints one line each: with the salt fixed for a
trajectory, with a salt that changes every turn, with turns that stay at one server (as a session
header makes a router do) and with turns that alternate. Needs a GPU.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence

TURNS, FIRST, GROWTH = 8, 512, 64
TRAJECTORIES = 16
PORTS = (18101, 18102)


def post(port: int, body: dict[str, object], session: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Session-ID": session},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def counters(port: int) -> tuple[float, float]:
    """Tokens looked up in the prefix cache so far, and tokens found there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = []
    for name in ("queries", "hits"):
        values = re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.M)
        found.append(sum(map(float, values)))
    return found[0], found[1]


def hit_rate(salt: Callable[[int, int], str], server: Callable[[int, int], int]) -> float:
    """Share of prompt tokens found in the cache over fresh trajectories.

    :param salt: cache salt of a trajectory's turn; :param server: port of a trajectory's turn.
    """
    before = [counters(port) for port in PORTS]
    for trajectory in range(TRAJECTORIES):
        first = uuid.uuid4().int % 900
        for turn in range(TURNS):
            prompt = [5 + (first + i) % 1000 for i in range(FIRST + GROWTH * turn)]
            body = {
                "model": "m",
                "prompt": prompt,
                "max_tokens": 1,
                "cache_salt": salt(trajectory, turn),
            }
            post(server(trajectory, turn), body, str(trajectory))
    after = [counters(port) for port in PORTS]
    looked = sum(a[0] - b[0] for a, b in zip(after, before, strict=True))
    return sum(a[1] - b[1] for a, b in zip(after, before, strict=True)) / looked


def start(model: str) -> list[subprocess.Popen[bytes]]:
    servers = []
    for port in PORTS:
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model),
            *("--served-model-name", "m", "--port", str(port), "--enforce-eager"),
            *("--gpu-memory-utilization", "0.08", "--max-model-len", "4096"),
            # Without profiling, other processes may take and free memory meanwhile.
            *("--kv-cache-memory-bytes", "2000000000"),
        ]
        with open(f"vllm-{port}.log", "wb") as log:
            servers.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    return servers


def await_ready(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for port in PORTS:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"vLLM on port {port} is not up, see vllm-{port}.log"
                    ) from error
                time.sleep(1)


def main(argv: Sequence[str]) -> None:
    servers = start(argv[0])
    try:
        await_ready(300)
        run = uuid.uuid4().hex

        def fixed(trajectory: int, turn: int) -> str:
            return f"{run}-fixed-{trajectory}"

        def changing(trajectory: int, turn: int) -> str:
            return f"{run}-changing-{trajectory}-{turn}"

        def other(trajectory: int, turn: int) -> str:
            return f"{run}-other-{trajectory}"

        def sticky(trajectory: int, turn: int) -> int:
            return PORTS[trajectory % 2]

        def alternating(trajectory: int, turn: int) -> int:
            return PORTS[turn % 2]

        table = {
            "salt fixed for the trajectory, one server": hit_rate(fixed, sticky),
            "salt changes every turn, one server": hit_rate(changing, sticky),
            "salt fixed, servers alternate": hit_rate(other, alternating),
        }
        for name, rate in table.items():
            print(f"prefix cache: {rate:6.1%}  {name}")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(30)


if __name__ == "__main__":
    main(sys.argv[1:])
