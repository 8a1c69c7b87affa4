"""Whole runs while the gateway misbehaves: fifty seeds of each fault, a few of them normally."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agent_parts import Gateway, Model, Run, call
from fault_proxy import FAULTS, RAN, FaultProxy

from skyrl_apex_hookspecs import Outcome
from skyrl_apex_plugin.agent import mcp_link
from skyrl_apex_plugin.tito.ledger import TokenLedger

pytestmark = pytest.mark.usefixtures("no_leaks")

SEEDS = [
    pytest.param(seed, marks=() if seed < 2 else pytest.mark.full, id=f"seed{seed}")
    for seed in range(50)
]
LOST = frozenset(FAULTS) - {"session_gone", "idle_close"}
"""Faults after which the agent cannot know whether a writing call has run."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_link, "ANSWER_GRACE_SEC", 1.0)


def open_sockets() -> int:
    """Sockets of this process."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def script(rng: random.Random) -> tuple[list[str], list[str]]:
    """Turns of writing and reading calls, and the paths that they write."""
    paths: list[str] = []
    turns: list[str] = []
    for _ in range(rng.randint(2, 4)):
        calls: list[str] = []
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.6:
                paths.append(f"/{uuid.uuid4().hex}")
                calls.append(call("files_write", path=paths[-1], text="x"))
            else:
                calls.append(call("files_read", path=rng.choice(paths or ["/none"])))
        turns.append("\n".join(calls))
    return [*turns, "Finished."], paths


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_action_runs_at_most_once(
    fault: str, seed: int, run: Run, proxied: Callable[..., Awaitable[FaultProxy]]
) -> None:
    rng = random.Random(f"{fault}/{seed}")
    turns, paths = script(rng)
    # A call is sent three times at most: one that is broken less often has to get through.
    proxy = await proxied(lambda _: fault if rng.random() < 0.4 else None, most=2)
    sockets = open_sockets()
    outcome = await run(
        *turns,
        prepare={"gateway_url": f"http://127.0.0.1:{proxy.port}"},
        # Only stalls are waited for; anything else must not look like one on a busy machine.
        tool_timeout_sec=3.0 if fault.startswith("stall") else 30.0,
        reconnect_timeout_sec=60.0,
    )
    assert (outcome.outcome, outcome.answer) == (Outcome.COMPLETE, "Finished.")

    ran = Counter(run.gateway.actions())
    assert all(ran[f"write {path}"] <= 1 for path in paths), "no action runs twice"
    written = [c for turn in run.ledger.turns for c in turn.calls if c.name == "files_write"]
    assert [c.arguments["path"] for c in written] == paths, "calls keep their order"
    told_done = {c.arguments["path"] for c in written if c.ok}
    assert all(ran[f"write {path}"] == 1 for path in told_done), "no action is lost"
    broken = sum(name == "files_write" for name, _ in proxy.injected)
    assert len(paths) - len(told_done) == (broken if fault in LOST else 0)
    if fault in LOST and fault not in RAN:
        assert all(ran[f"write {c.arguments['path']}"] == 0 for c in written if not c.ok)
    await proxy.stop()
    for _ in range(40):
        if open_sockets() <= sockets:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{open_sockets() - sockets} sockets left open")


async def test_a_trial_that_loses_its_gateway_for_ten_seconds_completes(
    run: Run, proxied: Callable[..., Awaitable[FaultProxy]]
) -> None:
    proxy = await proxied()
    path = f"/{uuid.uuid4().hex}"

    async def outage() -> None:
        await run.until_action(f"slow {path}")
        await proxy.stop()  # in the middle of that call, which is lost with its connection
        await asyncio.sleep(10)
        await proxy.start()

    breaking = asyncio.create_task(outage())
    outcome = await run(
        call("files_write", path=path, text="kept"),
        call("files_slow", seconds=60, tag=path),
        call("files_read", path=path),
        "Finished.",
        prepare={"gateway_url": f"http://127.0.0.1:{proxy.port}"},
    )
    await breaking
    assert outcome.outcome is Outcome.COMPLETE and outcome.metrics["reconnects"] >= 1
    assert Counter(run.gateway.actions())[f"write {path}"] == 1


CANCELLATIONS = [
    pytest.param(seed, marks=() if seed < 4 else pytest.mark.full) for seed in range(50)
]


@pytest.mark.parametrize("seed", CANCELLATIONS)
async def test_cancellation_anywhere_leaves_nothing_but_a_readable_record(
    seed: int, tmp_path: Path, gateway: Gateway, model: Model
) -> None:
    """The moment is drawn from the whole run, its start and its end included."""
    turns = [call("files_slow", seconds=0.02, tag="c")] * 4 + ["Finished."]
    whole = Run(tmp_path / "whole", gateway, model)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await whole(*turns)
    length = loop.time() - started

    sockets = open_sockets()
    cut = Run(tmp_path / "cut", gateway, model)
    task = asyncio.create_task(cut(*turns))
    await asyncio.sleep(random.Random(seed).uniform(0, length))
    task.cancel()
    results = await asyncio.gather(task, return_exceptions=True)
    if isinstance(results[0], asyncio.CancelledError):
        outcome = cut.outcome()
        assert outcome is None or outcome.outcome in (Outcome.CANCELLED, Outcome.COMPLETE)
    else:
        assert results[0].outcome is Outcome.COMPLETE
    tokens = cut.trial_dir / "agent" / "tokens.apex"
    if tokens.exists():
        TokenLedger.load(tokens)
    for _ in range(40):
        if open_sockets() <= sockets:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{open_sockets() - sockets} sockets left open")
