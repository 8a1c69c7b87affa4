"""A real gateway process, and what a test of the agent needs around it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
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


def start_gateway(*options: str) -> Iterator[Gateway]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The client under test may be of another mcp release, put in front by PYTHONPATH.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "toy_gateway.py"), "--port", str(port), *options], env=env
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health")
                break
            except httpx.ConnectError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield Gateway(port)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    yield from start_gateway()


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
