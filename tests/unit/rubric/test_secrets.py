"""No key of a judge is written, whatever the judge answers and wherever the key stands."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skyrl_apex_hookspecs import Verdict, VerifierError
from skyrl_apex_rubric.endpoint import _retry_after, make_endpoint
from skyrl_apex_rubric.grader import RubricGrader

KEY = "sk-1234567890abcdef"
PASSWORD = "pass:word/é"
LOGIN = "grader:pass%3Aword%2F%C3%A9"
PATIENCE = {"tries": 2, "timeout": 2.0, "deadline": 5.0, "first_wait": 0.0}


@dataclass
class Echo:
    """An endpoint that repeats what it was sent: headers and body, under a status of its own."""

    place: str = ""
    status: int = 401
    wrap: Callable[[str], str] = str
    heard: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        await reader.readexactly(length)
        self.heard = head
        sent = " ".join(
            line.split(": ", 1)[1]
            for line in head.split("\r\n")
            if line.lower().startswith("authorization")
        )
        body = self.wrap(f"{sent} {KEY} {PASSWORD}").encode()
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield made
    server.close()


def completion(content: Callable[[str], str]) -> Callable[[str], str]:
    def wrap(text: str) -> str:
        message = {"content": content(text)}
        return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})

    return wrap


def shown(verdict: Verdict) -> str:
    return json.dumps(asdict(verdict), ensure_ascii=False)


def hides(text: str) -> bool:
    pair = base64.b64encode(f"grader:{PASSWORD}".encode()).decode()
    return not any(each in text for each in (KEY, KEY[:12], PASSWORD, LOGIN, pair))


@pytest.mark.parametrize("login", ["", f"{LOGIN}@"])
@pytest.mark.parametrize(
    ("status", "wrap"),
    [
        (401, str),
        (500, str),
        (401, lambda text: "x" * 490 + text),  # the key lies across the cut
        (500, lambda text: "x" * 190 + text),
        (200, str),
        (200, lambda text: json.dumps({"choices": [], "why": text})),
        (200, completion(str)),
        (200, completion(lambda text: json.dumps({"rationale": text, "is_criteria_true": True}))),
        (200, completion(lambda text: json.dumps({"rationale": text, "verdict": text}))),
    ],
)
async def test_nothing_that_a_judge_repeats_holds_a_key(
    echo: Echo, make_trial: Any, tmp_path: Path, login: str, status: int, wrap: Any
) -> None:
    echo.status, echo.wrap = status, wrap
    grader = RubricGrader(
        judges=[
            {
                "model": "m",
                "base_url": f"http://{login}{echo.place}",
                "api_key_env": "JUDGE",
                "extra_body": {"api_key": KEY, "headers": [{"Authorization": f"Bearer {KEY}"}]},
            }
        ],
        patience=PATIENCE,
        cache_dir=tmp_path / "cache",
    )
    env = {"JUDGE": KEY, "DB_PASSWORD": PASSWORD}
    verdict = await grader.grade(make_trial("true", env=env))
    assert hides(shown(verdict)), shown(verdict)
    assert "***" in shown(verdict) or "x" * 190 in shown(verdict)
    for path in (tmp_path / "cache").rglob("*.json"):
        assert hides(json.dumps(json.loads(path.read_text()), ensure_ascii=False))


async def test_user_and_password_of_a_url_still_reach_the_judge(
    echo: Echo, make_trial: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    judges = [{"model": "m", "base_url": f"http://{LOGIN}@{echo.place}"}]
    await RubricGrader(judges=judges, patience=PATIENCE, cache_dir=None).grade(make_trial("true"))
    assert base64.b64encode(f"grader:{PASSWORD}".encode()).decode() in echo.heard
    assert echo.place in caplog.text and hides(caplog.text)


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": f"http://{LOGIN}@judge.example/v1"},
        {"base_url": "http://judge.example/v1", "extra_body": {"x": [{"api_key": KEY}]}},
        {"extra_body": {"api_base": f"http://{LOGIN}@judge.example/v1", "api_keys": {"a": KEY}}},
    ],
)
async def test_an_identity_holds_no_key_and_keeps_other_settings(settings: Any) -> None:
    settings.setdefault("extra_body", {})["top_k"] = 5
    endpoint = make_endpoint(env={}, timeout=1, model="m", **settings)
    await endpoint.aclose()
    assert hides(endpoint.identity) and '"top_k": 5' in endpoint.identity
    assert settings.get("base_url") is None or "judge.example/v1 m" in endpoint.identity


@pytest.mark.parametrize("wrong", ["é", "\n", " ", "\u200b"])
async def test_a_key_that_no_header_carries_is_refused_and_not_shown(
    make_trial: Any, wrong: str
) -> None:
    grader = RubricGrader(
        judges=[{"model": "m", "base_url": "http://127.0.0.1:9", "api_key_env": "JUDGE"}],
        cache_dir=None,
    )
    with pytest.raises(VerifierError, match="variable JUDGE is no key") as raised:
        await grader.grade(make_trial("true", env={"JUDGE": KEY + wrong}))
    assert hides(str(raised.value))


async def test_what_litellm_passes_on_holds_no_key(
    make_trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider's error repeats a key that litellm found in the environment by itself."""

    async def refuse(**_: Any) -> None:
        raise ValueError(f"Incorrect API key provided: {KEY}")

    stub, exceptions = ModuleType("litellm"), ModuleType("litellm.exceptions")
    vars(stub).update(acompletion=refuse, exceptions=exceptions)
    for name in ("AuthenticationError", "BadRequestError", "NotFoundError"):
        setattr(exceptions, name, type(name, (Exception,), {}))
    monkeypatch.setitem(sys.modules, "litellm", stub)
    monkeypatch.setitem(sys.modules, "litellm.exceptions", exceptions)
    monkeypatch.setenv("PROVIDER_API_KEY", KEY)
    grader = RubricGrader(judges=[{"model": "m"}], patience=PATIENCE, cache_dir=None)
    verdict = await grader.grade(make_trial("true"))
    assert "Incorrect API key provided: ***" in (verdict.error or "") and hides(shown(verdict))


@pytest.mark.parametrize("header", ["nan", "inf", "-1", "1e999", "soon", ""])
def test_a_wait_that_is_no_time_is_not_taken(header: str) -> None:
    assert _retry_after(header) is None
    assert _retry_after("2.5") == 2.5
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
