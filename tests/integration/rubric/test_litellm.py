"""The litellm transport, over the real litellm and a real socket."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from skyrl_apex_rubric.endpoint import LitellmEndpoint, PermanentFault, TransientFault
from skyrl_apex_rubric.prompt import question, read_reply


class Handler(BaseHTTPRequestHandler):
    status = 200
    seen: Any = None

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        Handler.seen = json.loads(self.rfile.read(length))
        content = json.dumps({"rationale": "r", "is_criteria_true": True})
        message = {"role": "assistant", "content": content}
        document = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        body = json.dumps(document if self.status == 200 else {"error": {"message": "no"}})
        self.send_response(self.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    yield LitellmEndpoint("openai/house-model", "key", 10.0, {"api_base": url})
    server.shutdown()
    Handler.status = 200


MESSAGES = question(task="t", criterion="c", golden_responses=(), answer={"final_answer": "a"})


async def test_a_judgement_through_litellm(endpoint: LitellmEndpoint) -> None:
    reply = await endpoint.ask(MESSAGES, 0.0)
    assert read_reply(reply.text).met is True
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
    assert Handler.seen["response_format"]["json_schema"]["strict"] is True


@pytest.mark.parametrize(
    ("status", "fault"), [(401, PermanentFault), (429, TransientFault), (500, TransientFault)]
)
async def test_litellms_errors_are_told_apart(
    endpoint: LitellmEndpoint, status: int, fault: type[Exception]
) -> None:
    Handler.status = status
    with pytest.raises(fault):
        await endpoint.ask(MESSAGES, 0.0)
