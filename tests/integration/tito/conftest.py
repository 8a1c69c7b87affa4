"""A scripted engine on a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Reply:
    """One scripted answer: JSON, or a status with a text, after ``delay`` seconds."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang_up: bool = False


def completion(
    ids: list[int], logprobs: list[float | None] | None, finish: str = "stop", **more: Any
) -> Reply:
    """A completion as vllm answers it; the prompt's echo is added by the engine."""
    found = None if logprobs is None else {"token_logprobs": logprobs, "tokens": []}
    choice = {"index": 0, "text": "", "token_ids": ids, "logprobs": found, "finish_reason": finish}
    return Reply({"id": "cmpl", "choices": [{**choice, **more}]})


class Engine:
    """Answers ``/v1/completions`` from a script and keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.finished: list[str] = []
        self.echo: Callable[[list[int]], list[int]] = lambda prompt: prompt
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/finish_session"):
                    engine.finished.append(self.path.partition("session_id=")[2])
                    self._answer(Reply({"status": "ok"}))
                    return
                request = json.loads(raw)
                engine.requests.append(request)
                engine.headers.append({k.lower(): v for k, v in self.headers.items()})
                reply = engine.script.pop(0)
                time.sleep(reply.delay)
                if reply.hang_up:
                    self.close_connection = True
                    return
                self._answer(engine.finish(reply, request))

            def _answer(self, reply: Reply) -> None:
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                data = text.encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def finish(self, reply: Reply, request: dict[str, Any]) -> Reply:
        if reply.status == 200 and isinstance(reply.body, dict) and reply.body.get("choices"):
            choice = reply.body["choices"][0]
            choice.setdefault("prompt_token_ids", self.echo(request["prompt"]))
        return reply


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def answer() -> Callable[..., Reply]:
    return completion


@pytest.fixture
def reply() -> type[Reply]:
    return Reply
