"""The rubric grader against a judge behind a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_hookspecs import VerifierError
from skyrl_apex_rubric.endpoint import Reply, TransientFault
from skyrl_apex_rubric.grader import RubricGrader
from skyrl_apex_rubric.judge import Judge, JudgeFailed, Patience, Usage

QUICK = {"tries": 3, "timeout": 30.0, "deadline": 60.0, "first_wait": 0.01, "longest_wait": 0.02}


def grader(judge: Any, **settings: Any) -> RubricGrader:
    fields = {
        "judges": [{"model": "fake", "base_url": judge.url}],
        "patience": QUICK,
        "cache_dir": None,
    }
    return RubricGrader(**{**fields, **settings})


async def test_the_score_is_the_share_of_criteria_that_hold(judge: Any, make_trial: Any) -> None:
    verdict = await grader(judge).grade(make_trial("says 42", "says 43", "true", "false"))
    assert verdict.score == 0.5
    assert [each.score for each in verdict.criteria] == [1.0, 0.0, 1.0, 0.0]
    assert verdict.criteria[0].rationale == "judged says 42"
    assert verdict.metrics["judge_calls"] == 4
    assert verdict.metrics["judge_prompt_tokens"] == 400


async def test_one_structured_call_for_each_criterion(judge: Any, make_trial: Any) -> None:
    trial = make_trial("says 42", golden=["42", {"response": "forty-two"}])
    await grader(judge).grade(trial)
    (request,) = judge.requests
    schema = request["response_format"]["json_schema"]
    assert schema["strict"] and schema["schema"]["additionalProperties"] is False
    document = json.loads(request["messages"][1]["content"])
    assert document == {
        "task": "Sum up.",
        "criterion": "says 42",
        "reference_responses": ["42", "forty-two"],
        "answer": {"final_answer": "the total is 42"},
    }


async def test_calls_at_once_are_limited_over_all_trials(judge: Any, make_trial: Any) -> None:
    judge.delay = 0.02
    trial = make_trial(*["true"] * 6)
    limited = [grader(judge, concurrency=3).grade(trial) for _ in range(4)]
    verdicts = await asyncio.gather(*limited)
    assert [verdict.score for verdict in verdicts] == [1.0] * 4
    assert judge.most_at_once == 3


async def test_a_judge_that_fails_gives_no_score(judge: Any, make_trial: Any) -> None:
    judge.fault = lambda _: "status_500"
    verdict = await grader(judge).grade(make_trial("true", "true"))
    assert verdict.score is None
    assert "no judgement on 2 of 2 criteria" in (verdict.error or "")
    assert "HTTP 500" in (verdict.error or "")
    assert [each.status for each in verdict.criteria] == ["error", "error"]
    assert verdict.metrics["judge_faults"] == 6


async def test_one_failed_criterion_refuses_unless_the_policy_skips_it(
    judge: Any, make_trial: Any
) -> None:
    def fail_second(request: Any) -> str | None:
        asked = json.loads(request["messages"][1]["content"])["criterion"]
        return "not_json" if asked == "false" else None

    judge.fault = fail_second
    trial = make_trial("true", "false", "says 43")
    assert (await grader(judge).grade(trial)).score is None
    skipped = await grader(judge, criterion_errors="skip").grade(trial)
    assert skipped.score == 0.5
    assert skipped.metrics["criteria_failed"] == 1
    judge.fault = lambda _: "not_json"
    assert (await grader(judge, criterion_errors="skip").grade(trial)).score is None


async def test_a_refused_key_is_not_tried_again(judge: Any, make_trial: Any) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 7\r\n\r\nbad key")
        await writer.drain()
        writer.close()

    calls: list[bytes] = []
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    judge.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    verdict = await grader(judge).grade(make_trial("true"))
    server.close()
    assert len(calls) == 1
    assert "HTTP 401" in (verdict.error or "") and "bad key" in (verdict.error or "")


async def test_answers_are_cached_and_faults_are_not(
    judge: Any, make_trial: Any, tmp_path: Path
) -> None:
    trial = make_trial("says 42", "false")
    first = await grader(judge, cache_dir=tmp_path / "cache").grade(trial)
    again = await grader(judge, cache_dir=tmp_path / "cache").grade(trial)
    assert first.score == again.score == 0.5
    assert len(judge.requests) == 2
    assert again.metrics["judge_cache_hits"] == 2 and again.metrics["judge_calls"] == 0

    other = make_trial("says 42", "false", answer="the total is 43")
    assert (await grader(judge, cache_dir=tmp_path / "cache").grade(other)).score == 0.0
    assert len(judge.requests) == 4

    judge.fault = lambda _: "wrong_type"
    new = make_trial("true")
    assert (await grader(judge, cache_dir=tmp_path / "cache").grade(new)).score is None
    judge.fault = lambda _: None
    assert (await grader(judge, cache_dir=tmp_path / "cache").grade(new)).score == 1.0


async def test_a_damaged_cache_file_is_asked_for_again(
    judge: Any, make_trial: Any, tmp_path: Path
) -> None:
    await grader(judge, cache_dir=tmp_path / "cache").grade(make_trial("true"))
    (stored,) = (tmp_path / "cache").rglob("*.json")
    stored.write_text('{"rationale": "", "is_criteria_true"')
    verdict = await grader(judge, cache_dir=tmp_path / "cache").grade(make_trial("true"))
    assert verdict.score == 1.0 and len(judge.requests) == 2
    assert json.loads(stored.read_text())["is_criteria_true"] is True


@pytest.mark.parametrize(
    ("models", "score"),
    [
        ("fake fake fake", 1.0),
        ("fake contrary fake", 1.0),
        ("contrary fake contrary", 0.0),
        ("broken fake fake", 1.0),
        ("broken fake contrary", None),
        ("broken broken fake", None),
        ("broken broken broken", None),
    ],
)
async def test_more_than_half_of_the_whole_panel_decide(
    judge: Any, make_trial: Any, models: str, score: float | None
) -> None:
    judge.fault = lambda request: "status_500" if request["model"] == "broken" else None
    panel = [{"model": name, "base_url": judge.url} for name in models.split()]
    verdict = await grader(judge, judges=panel).grade(make_trial("true"))
    assert verdict.score == score


async def test_judges_of_one_model_are_asked_and_cached_one_by_one(
    judge: Any, make_trial: Any, tmp_path: Path
) -> None:
    panel = [{"model": "fake", "base_url": judge.url}] * 3
    made = grader(judge, judges=panel, cache_dir=tmp_path / "cache")
    await made.grade(make_trial("true"))
    assert len(judge.requests) == 3


async def test_no_answer_fails_without_a_call_but_no_record_is_an_error(
    judge: Any, make_trial: Any
) -> None:
    verdict = await grader(judge).grade(make_trial("true", answer=None))
    assert verdict.score == 0.0 and not judge.requests
    foreign = dataclasses.replace(make_trial("true", answer=None), trajectory=None)
    with pytest.raises(VerifierError, match="no answer on record"):
        await grader(judge).grade(foreign)


async def test_cost_follows_the_price(judge: Any, make_trial: Any) -> None:
    priced = [{"model": "fake", "base_url": judge.url, "price": [2.0, 50.0]}]
    verdict = await grader(judge, judges=priced).grade(make_trial("true"))
    assert verdict.metrics["judge_cost_usd"] == pytest.approx((100 * 2 + 10 * 50) / 1e6)
    assert verdict.metrics["judge_seconds"] > 0


async def test_model_and_key_come_from_the_environment(judge: Any, make_trial: Any) -> None:
    env = {"GRADING_MODEL": "house-model", "JUDGE_KEY": "s3cret"}
    settings = [{"base_url": judge.url, "api_key_env": "JUDGE_KEY"}]
    verdict = await grader(judge, judges=settings).grade(make_trial("true", env=env))
    assert judge.requests[0]["model"] == "house-model"
    assert "Bearer s3cret" in judge.headers[0]
    assert "s3cret" not in repr(verdict)


async def test_the_default_judge_is_gemini_and_names_its_key(
    make_trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GRADING_MODEL", raising=False)
    with pytest.raises(VerifierError, match=r"'gemini-.*GOOGLE_API_KEY, which is not set"):
        await RubricGrader(cache_dir=None).grade(make_trial("true"))


@pytest.mark.parametrize(
    ("verifiers", "message"),
    [
        ("[]", "no criteria"),
        ("{}", "expected a list, found dict"),
        ("[{", "not JSON"),
        ('[{"verifier_id": "a"}]', "lacks 'verifier_values'"),
        ('[{"verifier_values": {"criteria": "x"}}]', "lacks 'verifier_id'"),
        (
            '[{"verifier_id": "a", "verifier_values": {"criteria": "x"}},'
            ' {"verifier_id": "a", "verifier_values": {"criteria": "y"}}]',
            "appears twice",
        ),
    ],
)
async def test_faulty_rubrics_are_errors(
    judge: Any, make_trial: Any, verifiers: str, message: str
) -> None:
    trial = make_trial("true")
    (trial.task.directory / "tests" / "verifiers.json").write_text(verifiers)
    with pytest.raises(VerifierError, match=message):
        await grader(judge).grade(trial)


def test_settings_are_checked_when_the_run_starts() -> None:
    with pytest.raises(ValueError, match="2 judges; an odd number"):
        RubricGrader(judges=[{}, {}])
    with pytest.raises(ValueError, match="known: refuse, skip"):
        RubricGrader(criterion_errors="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 0}, "concurrency=0: expected a whole number of at least 1"),
        ({"concurrency": True}, "concurrency=True"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"longest_answer": 0}, "longest_answer=0"),
        ({"longest_file": "9"}, "longest_file='9'"),
        ({"patience": {"tries": 0}}, r"patience\.tries=0"),
        ({"patience": {"tries": 2.5}}, r"patience\.tries=2\.5"),
        ({"patience": {"timeout": 0}}, r"patience\.timeout=0"),
        ({"patience": {"deadline": -1}}, r"patience\.deadline=-1"),
        ({"patience": {"deadline": float("inf")}}, r"patience\.deadline=inf"),
        ({"patience": {"first_wait": float("nan")}}, r"patience\.first_wait=nan"),
        ({"patience": {"longest_wait": "30"}}, r"patience\.longest_wait='30'"),
        ({"patience": {"trys": 3}}, "unknown settings of patience: trys; known: tries, timeout"),
        ({"patience": 3}, "settings of patience: expected names and values, found int"),
        ({"judges": [{"modle": "m"}]}, "unknown settings of a judge: modle; known: model"),
        ({"judges": ["m"]}, "settings of a judge: expected names and values, found str"),
        ({"judges": [{"price": 3}]}, "price=3"),
        ({"judges": [{"price": (1, -1)}]}, "price=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"grader rubric: .*{message}|grader rubric: {message}"):
        RubricGrader(**settings)


class Down:
    identity = "down"

    async def ask(self, messages: Any, temperature: float) -> Reply:
        raise TransientFault("down")

    async def aclose(self) -> None: ...


async def test_waits_stay_bounded_over_very_many_tries() -> None:
    patience = Patience(tries=1100, first_wait=1e-9, longest_wait=0.0)
    with pytest.raises(JudgeFailed, match="nothing valid in 1100 tries"):
        await Judge(endpoint=Down(), patience=patience, usage=Usage()).judge([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entries: ["c0", *entries], "expected objects, found 'c0'"),
        (lambda entries: [None], "expected objects, found None"),
        (
            lambda entries: [{**entries[0], "verifier_index": "1"}],
            "verifier_index='1' is no number",
        ),
        (lambda entries: [*entries, {**entries[0], "verifier_index": {}}], "is no number"),
    ],
)
async def test_faulty_entries_are_errors_that_name_the_file(
    judge: Any, make_trial: Any, change: Any, message: str
) -> None:
    trial = make_trial("true")
    path = trial.task.directory / "tests" / "verifiers.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(VerifierError, match=message) as raised:
        await grader(judge).grade(trial)
    assert str(path) in str(raised.value)
