"""Real processes around the agent under test: a gateway, a model server, and a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


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
        key = f"Task {uuid.uuid4().hex}."
        self.answer(key, *turns)
        return key

    def answer(self, key: str, *turns: str) -> None:
        httpx.post(f"{self._url}/scripts", json={"key": key, "turns": turns}).raise_for_status()


def call(name: str, **arguments: object) -> str:
    """A tool call as the model writes it."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


@contextlib.contextmanager
def served(script: str, *options: str, ready: str = "/health") -> Iterator[int]:
    """Run a script of this folder as an HTTP server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    with served("toy_gateway.py") as port:
        yield Gateway(port)


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer of the Qwen3 form, made in a second."""
    from itertools import islice

    from skyrl_apex_miniworld.tiny_model.demonstrations import demonstrations
    from skyrl_apex_miniworld.tiny_model.dialect import train_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(islice(demonstrations("agent tests"), 100)).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model(tokenizer_path: Path) -> Iterator[Model]:
    with served("scripted_model.py", "--tokenizer", str(tokenizer_path), ready="/") as port:
        yield Model(port, tokenizer_path)


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Fails a test that leaves a task behind."""
    before = asyncio.all_tasks()
    yield
    for _ in range(20):
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        left.discard(asyncio.current_task())  # type: ignore[arg-type]
        if not left:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"tasks left behind: {left}")
