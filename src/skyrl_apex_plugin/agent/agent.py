"""The harbor agent ``archipelago``: starts a task's world and works in it through its MCP tools."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import inspect
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from harbor.agents.base import BaseAgent
from harbor.models.agent.context import AgentContext

from skyrl_apex_hookspecs import ApexError, Outcome, SetupError, Task
from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.tito.tools import ToolCatalogue

from . import atif, harbor_versions
from .conversation import Conversation, Message
from .loop import Ending, TurnLoop
from .record import TOKENS, Recorder, TrialOutcome, read_turns
from .session import ToolSession
from .settings import AgentSettings
from .task import load_task, read_hints
from .toolbox import Toolbox, catalogue_of, final_answer_spec
from .world import World, await_tools

ANSWER_PATH = "/logs/agent/answer.txt"
RELEASE_TIMEOUT_SEC = 5.0


@harbor_versions.declare_capabilities
class ArchipelagoAgent(BaseAgent):
    """Works on a task of a world, in token-in, token-out mode or over a chat API.

    Keyword arguments beyond harbor's own are the keys of
    :class:`~skyrl_apex_plugin.agent.settings.AgentSettings`.

    Whatever happens, ``outcome.json`` names one outcome; see ``docs/agent.md``.
    """

    MODEL_CONNECTION = harbor_versions.model_connection_spec()

    def __init__(self, logs_dir: Path, *args: Any, **kwargs: Any) -> None:
        harbor_names = set(inspect.signature(BaseAgent.__init__).parameters)
        harbor_names |= harbor_versions.RUNTIME_KWARGS
        own = {name: value for name, value in kwargs.items() if name not in harbor_names}
        self.settings = AgentSettings.from_kwargs(own)
        super().__init__(
            logs_dir,
            *args,
            **{name: value for name, value in kwargs.items() if name in harbor_names},
        )
        self._trial_dir = Path(logs_dir).parent
        self._recorder = Recorder(self._trial_dir)
        self._world: World | None = None
        self._session: ToolSession | None = None
        self._task: Task | None = None
        self._tools: list[dict[str, Any]] = []
        self._seconds: dict[str, float] = {}

    @staticmethod
    def name() -> str:
        return "archipelago"

    def version(self) -> str:
        return _version()

    async def setup(self, environment: Any) -> None:
        """Start the world and connect to its tools.

        :raises SetupError: it did not come up; ``outcome.json`` says the same.
        """
        try:
            with self._timed("setup"):
                await self._start_world(environment)
        except BaseException as error:
            await self._disconnect()
            self._finish(*_setup_failure(error))
            raise

    async def _start_world(self, environment: Any) -> None:
        self._task = task = await asyncio.to_thread(
            load_task, Path(environment.environment_dir).parent
        )
        self._world = world = World(
            environment,
            task,
            self.settings.prepare,
            {**os.environ, **self.extra_env},
            timeout_sec=self.settings.world_start_timeout_sec,
            mcp_servers=self.mcp_servers,
        )
        started = time.monotonic()
        self._session = ToolSession(
            await world.start(),
            tool_timeout_sec=self.settings.tool_timeout_sec,
            tool_timeouts=self.settings.tool_timeouts,
            reconnect_timeout_sec=self.settings.reconnect_timeout_sec,
            read_only_tools=self.settings.read_only_tools,
        )
        # The trial's task: between setup and run it may be cancelled, and nobody calls the agent.
        self._session.close_with(asyncio.current_task())
        left = self.settings.world_start_timeout_sec - (time.monotonic() - started)
        self._tools = await await_tools(self._session, world.declared_servers(), max(left, 0))
        await world.snapshot()

    async def run(self, instruction: str, environment: Any, context: AgentContext) -> None:
        """Work on the task until one outcome holds, and write the record.

        :raises ApexError: for an infrastructure outcome, so that harbor sees it too.
        """
        assert self._task is not None and self._session is not None, "harbor calls setup first"
        started = time.monotonic()
        conversation: Conversation | None = None
        loop: TurnLoop | None = None
        error: BaseException | None = None
        ending = Ending(Outcome.CANCELLED)
        try:
            try:
                messages, catalogue = (
                    self._messages(instruction),
                    catalogue_of(self._offered_tools()),
                )
                conversation = self._converse(messages, catalogue)
                loop = self._loop(conversation, messages, catalogue)
                ending = await self._within_limit(loop)
                with self._timed("upload"):
                    await self._upload_answer(environment, loop.answer)
            finally:
                with self._timed("close"):
                    await self._release(conversation)
        except BaseException as caught:
            error = caught
            ending = _failure(caught)
            raise
        finally:
            self._seconds["agent"] = time.monotonic() - started
            self._finish(ending, error, answer=loop.answer if loop else None)
            if conversation is not None and loop is not None:
                self._fill(context, conversation)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Record the time inside as the seconds of ``phase``, also when it is left by an error."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] = time.monotonic() - started

    async def _release(self, conversation: Conversation | None) -> None:
        """Close what the run holds, also while it is being cancelled."""
        with anyio.move_on_after(RELEASE_TIMEOUT_SEC, shield=True):
            try:
                if conversation is not None:
                    await conversation.aclose()
            finally:
                await self._disconnect()

    async def _within_limit(self, loop: TurnLoop) -> Ending:
        limit = self.settings.timeout_sec
        with anyio.move_on_after(limit):
            return await loop.run()
        return Ending(Outcome.AGENT_TIMEOUT, f"no answer within {limit:g} s")

    def _messages(self, instruction: str) -> list[Message]:
        """The first prompt: the extra prompt as a system message, then the task and its hints."""
        assert self._task is not None
        parts = [instruction]
        if self.settings.use_hints:
            hints = read_hints(self._task)
            if hints:
                parts.append("Hints:\n" + "\n".join(f"- {hint}" for hint in hints))
        messages: list[Message] = [{"role": "user", "content": "\n\n".join(parts)}]
        if self.settings.extra_prompt:
            messages.insert(0, {"role": "system", "content": self.settings.extra_prompt})
        return messages

    def _offered_tools(self) -> list[dict[str, Any]]:
        name = self.settings.final_answer_tool
        return [*self._tools, final_answer_spec(name)] if name else self._tools

    def _converse(self, messages: list[Message], catalogue: ToolCatalogue) -> Conversation:
        """The conversation of the chosen mode; what it needs is imported only then."""
        if self.settings.resolved_mode == "chat":
            from .chat import ChatConversation, chat_model

            return ChatConversation(messages, catalogue, chat_model(self), self.settings)
        from .token_conversation import TokenConversation

        spec = self.settings.sampler
        sampler = resolve("sampler", spec["name"])(**(spec.get("kwargs") or {}))
        return TokenConversation(
            messages,
            catalogue,
            sampler,
            self.settings,
            path=self._trial_dir / TOKENS,
            session_id=self._trial_dir.name,
        )

    def _loop(
        self, conversation: Conversation, messages: list[Message], catalogue: ToolCatalogue
    ) -> TurnLoop:
        assert self._task is not None and self._session is not None and self._world is not None
        self._recorder.start(
            self._task,
            messages,
            model=self.model_name or str(self.settings.sampler["name"]),
            mode=self.settings.resolved_mode,
            tools=list(catalogue.for_model),
        )
        toolbox = Toolbox(
            self._session,
            catalogue,
            servers=self._world.declared_servers(),
            truncate=conversation.truncate,
            max_tokens=self.settings.tool_output_max_tokens,
            accept_images=self.settings.images and self.settings.resolved_mode == "chat",
        )
        return TurnLoop(
            conversation,
            toolbox,
            self.settings,
            self._recorder,
            task=self._task,
            trial_name=self._trial_dir.name,
        )

    async def _upload_answer(self, environment: Any, answer: str | None) -> None:
        """Put the answer where verifiers inside the sandbox look for it.

        :raises SetupError: the sandbox does not take it; grading without it would be wrong.
        """
        with tempfile.TemporaryDirectory(prefix="apex-answer-") as folder:
            path = Path(folder) / "answer.txt"
            path.write_text(answer or "", encoding="utf-8")
            try:
                await environment.upload_file(source_path=path, target_path=ANSWER_PATH)
            except Exception as error:
                raise SetupError(f"cannot write {ANSWER_PATH} in the sandbox: {error!r}") from error

    async def _disconnect(self) -> None:
        if self._session is not None:
            await self._session.aclose()

    def _finish(
        self, ending: Ending, error: BaseException | None = None, *, answer: str | None = None
    ) -> None:
        """Write ``outcome.json`` and, where turns were recorded, the trajectory."""
        world_seconds = self._world.seconds if self._world is not None else {}
        session = self._session
        self._recorder.write_outcome(
            TrialOutcome(
                outcome=ending.outcome,
                answer=answer,
                error_type=type(error).__name__ if error is not None else None,
                error_message=self._redact(str(error) if error is not None else ending.reason),
                seconds={
                    **self._seconds,
                    **self._recorder.seconds(),
                    **{f"setup/{name}": value for name, value in world_seconds.items()},
                },
                metrics=self._recorder.metrics(reconnects=session.reconnects if session else 0),
            )
        )
        self._recorder.close()

    def _redact(self, text: str | None) -> str | None:
        return self._world.redact(text) if text and self._world is not None else text

    def _fill(self, context: AgentContext, conversation: Conversation) -> None:
        """Fill harbor's context and write ``agent/trajectory.json``."""
        metrics = self._recorder.metrics()
        context.n_input_tokens = metrics["prompt_tokens"]
        context.n_output_tokens = metrics["completion_tokens"]
        context.metadata = {"apex": metrics}
        ledger = getattr(conversation, "ledger", None)
        if ledger is not None and self.settings.rollout_details:
            context.rollout_details = atif.rollout_details(ledger)
        atif.write_trajectory(
            self._trial_dir,
            atif.build_trajectory(
                read_turns(self._trial_dir),
                agent_name=self.name(),
                agent_version=self.version(),
                session_id=self._trial_dir.name,
                ledger=ledger,
            ),
        )


@functools.cache
def _version() -> str:
    """Read once: it is a search through the metadata of everything installed."""
    return importlib.metadata.version("skyrl-apex-plugin")


def _setup_failure(error: BaseException) -> tuple[Ending, BaseException]:
    cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
    return Ending(Outcome.CANCELLED if cancelled else Outcome.SETUP_ERROR), error


def _failure(error: BaseException) -> Ending:
    """The outcome of a run that an exception ended."""
    if isinstance(error, ApexError):
        return Ending(error.outcome)
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
        return Ending(Outcome.CANCELLED)
    # A fault of this package or of a plugin: named, retried, never a score.
    logging.getLogger(__name__).error("the agent failed", exc_info=error)
    return Ending(Outcome.SETUP_ERROR)
