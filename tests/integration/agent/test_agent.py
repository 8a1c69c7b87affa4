"""The whole agent against a real gateway and a real model server."""

from __future__ import annotations

import json

import pytest

from conftest import Run, call
from skyrl_apex_hookspecs import Outcome
from skyrl_apex_plugin.agent.atif import read_trajectory
from skyrl_apex_plugin.agent.record import read_turns

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
