"""The turn loop: model, tools, observation, until one outcome holds."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from skyrl_apex_hookspecs import ContextLengthExceeded, Outcome, Task, Turn, TurnFinished
from skyrl_apex_plugin.discovery import hooks

from .conversation import Conversation, Message, ModelTurn, RequestedCall
from .record import Recorder
from .settings import AgentSettings
from .toolbox import Handled, Toolbox

EMPTY_TURN = "Your turn held neither a tool call nor an answer. Call a tool, or give your answer."


@dataclass(frozen=True, slots=True)
class Ending:
    """How the loop ended by itself; everything else ends it by an exception."""

    outcome: Outcome
    reason: str | None = None


class TurnLoop:
    """Drives one conversation to its end.

    ``answer`` is the text of the last turn so far: the final answer is the last message.
    """

    def __init__(
        self,
        conversation: Conversation,
        toolbox: Toolbox,
        settings: AgentSettings,
        recorder: Recorder,
        *,
        task: Task,
        trial_name: str,
    ) -> None:
        self._conversation = conversation
        self._toolbox = toolbox
        self._settings = settings
        self._recorder = recorder
        self._task = task
        self._trial_name = trial_name
        self._corrections = 0
        self._warned = settings.budget_warning_tokens is None
        self.answer: str | None = None

    async def run(self) -> Ending:
        """Take turns until the agent answers or meets a limit.

        :raises ApexError: the engine, the tools or the token stream failed.
        """
        try:
            for _ in range(self._settings.max_turns):
                ending = await self._turn()
                if ending is not None:
                    return ending
        except ContextLengthExceeded as error:
            return Ending(Outcome.CONTEXT_LENGTH, str(error))
        return Ending(Outcome.MAX_TURNS, f"no answer within {self._settings.max_turns} turns")

    async def _turn(self) -> Ending | None:
        turn = await self._conversation.next_turn()
        self.answer = turn.content
        self._recorder.model_turn(turn)
        calls, final = self._split_final(turn.calls)
        ending = self._ending_of(turn)
        handled: list[Handled] = []
        started = time.perf_counter()
        try:
            if ending is None:
                await self._toolbox.run(calls, handled)
        finally:
            closed = self._close(turn, handled, time.perf_counter() - started)
        await hooks.notify(
            "apex_turn_finished",
            TurnFinished(task=self._task, trial_name=self._trial_name, turn=closed),
        )
        if ending is None and final is not None:
            self.answer = str(final.arguments["answer"])
            ending = Ending(Outcome.COMPLETE)
        if ending is None:
            self._conversation.observe(self._messages(turn, handled))
        return ending

    def _ending_of(self, turn: ModelTurn) -> Ending | None:
        """The ending that a turn brings before its calls are run.

        The calls of a turn that was cut off are not run: the last may be half a call.
        """
        if turn.finish == "length":
            cap = self._settings.turn_max_tokens
            return Ending(Outcome.LENGTH, f"a turn hit its own cap of {cap} tokens")
        if turn.finish == "context_length":
            return Ending(
                Outcome.CONTEXT_LENGTH,
                f"a turn filled the window of {self._settings.max_context} tokens",
            )
        return Ending(Outcome.COMPLETE) if self._is_answer(turn) else None

    def _is_answer(self, turn: ModelTurn) -> bool:
        """Whether a turn ends the run as the model's answer.

        A turn with a fault of format is corrected instead, a bounded number of times in a row. A
        model that never learns its format ends as ``complete`` and is graded on what it said: that
        is the policy's fault, not the infrastructure's.
        """
        if any(call.error is None for call in turn.calls):
            self._corrections = 0
            return False
        faulty = turn.calls or turn.malformed is not None or not turn.content.strip()
        if not faulty or self._corrections >= self._settings.max_corrections:
            return True
        self._corrections += 1
        return False

    def _split_final(
        self, calls: Sequence[RequestedCall]
    ) -> tuple[Sequence[RequestedCall], RequestedCall | None]:
        """The calls before a valid final answer, and that answer."""
        for index, call in enumerate(calls):
            named = call.name == self._settings.final_answer_tool and call.error is None
            if named and isinstance(call.arguments.get("answer"), str):
                return calls[:index], call
        return calls, None

    def _close(self, turn: ModelTurn, handled: Sequence[Handled], seconds: float) -> Turn:
        unreadable = turn.malformed is not None or any(call.error for call in turn.calls)
        malformed = unreadable or any(not item.call.dispatched for item in handled)
        closed = self._conversation.close_turn(
            [h.call for h in handled], tool_seconds=seconds, malformed=malformed
        )
        self._recorder.tool_results(closed, handled)
        self._conversation.checkpoint()
        return closed

    def _messages(self, turn: ModelTurn, handled: Sequence[Handled]) -> list[Message]:
        """What the model sees next: each call's result in order, then images, then notes."""
        fault = turn.malformed or ("" if turn.calls else EMPTY_TURN)
        notes = [fault] if fault else []
        if not self._warned and self._tokens_left() <= (self._settings.budget_warning_tokens or 0):
            self._warned = True
            notes.append(
                f"Only about {max(self._tokens_left(), 0)} tokens are left for the whole task: "
                "finish now and give your answer."
            )
        if handled and notes:
            last = handled[-1]
            handled = [*handled[:-1], replace(last, text="\n\n".join([last.text, *notes]))]
            notes = []
        messages: list[Message] = [
            {
                "role": "tool",
                "tool_call_id": item.call.call_id,
                "name": item.call.name,
                "content": item.text,
            }
            for item in handled
        ]
        images = [image for item in handled for image in item.images]
        if images:
            messages.append({"role": "user", "content": [_image_part(data) for data in images]})
        if notes:
            messages.append({"role": "user", "content": "\n\n".join(notes)})
        return messages

    def _tokens_left(self) -> int:
        return self._conversation.tokens_left()


def _image_part(data: bytes) -> dict[str, Any]:
    kind = "jpeg" if data.startswith(b"\xff\xd8") else "webp" if data[8:12] == b"WEBP" else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
