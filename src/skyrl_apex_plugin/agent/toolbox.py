"""Runs the tool calls of a turn: checked, in order, with what the model gets to see."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from skyrl_apex_hookspecs import ToolCall
from skyrl_apex_plugin.tito.tools import Correction, ToolCatalogue

from . import observation
from .conversation import RequestedCall
from .session import ToolSession
from .world import server_of

FINAL_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "The complete final answer."}},
    "required": ["answer"],
}


@dataclass(frozen=True, slots=True)
class Handled:
    """A call with the observation that the model gets for it."""

    call: ToolCall
    text: str
    images: tuple[bytes, ...] = ()


class Toolbox:
    """The tools of one trial.

    :param truncate: cuts a text to a number of tokens.
    :param servers: declared servers, to name the one that a tool belongs to.
    """

    def __init__(
        self,
        session: ToolSession,
        catalogue: ToolCatalogue,
        *,
        servers: tuple[str, ...],
        truncate: Callable[[str, int], str],
        max_tokens: int,
        accept_images: bool = False,
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._servers = servers
        self._truncate = truncate
        self._max_tokens = max_tokens
        self._accept_images = accept_images

    async def run(self, calls: Sequence[RequestedCall], handled: list[Handled]) -> None:
        """Run ``calls`` and append each result to ``handled``, in the order of the calls.

        Neighbours that only read run at the same time; everything else waits its turn. What is
        in ``handled`` when this raises has run.

        :raises ToolSessionLost: the gateway is gone. :raises SetupError: a hook raised.
        """
        for batch in self._batches(calls):
            results: list[Handled | None] = [None] * len(batch)
            try:
                if len(batch) == 1:
                    results[0] = await self._run_one(batch[0])
                else:
                    await self._run_together(batch, results)
            finally:
                handled += [result for result in results if result is not None]

    def _batches(self, calls: Sequence[RequestedCall]) -> list[list[RequestedCall]]:
        batches: list[list[RequestedCall]] = []
        joinable = False
        for call in calls:
            reads = self._session.is_read_only(call.name)
            if reads and joinable:
                batches[-1].append(call)
            else:
                batches.append([call])
            joinable = reads
        return batches

    async def _run_together(
        self, batch: list[RequestedCall], results: list[Handled | None]
    ) -> None:
        async def run(index: int) -> None:
            results[index] = await self._run_one(batch[index])

        try:
            async with anyio.create_task_group() as group:
                for index in range(len(batch)):
                    group.start_soon(run, index)
        except BaseExceptionGroup as errors:
            # Each of them says the same of the same gateway.
            raise errors.exceptions[0] from None

    async def _run_one(self, requested: RequestedCall) -> Handled:
        call = ToolCall(
            call_id=requested.call_id,
            name=requested.name,
            arguments=requested.arguments,
            server=server_of(requested.name, self._servers),
        )
        if requested.error is not None:
            return _refused(call, requested.error)
        checked = self._catalogue.check(requested.name, requested.arguments)
        if isinstance(checked, Correction):
            return _refused(call, checked.text)
        started = time.perf_counter()
        answer = await self._session.call(requested.name, checked.arguments)
        call = replace(
            call,
            arguments=checked.arguments,
            seconds=time.perf_counter() - started,
            error=answer.fault,
        )
        rendered = observation.render(
            answer.content,
            answer.structured,
            is_error=answer.is_error,
            accept_images=self._accept_images,
        )
        seen = observation.observe(call, rendered)
        return Handled(seen.call, self._truncate(seen.text, self._max_tokens), seen.images)


def _refused(call: ToolCall, text: str) -> Handled:
    """A call that is answered by a correction instead of being dispatched."""
    return Handled(replace(call, ok=False, dispatched=False, error=text), text)


def final_answer_spec(name: str) -> dict[str, Any]:
    """The tool by which the model ends its run, as MCP would list it."""
    return {
        "name": name,
        "description": "Give the final answer to the task. This ends the task.",
        "inputSchema": FINAL_ANSWER_SCHEMA,
    }


def catalogue_of(tools: Sequence[Mapping[str, Any]]) -> ToolCatalogue:
    """The catalogue of a tool listing. Trials of one world list the same tools: the schema work
    is done once for each distinct listing."""
    return _catalogue(json.dumps(list(tools), sort_keys=True))


@functools.lru_cache(maxsize=16)
def _catalogue(listing: str) -> ToolCatalogue:
    return ToolCatalogue(json.loads(listing))
