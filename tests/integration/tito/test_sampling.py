"""The sampling client against a scripted engine on a real socket."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skyrl_apex_hookspecs import (
    ContextLengthExceeded,
    EngineError,
    Sampler,
    SamplingParams,
    TokenError,
)
from skyrl_apex_plugin.agent import retries
from skyrl_apex_plugin.agent.sampling import CompletionsSampler

PARAMS = SamplingParams(max_tokens=16, stop_token_ids=(7,))
VLLM_CONTEXT = (
    "This model's maximum context length is 4096 tokens. However, you requested 8 output tokens "
    "and your prompt contains at least 4090 input tokens."
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.01)


@pytest.fixture
async def sampler(engine: Any) -> AsyncIterator[CompletionsSampler]:
    found = CompletionsSampler(engine.url, "policy", timeout=5.0, cache_salt="7")
    yield found
    await found.aclose()


async def test_ids_go_in_and_come_out(engine: Any, sampler: Any, answer: Any) -> None:
    engine.script = [answer([5, 7], [-0.5, -0.25], weight_version=3)]
    sample = await sampler.sample(array("i", [1, 2, 3]), PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5, 7]
    assert list(sample.logprobs) == [-0.5, -0.25]
    assert (sample.finish_reason, sample.weight_version) == ("stop", 3)
    (body,) = engine.requests
    assert body["prompt"] == [1, 2, 3]
    assert body["return_token_ids"] is True and body["logprobs"] is not None
    assert body["stop_token_ids"] == [7] and body["max_tokens"] == 16
    assert body["model"] == "policy"
    assert body["session_id"] == "s1" and engine.headers[0]["x-session-id"] == "s1"
    assert body["cache_salt"] == "7"
    assert isinstance(sampler, Sampler)


async def test_a_growing_prompt_is_sent_whole_each_time(
    engine: Any, sampler: Any, answer: Any
) -> None:
    engine.script = [answer([5, 7], [-0.5, -0.25]) for _ in range(3)]
    prompt = array("i", [1, 2])
    for _ in range(2):
        await sampler.sample(prompt, PARAMS, session_id="s1")
        prompt.extend([5, 7, 9])
    await sampler.sample([4], PARAMS, session_id="s1")
    assert [body["prompt"] for body in engine.requests] == [[1, 2], [1, 2, 5, 7, 9], [4]]


async def test_an_engine_that_saw_another_prompt_is_a_token_error(
    engine: Any, sampler: Any, answer: Any
) -> None:
    engine.script = [answer([5], [-0.5])]
    engine.echo = lambda prompt: [0, *prompt]
    with pytest.raises(TokenError, match="turn 0 of session s1: the engine saw a prompt"):
        await sampler.sample([1, 2], PARAMS, session_id="s1")


async def test_the_echo_is_asked_for_once_where_ids_come_otherwise(
    engine: Any, sampler: Any, answer: Any
) -> None:
    spelled = {"token_logprobs": [-0.5, -0.25], "tokens": ["token_id:5", "token_id:7"]}
    engine.script = [answer([5, 7], [-0.5, -0.25]) for _ in range(2)]
    for reply in engine.script:
        reply.body["choices"][0]["logprobs"] = spelled
    engine.script[1].body["choices"][0].pop("token_ids")
    for prompt in ([1, 2], [1, 2, 5, 7, 9]):
        sample = await sampler.sample(prompt, PARAMS, session_id="s1")
        assert sample.token_ids.tolist() == [5, 7]
    assert [body["return_token_ids"] for body in engine.requests] == [True, False]


@pytest.mark.parametrize(
    ("ids", "logprobs", "message"),
    [
        ([1, 2, 3], [-1.0, -1.0], "3 token IDs and 2 logprobs"),
        ([1, 2], None, "2 token IDs and no logprobs"),
        ([1, 2], [-1.0, None], "logprob 1 of 2 is missing"),
        ([], [], "no tokens"),
    ],
)
async def test_what_does_not_match_names_the_turn_and_lengths(
    engine: Any, sampler: Any, answer: Any, ids: Any, logprobs: Any, message: str
) -> None:
    engine.script = [answer([5], [-0.5]), answer(ids, logprobs)]
    await sampler.sample([1], PARAMS, session_id="s1")
    with pytest.raises(TokenError, match=f"turn 1 of session s1.*{message}"):
        await sampler.sample([1, 5, 6], PARAMS, session_id="s1")
    assert len(engine.requests) == 2, "asking again would not help"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": VLLM_CONTEXT, "type": "BadRequestError", "code": 400}}),
        (400, {"error": {"message": "no", "code": "context_length_exceeded"}}),
        (500, {"message": "The decoder prompt is longer than the maximum model length of 4096"}),
        (413, "Payload Too Large"),
    ],
)
async def test_a_full_window_is_recognised_and_never_retried(
    engine: Any, sampler: Any, reply: Any, status: int, body: Any
) -> None:
    engine.script = [reply(body, status)]
    with pytest.raises(ContextLengthExceeded):
        await sampler.sample([1], PARAMS, session_id="s1")
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refused_request_is_not_repeated(
    engine: Any, sampler: Any, reply: Any, status: int
) -> None:
    engine.script = [reply({"error": {"message": "top_p must be in (0, 1]"}}, status)]
    with pytest.raises(EngineError, match="top_p must be"):
        await sampler.sample([1], PARAMS, session_id="s1")
    assert len(engine.requests) == 1


async def test_each_class_of_fault_has_its_own_budget(engine: Any, answer: Any, reply: Any) -> None:
    sampler = CompletionsSampler(
        engine.url, timeout=0.3, timeout_retries=1, rate_limit_retries=2, transient_retries=1
    )
    engine.script = [
        reply("busy", 429, {"Retry-After": "0.05"}),
        reply("down", 503),
        answer([5], [-0.5]),
    ]
    engine.script.insert(1, reply("busy", 429))
    engine.script.insert(3, reply(None, delay=1.0))
    sample = await sampler.sample([1], PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5]
    metrics = sampler.metrics
    assert metrics["requests"] == 5
    assert metrics["retries_rate_limit"] == 2
    assert metrics["retries_transient"] == 1 and metrics["retries_timeout"] == 1
    engine.script = [reply("down", 503), reply("down", 503)]
    with pytest.raises(EngineError, match="transient fault, 1 retries used up"):
        await sampler.sample([1], PARAMS, session_id="s1")
    await sampler.aclose()


async def test_retry_after_is_waited_for(
    engine: Any, sampler: Any, answer: Any, reply: Any
) -> None:
    engine.script = [reply("busy", 429, {"Retry-After": "0.4"}), answer([5], [-0.5])]
    started = time.perf_counter()
    await sampler.sample([1], PARAMS, session_id="s1")
    assert time.perf_counter() - started >= 0.4


async def test_a_broken_connection_is_transient(
    engine: Any, sampler: Any, answer: Any, reply: Any
) -> None:
    engine.script = [reply(hang_up=True), answer([5], [-0.5])]
    sample = await sampler.sample([1], PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5]


async def test_an_aborted_turn_is_taken_up_where_it_stopped(
    engine: Any, sampler: Any, answer: Any
) -> None:
    engine.script = [
        answer([5, 6], [-0.5, -0.25], "abort", weight_version=1),
        answer([7], [-0.125], "stop", weight_version=2),
    ]
    sample = await sampler.sample([1], PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5, 6, 7]
    assert list(sample.logprobs) == [-0.5, -0.25, -0.125]
    assert engine.requests[1]["prompt"] == [1, 5, 6]
    assert engine.requests[1]["max_tokens"] == 14
    assert sampler.metrics["aborted"] == 1


async def test_finishing_tells_the_engine_and_never_raises(engine: Any, sampler: Any) -> None:
    await sampler.finish("s1")
    assert engine.finished == ["s1"]
    gone = CompletionsSampler("http://127.0.0.1:9")
    await gone.finish("s2")
    await gone.aclose()


async def test_many_sessions_at_once_do_not_mix(engine: Any, sampler: Any, answer: Any) -> None:
    engine.script = [answer([5], [-0.5]) for _ in range(20)]
    await asyncio.gather(
        *[sampler.sample([n, n + 1], PARAMS, session_id=f"s{n}") for n in range(20)]
    )
    prompts = {body["session_id"]: body["prompt"] for body in engine.requests}
    assert prompts == {f"s{n}": [n, n + 1] for n in range(20)}


def test_an_empty_cache_salt_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_salt is empty"):
        CompletionsSampler("http://127.0.0.1:9", cache_salt="")


def test_retry_after_takes_seconds_and_dates() -> None:
    assert retries.retry_after("2.5") == 2.5
    assert retries.retry_after("-1") == 0.0
    assert retries.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retries.retry_after("soon") is None and retries.retry_after(None) is None
