"""A model server that plays scripts, run as a process: token-ID completions and chat.

``POST /scripts`` registers ``{"key", "turns"}``: whoever's prompt holds the key gets the turns, one
after the other. The server keeps no state of a conversation: the turn's number is the number of
assistant messages in the prompt.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)

scripts: dict[str, list[str]] = {}
tokenizer: Any = None
last_request: dict[str, Any] = {}


def turn_text(prompt: str, number: int) -> str:
    key = max((key for key in scripts if key in prompt), key=len, default=None)
    if key is None:
        return "no script"
    turns = scripts[key]
    return turns[number] if number < len(turns) else "the script is over"


async def register(request: Request) -> JSONResponse:
    body = await request.json()
    scripts[body["key"]] = body["turns"]
    return JSONResponse({})


async def completions(request: Request) -> JSONResponse:
    body = await request.json()
    prompt = tokenizer.decode(body["prompt"], skip_special_tokens=False)
    text = turn_text(prompt, prompt.count("<|im_start|>assistant\n") - 1)
    ids = [
        *tokenizer.encode(text, add_special_tokens=False).ids,
        tokenizer.token_to_id("<|im_end|>"),
    ]
    cut = len(ids) > body["max_tokens"]
    ids = ids[: body["max_tokens"]]
    choice: dict[str, Any] = {
        "index": 0,
        "text": "",
        "token_ids": ids,
        "finish_reason": "length" if cut else "stop",
        "logprobs": {"token_logprobs": [-0.25] * len(ids)},
    }
    if body.get("drop_logprobs"):
        del choice["logprobs"]
    return JSONResponse({"id": "c", "object": "text_completion", "choices": [choice]})


async def last(_: Request) -> JSONResponse:
    return JSONResponse(last_request)


async def chat(request: Request) -> JSONResponse:
    global last_request
    body = last_request = await request.json()
    said = sum(message["role"] == "assistant" for message in body["messages"])
    text = turn_text(json.dumps(body["messages"], ensure_ascii=False), said)
    calls = [json.loads(found) for found in CALL.findall(text)]
    message: dict[str, Any] = {"role": "assistant", "content": CALL.sub("", text).strip()}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call-{uuid.uuid4().hex[:8]}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in calls
        ]
    usage = {"prompt_tokens": 100 + 50 * said, "completion_tokens": 20, "total_tokens": 120}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    return JSONResponse(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [choice],
            "usage": usage,
        }
    )


app = Starlette(
    routes=[
        Route("/scripts", register, methods=["POST"]),
        Route("/last", last),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]
)


def main() -> None:
    global tokenizer
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokenizer", required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(f"{arguments.tokenizer}/tokenizer.json")
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="error")


if __name__ == "__main__":
    main()
