"""Hosted services, spoken to over a real socket in their own form."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from skyrl_apex_hookspecs import ContextLengthExceeded, Sampler, SamplingParams, TokenError
from skyrl_apex_plugin.agent import retries
from skyrl_apex_plugin.agent.samplers_hosted import OpenAISampler, TinkerSampler
from skyrl_apex_plugin.discovery import resolve

PARAMS = SamplingParams(max_tokens=16, stop_token_ids=(7,))


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("FIREWORKS_API_KEY", "secret-key")


def hosted(engine: Any, **kwargs: Any) -> OpenAISampler:
    arguments = {"api_key_env": "FIREWORKS_API_KEY", **kwargs}
    return OpenAISampler(f"{engine.url}/v1", "accounts/a/models/m", **arguments)


def fireworks(reply: Any, ids: list[int], logprobs: list[float]) -> Any:
    found = {"token_ids": ids, "token_logprobs": logprobs, "tokens": ["a"] * len(ids)}
    choice = {"index": 0, "text": "a", "finish_reason": "stop", "logprobs": found}
    return reply({"choices": [choice]})


async def test_the_fireworks_dialect(engine: Any, reply: Any) -> None:
    sampler = hosted(engine, cache_salt="7")
    engine.script = [fireworks(reply, [5, 7], [-0.5, -0.25])]
    sample = await sampler.sample([1, 2, 3], PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5, 7] and list(sample.logprobs) == [-0.5, -0.25]
    (body,) = engine.requests
    assert body["prompt"] == [1, 2, 3] and body["model"] == "accounts/a/models/m"
    assert not {"top_k", "min_p", "stop_token_ids", "session_id", "cache_salt"} & set(body)
    assert engine.headers[0]["x-session-affinity"] == "s1"
    assert engine.headers[0]["authorization"] == "Bearer secret-key"
    await sampler.finish("s1")
    assert engine.finished == [], "a hosted service has no sessions to finish"
    assert isinstance(sampler, Sampler)
    await sampler.aclose()


async def test_faults_are_classified_as_elsewhere(engine: Any, reply: Any) -> None:
    sampler = hosted(engine)
    message = "you exceed the maximum number of tokens per minute"
    engine.script = [reply(message, 429), fireworks(reply, [5], [-0.5])]
    sample = await sampler.sample([1], PARAMS, session_id="s1")
    assert sample.token_ids.tolist() == [5]
    engine.script = [reply({"error": {"code": "context_length_exceeded"}}, 400)]
    with pytest.raises(ContextLengthExceeded):
        await sampler.sample([1], PARAMS, session_id="s1")
    engine.script = [fireworks(reply, [5, 6], [-0.5])]
    with pytest.raises(TokenError, match="2 token IDs and 1 logprobs"):
        await sampler.sample([1], PARAMS, session_id="s1")
    await sampler.aclose()


def test_a_missing_key_and_an_unknown_dialect_are_named(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="unknown dialect 'x'; known: vllm, fireworks"):
        hosted(engine, dialect="x")
    monkeypatch.delenv("FIREWORKS_API_KEY")
    with pytest.raises(ValueError, match="FIREWORKS_API_KEY is not set"):
        hosted(engine)


def test_the_names_resolve() -> None:
    assert resolve("sampler", "openai") is OpenAISampler
    assert resolve("sampler", "tinker") is TinkerSampler


def test_tinker_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match="give one of base_model"):
        TinkerSampler(base_model="m", model_path="tinker://x")
    if importlib.util.find_spec("tinker") is None:
        with pytest.raises(ImportError, match="pip install tinker"):
            TinkerSampler(base_model="m")
