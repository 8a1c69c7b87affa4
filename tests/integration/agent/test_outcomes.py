"""Every way a run ends has one name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from agent_parts import Run, call
from fault_proxy import FaultProxy

from skyrl_apex_hookspecs import (
    EngineError,
    Outcome,
    SetupError,
    TokenError,
    ToolSessionLost,
)
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_outcome, read_turns

pytestmark = pytest.mark.usefixtures("no_leaks")

READ = call("files_read", path="/none")
LONG_ANSWER = "word " * 60


async def test_a_turn_at_its_own_cap_is_length_not_overflow(run: Run) -> None:
    outcome = await run(LONG_ANSWER, turn_max_tokens=20, max_context=20_000)
    assert outcome.outcome is Outcome.LENGTH
    assert len(run.ledger.tokens) == run.ledger.prompt_length + 20


async def test_a_turn_cut_by_the_window_is_context_length_and_kept(run: Run) -> None:
    prompt = await run.prompt_length()
    outcome = await run(LONG_ANSWER, max_context=prompt + 20)
    assert outcome.outcome is Outcome.CONTEXT_LENGTH
    assert len(run.ledger.tokens) == prompt + 20


async def test_a_finished_answer_that_fills_the_window_is_complete(run: Run) -> None:
    prompt = await run.prompt_length()
    tokens = run.count_tokens(LONG_ANSWER) + 1  # and the stop token
    outcome = await run(LONG_ANSWER, max_context=prompt + tokens)
    assert outcome.outcome is Outcome.COMPLETE
    assert len(run.ledger.tokens) == prompt + tokens
    assert outcome.answer.strip() == LONG_ANSWER.strip()


async def test_an_observation_that_does_not_fit_ends_the_run(run: Run) -> None:
    prompt = await run.prompt_length()
    turn = run.count_tokens(READ) + 1
    outcome = await run(READ, "never said", max_context=prompt + turn + 5)
    assert outcome.outcome is Outcome.CONTEXT_LENGTH
    assert len(run.ledger.tokens) == prompt + turn, "the turn is kept, the observation is not"


async def test_a_prompt_that_fills_the_window_has_no_turn(run: Run) -> None:
    outcome = await run("never said", max_context=10)
    assert outcome.outcome is Outcome.CONTEXT_LENGTH and outcome.metrics["turns"] == 0


async def test_the_step_limit(run: Run) -> None:
    outcome = await run(*[READ] * 5, max_turns=2)
    assert outcome.outcome is Outcome.MAX_TURNS and outcome.metrics["tool_calls"] == 2


async def test_the_wall_clock(run: Run) -> None:
    outcome = await run(call("files_slow", seconds=60, tag="clock"), timeout_sec=5.0)
    assert outcome.outcome is Outcome.AGENT_TIMEOUT
    assert outcome.metrics["turns"] == 1


async def test_a_turn_without_a_readable_call_is_corrected_a_bounded_number_of_times(
    run: Run,
) -> None:
    broken = '<tool_call>\n{"name": "files_write", "arguments": {"path":'
    outcome = await run(broken, broken, broken, READ, max_corrections=2)
    assert outcome.outcome is Outcome.COMPLETE
    assert outcome.metrics["turns"] == 3 and outcome.metrics["malformed_turns"] == 3
    assert outcome.metrics["servers"] == {}


async def test_an_empty_turn_is_corrected(run: Run) -> None:
    outcome = await run("", "Better.")
    assert (outcome.outcome, outcome.answer) == (Outcome.COMPLETE, "Better.")


async def test_a_wrong_call_is_answered_by_a_correction_and_not_sent(run: Run) -> None:
    outcome = await run(call("files_write", path="/x"), call("file_read", path="/x"), "Done.")
    texts = [r["text"] for line in read_turns(run.trial_dir) for r in line.get("results", [])]
    assert "missing required argument 'text'" in texts[0]
    assert "files_read" in texts[1]
    assert outcome.metrics["tool_calls_refused"] == 2
    assert not any(action.endswith("/x") for action in run.gateway.actions())


async def test_the_final_answer_tool_ends_the_run(run: Run) -> None:
    outcome = await run(
        READ + "\n" + call("final_answer", answer="41") + "\n" + call("files_read", path="/late"),
        final_answer_tool="final_answer",
    )
    assert (outcome.outcome, outcome.answer) == (Outcome.COMPLETE, "41")
    assert outcome.metrics["tool_calls"] == 1 and "read /late" not in run.gateway.actions()


async def test_the_model_is_warned_once_before_the_window_is_full(run: Run) -> None:
    await run(READ, READ, "Done.", budget_warning_tokens=1_000_000)
    told = [
        str(r.content)
        for step in read_trajectory(run.trial_dir).steps
        if step.observation
        for r in step.observation.results
    ]
    assert not any("tokens are left" in text for text in told), "the tool did not say that"
    assert run.ledger_text().count("tokens are left") == 1


async def test_hints_and_the_extra_prompt_reach_the_model(run: Run) -> None:
    hints = run.task_dir / "tests" / "hints.json"
    hints.parent.mkdir(parents=True)
    hints.write_text(json.dumps(["look in the mail"]))
    await run("Done.", use_hints=True, extra_prompt="Be brief.")
    prompt = run.ledger_text().split("=== turn 0")[0]
    assert "look in the mail" in prompt and "Be brief." in prompt


async def test_missing_servers_are_a_setup_error_that_names_them(run: Run) -> None:
    with pytest.raises(SetupError, match="no tools from calendar"):
        await run(
            "never said",
            prepare={"servers": ["files", "mail", "calendar"]},
            world_start_timeout_sec=5.0,
        )
    outcome = read_outcome(run.trial_dir)
    assert outcome is not None and outcome.outcome is Outcome.SETUP_ERROR
    assert "calendar" in str(outcome.error_message)


async def test_a_missing_key_is_named_before_the_world_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APEX_TEST_KEY", raising=False)
    run.describe(required_env_keys=["APEX_TEST_KEY"])
    with pytest.raises(SetupError, match="APEX_TEST_KEY"):
        await run("never said")
    assert run.environment.commands == []


async def test_a_lost_gateway_is_tool_session_lost(
    run: Run, proxied: Callable[..., Awaitable[FaultProxy]]
) -> None:
    proxy = await proxied()
    stopping = []

    def stop_at_first_call(_: str) -> None:
        stopping.append(asyncio.ensure_future(proxy.stop()))

    proxy.choose = stop_at_first_call
    with pytest.raises(ToolSessionLost):
        await run(
            call("files_write", path="/lost", text="x"),
            READ,
            "never said",
            prepare={"gateway_url": f"http://127.0.0.1:{proxy.port}"},
            reconnect_timeout_sec=0.5,
        )
    outcome = read_outcome(run.trial_dir)
    assert outcome is not None and outcome.outcome is Outcome.TOOL_SESSION_LOST
    assert outcome.metrics["turns"] == 2, "what happened before is on record"
    assert len(run.ledger.turns) == 2


async def test_an_engine_that_is_away_is_engine_error(run: Run) -> None:
    kwargs = {"base_url": "http://127.0.0.1:9/v1", "transient_retries": 0}
    with pytest.raises(EngineError):
        await run("never said", sampler={"name": "completions", "kwargs": kwargs})
    outcome = read_outcome(run.trial_dir)
    assert outcome is not None and outcome.outcome is Outcome.ENGINE_ERROR


async def test_tokens_that_do_not_fit_are_token_error(run: Run) -> None:
    with pytest.raises(TokenError, match="logprobs"):
        await run("no logprobs", sampler=run.sampler(extra_body={"drop_logprobs": True}))
    outcome = read_outcome(run.trial_dir)
    assert outcome is not None and outcome.outcome is Outcome.TOKEN_ERROR


@pytest.mark.parametrize("exception_type", ["AgentTimeoutError", "CancelledError"])
async def test_cancellation_is_named_and_harbors_own_limit_is_a_timeout(
    run: Run, exception_type: str
) -> None:
    task = asyncio.create_task(run(call("files_slow", seconds=20, tag=exception_type)))
    await run.until_action(f"slow {exception_type}")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = {"exception_info": {"exception_type": exception_type}}
    (run.trial_dir / "result.json").write_text(json.dumps(result))
    outcome = read_outcome(run.trial_dir)
    expected = "agent_timeout" if exception_type == "AgentTimeoutError" else "cancelled"
    assert outcome is not None and outcome.outcome == expected
    assert outcome.metrics["turns"] == 1


async def test_a_run_that_never_began_has_no_outcome(run: Run) -> None:
    assert read_outcome(run.trial_dir) is None


async def test_an_unreadable_outcome_is_an_error_that_names_the_file(run: Run) -> None:
    run.trial_dir.mkdir()
    (run.trial_dir / "outcome.json").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match=r"outcome\.json.*schema 2"):
        read_outcome(run.trial_dir)
