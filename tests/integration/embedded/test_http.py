"""The engine's answers over a socket, in the shapes of vllm's OpenAI server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import Qwen3ForCausalLM

PROMPT = [1, 2, 3, 4, 5]


async def complete(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json={"prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_token_ids_and_logprobs_are_those_of_the_tempered_model(
    http: httpx.AsyncClient, checkpoint: Path, temperature: float
) -> None:
    answers = await asyncio.gather(
        *[
            complete(
                http,
                prompt=[n, *PROMPT],
                max_tokens=20,
                temperature=temperature,
                logprobs=1,
                return_token_ids=True,
                ignore_eos=True,
            )
            for n in range(8)
        ]
    )
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for answer in answers:
        choice = answer["choices"][0]
        tokens = choice["prompt_token_ids"] + choice["token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0] / temperature
        expected = logits.log_softmax(-1)[range(5, 25), choice["token_ids"]]
        reported = torch.tensor(choice["logprobs"]["token_logprobs"])
        assert len(choice["token_ids"]) == 20
        assert choice["finish_reason"] == "length"
        torch.testing.assert_close(reported, expected, atol=1e-4, rtol=0)


async def test_a_seed_repeats_and_n_differs(http: httpx.AsyncClient) -> None:
    bodies = {"max_tokens": 20, "seed": 3, "n": 3, "return_token_ids": True}
    first, second = await complete(http, **bodies), await complete(http, **bodies)
    ids = [choice["token_ids"] for choice in first["choices"]]
    assert ids == [choice["token_ids"] for choice in second["choices"]]
    assert len({tuple(i) for i in ids}) == 3
    assert first["usage"]["prompt_tokens"] == len(PROMPT)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [([1] * 600, 5), ([1] * 512, 1), ([1] * 510, 3), ([1] * 10, 503)]
)
async def test_what_does_not_fit_the_window_is_refused_as_by_vllm(
    http: httpx.AsyncClient, prompt: list[int], max_tokens: int
) -> None:
    response = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith("This model's maximum context length is 512 tokens.")
    assert f"requested {max_tokens} output tokens" in error["message"]
    assert f"at least {len(prompt)} input tokens" in error["message"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)


async def test_what_just_fits_is_served(http: httpx.AsyncClient) -> None:
    answer = await complete(http, prompt=[1] * 510, max_tokens=2, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"prompt": []}, 400, "empty"),
        ({"prompt": [100_000]}, 400, "token IDs must be in"),
        ({"prompt": [1], "frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"prompt": [1], "stream": True}, 400, "stream"),
        ({"prompt": [1], "temperature": -1}, 400, "temperature"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": [1], "model": "other"}, 404, "`other` does not exist"),
        ({}, 400, "prompt"),
    ],
)
async def test_requests_that_cannot_be_served_name_the_reason(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, word: str
) -> None:
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


async def test_neutral_and_unknown_parameters_are_accepted(http: httpx.AsyncClient) -> None:
    await complete(http, frequency_penalty=0.0, repetition_penalty=1.0, stream=False, user="me")


async def test_stop_strings_are_cut_from_the_text_only(http: httpx.AsyncClient) -> None:
    options = {"max_tokens": 60, "seed": 2, "return_token_ids": True, "ignore_eos": True}
    whole = await complete(http, **options)
    text = whole["choices"][0]["text"]
    stop = next(char for char in text[5:] if char.isascii() and char.isalnum())
    choice = (await complete(http, stop=stop, **options))["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    kept = (await complete(http, stop=stop, include_stop_str_in_output=True, **options))["choices"]
    assert kept[0]["text"] == text[: text.index(stop) + 1]
    assert kept[0]["token_ids"] == choice["token_ids"]


async def test_chat_uses_the_template_and_tokenize_agrees(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "max_tokens": 4, "logprobs": True, "return_token_ids": True}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    rendered = (await http.post("/v1/chat/completions/render", json={"messages": messages})).json()
    tokenized = (await http.post("/tokenize", json={"messages": messages})).json()
    assert answer["prompt_token_ids"] == rendered["token_ids"] == tokenized["tokens"]
    text = (await http.post("/detokenize", json={"tokens": tokenized["tokens"]})).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == 4


async def test_tools_reach_the_template_unless_switched_off(http: httpx.AsyncClient) -> None:
    tools = [{"type": "function", "function": {"name": "read_file"}}]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools}
    with_tools = (await http.post("/tokenize", json=body)).json()["tokens"]
    without = (await http.post("/tokenize", json={**body, "tool_choice": "none"})).json()["tokens"]
    assert len(with_tools) > len(without)
    forced = await http.post("/v1/chat/completions", json={**body, "tool_choice": "required"})
    assert forced.status_code == 400


async def test_a_client_that_hangs_up_stops_its_request(http: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await http.post(
            "/v1/completions",
            json={"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True},
            timeout=httpx.Timeout(60, read=0.05),
        )
    for _ in range(3000):
        stats = (await http.get("/stats")).json()
        if stats["in_flight"] == stats["running"] == 0:
            break
        await asyncio.sleep(0.01)
    assert (stats["in_flight"], stats["running"]) == (0, 0)


async def test_a_session_reuses_its_prefix_until_it_is_finished(http: httpx.AsyncClient) -> None:
    async def reused(prompt: list[int]) -> int:
        before = (await http.get("/stats")).json()["reused_tokens"]
        await http.post(
            "/v1/completions",
            json={"prompt": prompt, "max_tokens": 1},
            headers={"X-Session-ID": "trajectory"},
        )
        after: int = (await http.get("/stats")).json()["reused_tokens"]
        return after - before

    prompt = [200 - n for n in range(150)]
    await reused(prompt)
    assert await reused([*prompt, 7, 8]) == len(prompt)
    await http.post("/finish_session", params={"session_id": "trajectory"})
    assert await reused([*prompt, 7, 8]) < 10


async def test_models_health_and_world_size(http: httpx.AsyncClient, checkpoint: Path) -> None:
    models = (await http.get("/v1/models")).json()["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [(str(checkpoint), 512)]
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/get_world_size")).json() == {"world_size": 1}


async def test_an_unknown_endpoint_is_named_in_the_usual_shape(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/embeddings", json={})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "POST /v1/embeddings: Not Found"
