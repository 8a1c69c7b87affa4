"""The whole agent against a real gateway and a real model server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from agent_parts import Run, call
from harbor.models.task.config import MCPServerConfig

from skyrl_apex_hookspecs import Observation, Outcome, TurnFinished, hookimpl
from skyrl_apex_plugin.agent import token_conversation
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_turns
from skyrl_apex_plugin.discovery import plugin_manager

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("mode", ["tito", "chat"])
async def test_works_through_its_tools_to_an_answer(run: Run, mode: str) -> None:
    path = f"/{mode}/{run.trial_dir.parent.name}"
    outcome = await run(
        call("files_write", path=path, text="forty-two"),
        call("files_read", path=path) + "\n" + call("files_read", path="/none"),
        "It is forty-two.",
        mode=mode,
    )
    assert outcome.outcome is Outcome.COMPLETE
    assert outcome.answer == "It is forty-two."
    assert run.environment.files["/logs/agent/answer.txt"] == "It is forty-two."
    assert outcome.metrics["turns"] == 3
    assert outcome.metrics["servers"]["files"]["calls"] == 3
    assert run.gateway.actions().count(f"write {path}") == 1
    trajectory = read_trajectory(run.trial_dir)
    results = [r.content for s in trajectory.steps if s.observation for r in s.observation.results]
    assert results[1:] == ["forty-two", "(the tool returned nothing)"]


async def test_the_token_record_holds_what_was_sampled(run: Run) -> None:
    await run(call("files_read", path="/none"), "Nothing.")
    ledger = run.ledger
    assert len(ledger.turns) == 2
    assert [c.name for c in ledger.turns[0].calls] == ["files_read"]
    detail = run.context.rollout_details[0]
    assert detail["completion_token_ids"][1] == ledger.tokens[ledger.turns[1].start :].tolist()
    assert detail["prompt_token_ids"][1] == ledger.tokens[: ledger.turns[1].start].tolist()
    steps = [s for s in read_trajectory(run.trial_dir).steps if s.source == "agent"]
    assert steps[0].metrics.completion_token_ids == detail["completion_token_ids"][0]


async def test_chat_has_no_token_record(run: Run) -> None:
    await run("Done.", mode="chat")
    assert not (run.trial_dir / "agent" / "tokens.apex").exists()
    assert run.context.rollout_details is None
    assert json.loads((run.trial_dir / "outcome.json").read_text())["schema"] == 1


async def test_turns_are_on_disk_before_the_run_ends(run: Run) -> None:
    await run(call("files_read", path="/none"), "Done.")
    kinds = [line["kind"] for line in read_turns(run.trial_dir)]
    assert kinds == ["start", "model", "tools", "model", "tools"]


async def test_parallel_calls_keep_their_order(run: Run) -> None:
    """Reading calls of a turn run together; the model sees the answers in its own order."""
    slow = [call("files_shape", kind=kind) for kind in ("json", "empty", "image")]
    await run("\n".join([call("files_write", path="/order", text="x"), *slow]), "Done.")
    (line,) = [line for line in read_turns(run.trial_dir) if line.get("results")]
    texts = [result["text"] for result in line["results"]]
    assert texts[0].startswith("wrote 1") and texts[1].startswith('{"a"')
    assert texts[2] == "(the tool returned nothing)" and texts[3].startswith("[image")


async def test_five_megabytes_of_one_line_are_cut_to_the_budget(run: Run) -> None:
    await run(call("files_shape", kind="long"), "Done.", tool_output_max_tokens=50)
    turn = run.ledger.turns[0]
    assert turn.observation_end is not None and turn.observation_end - turn.end < 80
    assert "characters left out" in run.ledger_text()


async def test_a_model_that_takes_images_gets_them(run: Run) -> None:
    await run(call("files_shape", kind="image"), "A picture.", mode="chat", images=True)
    seen = run.model.last_request()["messages"]
    assert seen[-1]["role"] == "user"
    assert seen[-1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


async def test_an_application_error_is_passed_on_and_counted(run: Run) -> None:
    outcome = await run(call("mail_send", to="nobody"), "Done.")
    assert outcome.metrics["servers"]["mail"]["failed"] == 1
    assert "no such recipient" in run.ledger_text()


async def test_a_hook_may_replace_what_counts_as_a_failure(run: Run) -> None:
    class Forgiving:
        @hookimpl
        def apex_transform_observation(self, observation: Observation) -> Observation | None:
            return replace(observation, is_error=False, text="never mind")

    plugin_manager().register(Forgiving(), name="test-forgiving")
    try:
        outcome = await run(call("mail_send", to="nobody"), "Done.")
    finally:
        plugin_manager().unregister(name="test-forgiving")
    assert outcome.metrics["tool_calls_failed"] == 0
    assert "never mind" in run.ledger_text()


async def test_a_killed_run_leaves_a_readable_record(run: Run) -> None:
    await run(call("files_read", path="/none"), "Done.")
    whole = read_trajectory(run.trial_dir)
    (run.trial_dir / "outcome.json").unlink()
    (run.trial_dir / "agent" / "trajectory.json").unlink()
    with (run.trial_dir / "agent" / "turns.jsonl").open("a") as file:
        file.write('{"kind": "model", "content": "torn o')
    rebuilt = read_trajectory(run.trial_dir)
    assert [step.message for step in rebuilt.steps] == [step.message for step in whole.steps]
    assert rebuilt.steps[1].metrics.completion_token_ids
    assert run.outcome() is None


async def test_the_tokens_of_a_killed_run_are_on_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_conversation, "CHECKPOINT_SEC", 0.0)
    seen: list[int] = []

    class Watch:
        @hookimpl
        def apex_turn_finished(self, event: TurnFinished) -> None:
            seen.append(len(run.ledger.turns))

    plugin_manager().register(Watch(), name="test-watch")
    try:
        await run(call("files_read", path="/none"), "Done.")
    finally:
        plugin_manager().unregister(name="test-watch")
    assert seen == [1, 2]


async def test_a_task_may_declare_its_own_streamable_http_server(run: Run) -> None:
    asked: list[int] = []

    async def tunnel(port: int) -> str:
        asked.append(port)
        return run.gateway.url

    run.environment.get_tunnel_url = tunnel  # type: ignore[attr-defined]
    declared = MCPServerConfig(
        name="office", transport="streamable-http", url="http://localhost:9100/mcp"
    )
    outcome = await run(
        call("files_read", path="/none"),
        "Done.",
        mcp_servers=[declared],
        prepare={"gateway_url": None, "servers": []},
    )
    assert outcome.outcome is Outcome.COMPLETE and asked == [9100]


async def test_a_trial_that_ends_between_setup_and_run_leaves_no_session(run: Run) -> None:
    run.make_task("never worked on")

    async def trial() -> None:
        await run.agent().setup(run.environment)

    await asyncio.create_task(trial())
