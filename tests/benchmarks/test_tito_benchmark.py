"""What a turn costs besides model and tools: 100 turns, 100k tokens, 40 tools, 20k-token catalogue.

All ratios come from one run on one machine. The limits are for the agent's own CPU: everything but
the model and its transport, and the tools. A play over a real HTTP server in a thread of its own is
printed beside it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from skyrl_apex_hookspecs import SamplingParams
from skyrl_apex_plugin.agent.sampling import CompletionsSampler
from skyrl_apex_plugin.tito import probes
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.renderer import Renderer, load_renderer
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer
from skyrl_apex_plugin.tito.tools import CheckedCall, ToolCatalogue
from skyrl_apex_plugin.tito.truncate import truncate_middle

pytestmark = pytest.mark.benchmark

TURNS = 100
TOKENS = 100_000
TOOLS = 40
CATALOGUE_TOKENS = 20_000
LOGPROB = -0.25
PLAYS = 3
REFERENCE_SECONDS = 0.137
"""CPU of tokenizing 100,000 tokens on the machine that the limits in milliseconds are meant for."""
PROBED_TURNS = (1, 25, 50, 75, 100)
"""Turns at which the two naive ways are measured; their cost of all turns is interpolated."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    script = Path(__file__).parents[2] / "scripts" / "fetch_tokenizers.py"
    spec = importlib.util.spec_from_file_location("fetch_tokenizers", script)
    assert spec is not None and spec.loader is not None
    fetcher = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetcher)
    try:
        return load_tokenizer(fetcher.fetch("qwen3"))
    except fetcher.Unreachable as error:
        pytest.skip(f"the tokenizer cannot be fetched: {error}")


def catalogue_of(tokenizer: Any) -> ToolCatalogue:
    """40 tools of which each describes its arguments at length, half of them in an envelope."""

    def schema(words: int) -> dict[str, Any]:
        text = "How the value of this argument is used by the spreadsheet. " * words
        inner = {
            "type": "object",
            "properties": {
                "action": {"enum": ["read", "write", "list"], "description": text},
                "path": {"type": "string", "description": text},
                "rows": {"type": "array", "items": {"type": "integer"}, "description": text},
            },
            "required": ["action"],
        }
        return {"type": "object", "properties": {"request": inner}, "required": ["request"]}

    def build(words: int) -> ToolCatalogue:
        return ToolCatalogue(
            [
                {
                    "name": f"app_{number:02d}",
                    "description": "An app of the simulated company.",
                    "inputSchema": schema(words)
                    if number % 2
                    else schema(words)["properties"]["request"],
                }
                for number in range(TOOLS)
            ]
        )

    return next(
        tools
        for tools in map(build, range(1, 60))
        if len(tokenizer.encode(json.dumps(tools.for_model))) >= CATALOGUE_TOKENS
    )


class Script:
    """The scripted turns: what the model says and what the tool answers, of even size."""

    def __init__(self, tokenizer: Any, renderer: Renderer, prompt: int) -> None:
        share = (TOKENS - prompt) // TURNS
        call = json.dumps(
            {"name": "app_01", "arguments": {"action": "read", "path": "/a/b.xlsx", "rows": [1, 2]}}
        )
        text = (
            f"<think>\nI read the sheet once more.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
        )
        self.turn = [*tokenizer.encode(text), renderer.stop_token_ids[0]]
        self.text = text
        row = "2024-05-17 | 4711 | Überweisung | 1234.50\n"
        rows = (share - len(self.turn)) // len(tokenizer.encode(row))
        self.observation = row * rows
        self.arguments = {"action": "read", "path": "/a/b.xlsx", "rows": [1, 2]}


def answer_of(body: bytes, turn: list[int]) -> bytes:
    """The engine's answer to a request, as vllm gives it."""
    found = {
        "token_logprobs": [LOGPROB] * len(turn),
        "tokens": [f"token_id:{token}" for token in turn],
    }
    head = b'{"choices":[{"finish_reason":"stop",'
    if b'"return_token_ids":true' in body:
        begin = body.index(b"[") + 1
        echo = body[begin : body.index(b"]", begin)]
        head += b'"token_ids":%b,"prompt_token_ids":[%b],' % (json.dumps(turn).encode(), echo)
    return head + b'"logprobs":%b}]}' % json.dumps(found).encode()


@pytest.fixture(scope="module")
def engine_url() -> Iterator[Callable[[list[int]], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(turn: list[int]) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                data = answer_of(body, turn)
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


async def play(
    tokenizer: Any, renderer: Renderer, tools: ToolCatalogue, script: Script, url: str | None
) -> tuple[TokenLedger, list[float], list[float]]:
    """A whole trajectory; CPU seconds of each turn, and those spent on tokens alone.

    Without ``url`` the engine answers in this thread, in no time: its CPU is left out.
    """
    engine_seconds = 0.0

    async def answer(body: bytes, session_id: str) -> bytes:
        nonlocal engine_seconds
        asked_at = time.thread_time()
        data = answer_of(body, script.turn)
        engine_seconds += time.thread_time() - asked_at
        return data

    sampler = CompletionsSampler(url or "http://in-process", "policy")
    if url is None:
        sampler._post = answer  # type: ignore[method-assign]
    ledger = TokenLedger(renderer.start([{"role": "user", "content": "Read the sheets."}]))
    params = SamplingParams(max_tokens=4096, stop_token_ids=renderer.stop_token_ids)
    seconds, on_tokens = [], []
    for number in range(TURNS):
        started, engine_seconds = time.thread_time(), 0.0
        sample = await sampler.sample(ledger.tokens, params, session_id="s")
        ledger.append_sampled(sample.token_ids, sample.logprobs, finish_reason="stop")
        (asked,) = renderer.parse(sample.token_ids).calls
        checked = tools.check(asked.name, asked.arguments)
        assert isinstance(checked, CheckedCall)
        encoding = time.thread_time()
        text = truncate_middle(script.observation, 8192, tokenizer)
        result = {"role": "tool", "tool_call_id": f"c{number}", "content": text}
        added = renderer.extend(ledger, [result])
        on_tokens.append(time.thread_time() - encoding)
        ledger.append_observation(added)
        seconds.append(time.thread_time() - started - engine_seconds)
    await sampler.aclose()
    return ledger, seconds, on_tokens


def naive(
    tokenizer: Any, tools: ToolCatalogue, script: Script
) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """CPU seconds of rendering the whole conversation, and of a catalogue with what is new."""
    call = probes.call("app_01", script.arguments, "c")
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": script.observation}
    question = {"role": "user", "content": "Read the sheets."}

    def whole(turn: int) -> float:
        messages = [question, *[asks, result] * turn]
        started = time.thread_time()
        probes.oracle(tokenizer, messages, tools.for_model)
        return time.thread_time() - started

    def with_catalogue(_: int) -> float:
        started = time.thread_time()
        probes.oracle(tokenizer, [question, asks, result], tools.for_model)
        return time.thread_time() - started

    return whole, with_catalogue


def slope_over_run(seconds: list[float]) -> float:
    """How much dearer the last turn is than the first, on the line through the medians of tenths,
    as a share of the median turn."""
    tenths = [sorted(seconds[i : i + 10])[5] for i in range(0, len(seconds), 10)]
    n = len(tenths)
    middle = (n - 1) / 2
    mean = sum(tenths) / n
    rise = sum((i - middle) * (value - mean) for i, value in enumerate(tenths))
    return rise / sum((i - middle) ** 2 for i in range(n)) * (n - 1) / mean


def slowness(tokenizer: Any, text: str) -> float:
    """How many times slower this machine is now than the reference; 1.0 where it is faster."""
    backend = tokenizer.backend_tokenizer
    long = text * (TOKENS // len(backend.encode(text).ids))

    def once() -> float:
        started = time.thread_time()
        backend.encode(long)
        return time.thread_time() - started

    return max(1.0, min(once() for _ in range(3)) / REFERENCE_SECONDS)


async def test_cost_of_a_turn(
    tokenizer: Any, engine_url: Callable[[list[int]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    tools = catalogue_of(tokenizer)
    renderer = load_renderer(tokenizer, tools=tools)
    prompt = len(renderer.start([{"role": "user", "content": "Read the sheets."}]))
    script = Script(tokenizer, renderer, prompt)
    url = engine_url(script.turn)
    await play(tokenizer, renderer, tools, script, None)  # imports, caches
    _, over_http, _ = await play(tokenizer, renderer, tools, script, url)
    gc.collect()
    plays = [await play(tokenizer, renderer, tools, script, None) for _ in range(PLAYS)]
    ledger = plays[0][0]
    # Every play does the same work: the least of them is without the neighbours' noise.
    seconds = [min(turn) for turn in zip(*(play[1] for play in plays), strict=True)]
    on_tokens = [min(turn) for turn in zip(*(play[2] for play in plays), strict=True)]
    whole, with_catalogue = naive(tokenizer, tools, script)
    rendering = sum(min(whole(n), whole(n)) for n in PROBED_TURNS) / len(PROBED_TURNS)
    catalogue = min(map(with_catalogue, PROBED_TURNS))
    own = sum(on_tokens) / len(on_tokens)
    held = sum(map(sys.getsizeof, (ledger.tokens, ledger.logprobs, ledger._mask)))
    cuts = quantiles(seconds, n=100)
    p50, p99 = cuts[49] * 1e3, cuts[98] * 1e3
    slope = slope_over_run(seconds)
    slower = slowness(tokenizer, script.observation)
    rows = [
        ("tokens / turns / tools", f"{len(ledger)} / {len(ledger.turns)} / {len(tools)}"),
        ("first prompt with catalogue", f"{prompt} tokens"),
        ("this machine against the reference", f"{slower:.1f} times slower"),
        ("CPU a turn, p50", f"{p50:.2f} ms (limit {5 * slower:.1f})"),
        ("CPU a turn, p99", f"{p99:.2f} ms (limit {15 * slower:.1f})"),
        ("CPU a turn with HTTP, p50", f"{sorted(over_http)[TURNS // 2] * 1e3:.2f} ms"),
        ("of it tokenization", f"{own * 1e3:.2f} ms"),
        ("rendering the whole conversation", f"{rendering * 1e3:.1f} ms, {rendering / own:.0f}x"),
        ("re-encoding the catalogue", f"{catalogue * 1e3:.1f} ms, {catalogue / own:.0f}x"),
        ("last turn dearer than the first by", f"{slope:+.0%} of a turn"),
        ("ledger memory", f"{held / len(ledger):.1f} bytes a token (limit 12)"),
    ]
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name:36} {value}" for name, value in rows))
    assert len(ledger) >= 0.95 * TOKENS
    assert rendering >= 20 * own
    assert catalogue >= 5 * own
    assert held <= 12 * len(ledger)
    # On a machine that does other work besides, only the ratios mean something.
    busy = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    if busy:
        pytest.skip(f"ratios hold; load {os.getloadavg()[0]:.0f}: milliseconds are not checked")
    assert p50 < 5 * slower and p99 < 15 * slower
    assert abs(slope) < 0.5
