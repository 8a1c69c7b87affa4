"""Fixtures: a gateway, a model server and a run of the agent between them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_parts import Gateway, Model, Run, make_tokenizer, served
from fault_proxy import FaultProxy


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    with served("toy_gateway.py") as port:
        yield Gateway(port)


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def model(tokenizer_path: Path) -> Iterator[Model]:
    with served("scripted_model.py", "--tokenizer", str(tokenizer_path), ready="/") as port:
        yield Model(port, tokenizer_path)


@pytest.fixture
def run(tmp_path: Path, gateway: Gateway, model: Model) -> Run:
    return Run(tmp_path, gateway, model)


@pytest.fixture
async def proxied(gateway: Gateway) -> AsyncIterator[Callable[..., Awaitable[FaultProxy]]]:
    """Opens proxies in front of the gateway and closes them after the test."""
    opened: list[FaultProxy] = []

    async def start(
        choose: Callable[[str], str | None] = lambda _: None, most: int | None = None
    ) -> FaultProxy:
        opened.append(FaultProxy(gateway.port, choose, most))
        return await opened[-1].start()

    yield start
    for proxy in opened:
        await proxy.stop()


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
