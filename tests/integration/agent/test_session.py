"""The tool session over real sockets: nothing lost, nothing run twice."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from agent_parts import Gateway
from fault_proxy import FAULTS, RAN, FaultProxy

from skyrl_apex_hookspecs import ToolSessionLost
from skyrl_apex_plugin.agent import mcp_link
from skyrl_apex_plugin.agent.session import ToolSession

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_link, "ANSWER_GRACE_SEC", 1.0)


@pytest.fixture
async def connect(gateway: Gateway) -> AsyncIterator[Callable[..., ToolSession]]:
    """Opens sessions, through a proxy where a fault is chosen."""
    closing: list[Callable[[], object]] = []

    def open_session(port: int | None = None, **options: Any) -> ToolSession:
        settings = {"tool_timeout_sec": 30.0, "reconnect_timeout_sec": 30.0, **options}
        session = ToolSession(f"http://127.0.0.1:{port or gateway.port}/mcp/", **settings)
        closing.append(session.aclose)
        return session

    yield open_session
    for close in closing:
        await close()  # type: ignore[misc]


Proxied = Callable[..., Awaitable[FaultProxy]]


def once(fault: str | None, tool: str = "files_write") -> Callable[[str], str | None]:
    """Break the first call of ``tool`` and nothing else."""
    pending = [fault]
    return lambda name: pending.pop() if name == tool and pending else None


def text_of(answer: object) -> str:
    return "".join(block["text"] for block in answer.content)  # type: ignore[attr-defined]


async def test_lists_tools_and_learns_which_only_read(connect: Callable[..., ToolSession]) -> None:
    session = connect()
    names = [tool["name"] for tool in await session.list_tools()]
    assert "files_read" in names and "mail_send" in names
    assert session.is_read_only("files_read") and not session.is_read_only("files_write")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_writing_call_runs_at_most_once(
    fault: str, proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    proxy = await proxied(once(fault))
    # Only stalls are waited for; anything else must not look like one on a busy machine.
    limits = {"files_write": 1.0} if fault.startswith("stall") else {}
    session = connect(proxy.port, tool_timeouts=limits)
    await session.list_tools()
    path = f"/{uuid.uuid4().hex}"
    answer = await session.call("files_write", {"path": path, "text": "x"})
    after = await session.call("files_read", {"path": path})
    runs = gateway.actions().count(f"write {path}")
    assert proxy.injected == [("files_write", fault)]
    assert runs == (1 if fault in RAN or fault == "session_gone" else 0)
    assert not after.is_error, "the session works again after the fault"
    if fault in ("session_gone", "idle_close"):
        assert not answer.is_error
    else:
        assert answer.is_error and answer.attempts == 1
    if answer.is_error and fault != "garbage":
        told = "may still take effect" if fault.startswith("stall") else "may or may not have"
        assert told in text_of(answer)


REPEATED = ("kill_before", "kill_after", "truncate", "error_before", "error_after", "session_gone")


@pytest.mark.parametrize("fault", REPEATED)
async def test_a_reading_call_is_repeated(
    fault: str, proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    proxy = await proxied(once(fault, "files_read"))
    session = connect(proxy.port)
    await session.list_tools()
    answer = await session.call("files_read", {"path": "/nothing"})
    assert not answer.is_error
    assert answer.attempts == 2


async def test_only_the_unanswered_call_is_sent_again(
    proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    """The session dies between two calls of a turn: the first is not repeated."""
    proxy = await proxied()
    session = connect(proxy.port)
    await session.list_tools()
    path = f"/{uuid.uuid4().hex}"
    await session.call("files_write", {"path": path, "text": "kept"})
    await proxy.stop()
    await proxy.start()
    answer = await session.call("files_read", {"path": path})
    assert text_of(answer) == "kept"
    assert gateway.actions().count(f"write {path}") == 1


async def test_survives_an_outage_of_the_gateway(
    proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    proxy = await proxied()
    session = connect(proxy.port, reconnect_timeout_sec=20.0)
    await session.list_tools()
    await proxy.stop()
    path = f"/{uuid.uuid4().hex}"
    call = asyncio.create_task(session.call("files_write", {"path": path, "text": "x"}))
    await asyncio.sleep(3.0)
    await proxy.start()
    answer = await call
    assert not answer.is_error and gateway.actions().count(f"write {path}") == 1


async def test_a_gateway_that_stays_away_loses_the_session(
    proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    proxy = await proxied()
    session = connect(proxy.port, reconnect_timeout_sec=1.0)
    await session.list_tools()
    await proxy.stop()
    with pytest.raises(ToolSessionLost, match="no MCP session at"):
        await session.call("files_read", {"path": "/a"})


async def test_a_slow_tool_times_out_and_the_session_goes_on(
    proxied: Proxied, connect: Callable[..., ToolSession], gateway: Gateway
) -> None:
    session = connect(tool_timeouts={"files_slow": 0.3})
    tag = uuid.uuid4().hex
    answer = await session.call("files_slow", {"seconds": 30, "tag": tag})
    assert answer.is_error and "no answer within 0.3 seconds" in text_of(answer)
    assert not (await session.call("files_read", {"path": "/a"})).is_error
    assert session.reconnects == 0
    assert gateway.actions().count(f"slow {tag}") == 1


async def test_cancellation_in_a_call_leaves_nothing(connect: Callable[..., ToolSession]) -> None:
    session = connect(tool_timeout_sec=30)
    call = asyncio.create_task(session.call("files_slow", {"seconds": 30, "tag": "cancelled"}))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    started = time.monotonic()
    await session.aclose()
    assert time.monotonic() - started < 3
