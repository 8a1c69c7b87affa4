"""The tool session of a trial: calls that are never lost and never run twice.

One MCP session serves a whole trial. When it breaks, the call that got no answer decides what
follows: one that cannot have reached the server, or only reads, is sent again over a new session;
any other is reported to the model as "may have run" and never repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyrl_apex_hookspecs import ToolSessionLost

from .mcp_link import CallLost, CallTimedOut, McpLink, RemoteError, UnreadableAnswer

logger = logging.getLogger(__name__)

LIST_TIMEOUT_SEC = 120.0
FIRST_DELAY_SEC = 0.1
LONGEST_DELAY_SEC = 2.0


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a call brought, in MCP's wire form. ``attempts`` counts how often it was sent."""

    content: Sequence[Mapping[str, Any]]
    structured: Any = None
    is_error: bool = False
    attempts: int = 1
    fault: str | None = None
    """Why no tool answered, when the text is the session's own."""


class ToolSession:
    """Tool calls over one MCP session that is re-established when it breaks.

    :param url: the gateway's MCP endpoint.
    :param tool_timeout_sec: limit of one call; ``tool_timeouts`` overrides it by tool name.
    :param reconnect_timeout_sec: how long a lost gateway is waited for.
    :param read_only_tools: tools that may be repeated besides those whose annotations say so.
    :param max_attempts: how often one call is sent at most.
    """

    def __init__(
        self,
        url: str,
        *,
        tool_timeout_sec: float = 180.0,
        tool_timeouts: Mapping[str, float] | None = None,
        reconnect_timeout_sec: float = 60.0,
        read_only_tools: Sequence[str] = (),
        max_attempts: int = 3,
    ) -> None:
        self._url = url
        self._timeout = tool_timeout_sec
        self._timeouts = dict(tool_timeouts or {})
        self._reconnect_timeout = reconnect_timeout_sec
        self._read_only = set(read_only_tools)
        self._max_attempts = max_attempts
        self._link: McpLink | None = None
        self._connecting = asyncio.Lock()
        self._lost = False
        self.reconnects = 0
        """How often a lost session was established anew."""

    def is_read_only(self, name: str) -> bool:
        return name in self._read_only

    async def list_tools(self) -> list[dict[str, Any]]:
        """Every tool in wire form; learns from the annotations which ones only read.

        :raises CallLost: the gateway does not serve MCP now.
        :raises RemoteError: it refuses to list.
        """
        if self._link is None or not self._link.alive:
            await self._drop_link()
            await self._open_link()
        assert self._link is not None
        try:
            tools = await self._link.list_tools(LIST_TIMEOUT_SEC)
        except CallTimedOut as error:
            raise CallLost(f"tools/list: {error}", may_have_run=True) from error
        self._read_only |= {
            tool["name"] for tool in tools if (tool.get("annotations") or {}).get("readOnlyHint")
        }
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Call a tool. Faults of the tool, and a call whose fate is unknown, are answers.

        :raises ToolSessionLost: the gateway did not come back within the reconnect limit.
        """
        limit = self._timeouts.get(name, self._timeout)
        lost: CallLost | None = None
        for attempt in range(1, self._max_attempts + 1):
            link = await self._live_link()
            try:
                result = await link.call_tool(name, arguments, limit)
                return ToolAnswer(
                    content=result.get("content") or (),
                    structured=result.get("structuredContent"),
                    is_error=bool(result.get("isError")),
                    attempts=attempt,
                )
            except RemoteError as error:
                return _fault(str(error), attempt)
            except CallTimedOut:
                return _fault(
                    f"{name} gave no answer within {limit:g} seconds and was abandoned. It may "
                    "still take effect: check the state before you call it again.",
                    attempt,
                )
            except UnreadableAnswer as error:
                logger.warning("%s: answer of %s is unreadable: %s", self._url, name, error)
                return _fault(
                    f"{name} ran, but its answer could not be read ({str(error)[:200]}).", attempt
                )
            except CallLost as error:
                lost = error
                self._lost = True
                await self._drop_link(link)
                logger.warning("%s: call %s (attempt %d) lost: %s", self._url, name, attempt, error)
                if error.may_have_run and not self.is_read_only(name):
                    return _fault(
                        f"The connection was lost while {name} was running ({error.reason}). It "
                        "may or may not have taken effect, and it was not repeated. Check the "
                        "state before you call it again.",
                        attempt,
                    )
        assert lost is not None
        return _fault(f"{name} could not be reached ({lost.reason}).", self._max_attempts)

    async def aclose(self) -> None:
        """End the session. Never raises."""
        await self._drop_link()

    def close_with(self, task: asyncio.Task[Any] | None) -> None:
        """Cut the session when ``task`` ends: the owner of a session that nobody closes."""
        if task is not None:
            task.add_done_callback(self._cut)

    def _cut(self, _: asyncio.Task[Any]) -> None:
        if self._link is not None:
            self._link.cut()

    async def _live_link(self) -> McpLink:
        """The current link, or a new one, waiting for a lost gateway with growing pauses."""
        async with self._connecting:
            if self._link is not None and self._link.alive:
                return self._link
            self._lost |= self._link is not None
            await self._drop_link()
            link = await self._reconnect()
            self.reconnects += self._lost
            self._lost = False
            return link

    async def _reconnect(self) -> McpLink:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._reconnect_timeout
        delay = FIRST_DELAY_SEC
        while True:
            try:
                return await self._open_link()
            except CallLost as error:
                if clock() + delay > deadline:
                    raise ToolSessionLost(
                        f"no MCP session at {self._url} for {self._reconnect_timeout:g} s: "
                        f"{error.reason}"
                    ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_SEC)

    async def _open_link(self) -> McpLink:
        link = McpLink(self._url)
        await link.open()
        self._link = link
        return link

    async def _drop_link(self, link: McpLink | None = None) -> None:
        """Close ``link``, or the current one. A link that another call replaced stays."""
        link = link or self._link
        if link is self._link:
            self._link = None
        if link is not None:
            await link.close()


def _fault(text: str, attempts: int) -> ToolAnswer:
    return ToolAnswer(
        content=({"type": "text", "text": text},), is_error=True, attempts=attempts, fault=text
    )
