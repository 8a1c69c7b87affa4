"""What surrounds the agent under test: real processes, and one run of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from harbor.models.agent.context import AgentContext
from tests.ports import free_port

from skyrl_apex_plugin.agent.agent import ArchipelagoAgent
from skyrl_apex_plugin.agent.record import TrialOutcome, read_outcome
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer

HERE = Path(__file__).parent


class Gateway:
    """The gateway's port, and the actions that it has run."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def actions(self) -> list[str]:
        found: list[str] = httpx.get(f"{self.url}/actions").json()
        return found


class Model:
    """The scripted model server."""

    def __init__(self, port: int, tokenizer: Path) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.tokenizer = tokenizer
        self._url = f"http://127.0.0.1:{port}"

    def play(self, *turns: str) -> str:
        """Register a script; returns an instruction that it answers to."""
        key = f"Task {uuid.uuid4().int % 10**12:012d}."  # as many tokens each time
        self.answer(key, *turns)
        return key

    def answer(self, key: str, *turns: str) -> None:
        httpx.post(f"{self._url}/scripts", json={"key": key, "turns": turns}).raise_for_status()

    def last_request(self) -> dict[str, Any]:
        """The last chat request that the server got."""
        found: dict[str, Any] = httpx.get(f"{self._url}/last").json()
        return found


def call(name: str, **arguments: object) -> str:
    """A tool call as the model writes it."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


class HostEnvironment:
    """The few calls that a world which already runs gets. Sandboxes have tests of their own."""

    def __init__(self, environment_dir: Path) -> None:
        self.environment_dir = environment_dir
        self.files: dict[str, str] = {}
        self.commands: list[str] = []

    async def exec(self, command: str, **_: Any) -> Any:
        self.commands.append(command)
        return SimpleNamespace(return_code=1, stdout="", stderr="")

    async def upload_file(self, source_path: Path, target_path: str) -> None:
        self.files[target_path] = Path(source_path).read_text()  # noqa: ASYNC240


class Run:
    """One run of the agent, and what it left."""

    def __init__(self, tmp_path: Path, gateway: Gateway, model: Model) -> None:
        self.trial_dir = tmp_path / "trial"
        self.task_dir = tmp_path / "task"
        self.gateway, self.model = gateway, model
        self.context = AgentContext()
        self.environment = HostEnvironment(self.task_dir / "environment")

    def describe(self, **fields: Any) -> None:
        """Write the task's ``archipelago.json``."""
        self.task_dir.mkdir(exist_ok=True)
        (self.task_dir / "archipelago.json").write_text(json.dumps(fields))

    def sampler(self, **kwargs: Any) -> dict[str, Any]:
        return {"name": "completions", "kwargs": {"base_url": self.model.base_url, **kwargs}}

    def agent(self, *, mode: str = "tito", **kwargs: Any) -> ArchipelagoAgent:
        if mode == "tito":
            kwargs = {
                "tokenizer": str(self.model.tokenizer),
                "renderer": "qwen3",
                "sampler": self.sampler(),
                **kwargs,
            }
        else:
            kwargs = {"api_base": self.model.base_url, "model_name": "x/scripted", **kwargs}
        prepare = {"gateway_url": self.gateway.url, "servers": ["files", "mail"]}
        prepare |= kwargs.pop("prepare", {})
        return ArchipelagoAgent(self.trial_dir / "agent", prepare=prepare, **kwargs)

    async def __call__(self, *turns: str, **kwargs: Any) -> Any:
        instruction = self.model.play(*turns)
        self.make_task(instruction)
        agent = self.agent(**kwargs)
        await agent.setup(self.environment)
        await agent.run(instruction, self.environment, self.context)
        return self.outcome()

    def make_task(self, instruction: str) -> None:
        (self.task_dir / "environment").mkdir(parents=True, exist_ok=True)
        (self.task_dir / "instruction.md").write_text(instruction)
        (self.trial_dir / "agent").mkdir(parents=True, exist_ok=True)

    def outcome(self) -> TrialOutcome | None:
        return read_outcome(self.trial_dir)

    async def prompt_length(self) -> int:
        """Tokens of the first prompt: every instruction of a script is as long as the other."""
        await self("measured", max_context=1_000_000)
        return self.ledger.prompt_length

    def count_tokens(self, text: str) -> int:
        return len(load_tokenizer(str(self.model.tokenizer)).encode(text, add_special_tokens=False))

    async def until_action(self, action: str) -> None:
        """Wait until the gateway has run ``action``."""
        for _ in range(600):
            if action in await asyncio.to_thread(self.gateway.actions):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{action!r} was never run")

    @property
    def ledger(self) -> TokenLedger:
        return TokenLedger.load(self.trial_dir / "agent" / "tokens.apex")

    def ledger_text(self) -> str:
        return self.ledger.debug_text(load_tokenizer(str(self.model.tokenizer)))


def make_tokenizer(path: Path) -> Path:
    """A small tokenizer of the Qwen3 form, made in a second."""
    from itertools import islice

    from skyrl_apex_miniworld.tiny_model.demonstrations import demonstrations
    from skyrl_apex_miniworld.tiny_model.dialect import train_tokenizer

    train_tokenizer(islice(demonstrations("agent tests"), 100)).save_pretrained(path)
    return path


@contextlib.contextmanager
def served(script: str, *options: str, ready: str = "/health") -> Iterator[int]:
    """Run a script of this folder as an HTTP server on a free port."""
    port = free_port()
    # The client under test may be of another mcp release, put in front by PYTHONPATH.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), "--port", str(port), *options], env=env
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}{ready}")
                break
            except httpx.ConnectError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(10)
