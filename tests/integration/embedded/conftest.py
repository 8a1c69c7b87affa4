"""One engine process for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from skyrl_apex_plugin.embedded.launch import EngineHandle, EngineOptions, start_engine


@pytest.fixture(scope="session")
def checkpoint(qwen3_checkpoint: Callable[..., Path]) -> Path:
    return qwen3_checkpoint()


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Iterator[EngineHandle]:
    with start_engine(checkpoint, EngineOptions(slots=4, max_model_len=512)) as handle:
        yield handle


@pytest.fixture
async def http(engine: EngineHandle) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        yield client
