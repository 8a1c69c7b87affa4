"""Gateways to check: the sample world's two servers, and any at ``APEX_GATEWAY_URL``."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.ports import free_port


@dataclass(frozen=True)
class Gateway:
    """A gateway under test. ``files`` is set for the sample world's, which tests may change."""

    url: str
    files: Path | None = None

    def post(self, path: str, **request: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=60, **request)

    def serve(self, *apps: str, allowed: list[str] | None = None) -> httpx.Response:
        """Swap in bundled apps, each as a server of its own name."""
        servers = {
            app: {"transport": "stdio", "command": "miniworld-app", "args": [app]} for app in apps
        }
        body: dict[str, Any] = {"mcpServers": servers}
        if allowed is not None:
            body["allowed_tool_names"] = allowed
        return self.post("/apps", json=body)

    def write(self, name: str, data: bytes | str) -> None:
        """Put a file into the world."""
        assert self.files is not None
        path = self.files / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def populate(self, subsystem: str | None, archive: bytes | None) -> httpx.Response:
        params = {} if subsystem is None else {"subsystem": subsystem}
        files = {"other": b"x"} if archive is None else {"archive": ("a.tar.gz", archive)}
        return self.post("/data/populate", params=params, files=files)

    def ask(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run ``use(session)`` with an initialized session of the official client."""
        from mcp import ClientSession
        from mcp.client import streamable_http

        connect = (
            getattr(streamable_http, "streamable_http_client", None)
            or streamable_http.streamablehttp_client
        )

        async def run() -> Any:
            async with (
                connect(f"{self.url}/mcp/") as streams,
                ClientSession(streams[0], streams[1]) as session,
            ):
                await session.initialize()
                return await use(session)

        return anyio.run(run)

    def names(self) -> list[str]:
        """Names of the tools that show."""
        listed = self.ask(lambda session: session.list_tools())
        return [tool.name for tool in listed.tools]

    def tool(self, name: str) -> dict[str, Any]:
        """One tool's description in its wire form."""
        listed = self.ask(lambda session: session.list_tools())
        (found,) = [tool for tool in listed.tools if tool.name == name]
        described: dict[str, Any] = found.model_dump(by_alias=True, exclude_none=True)
        return described

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A tool's result in its wire form."""
        result = self.ask(lambda session: session.call_tool(name, arguments))
        dumped: dict[str, Any] = result.model_dump(by_alias=True, exclude_none=True)
        return dumped


def archive(files: dict[str, bytes]) -> bytes:
    """A tar.gz of ``files``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


@pytest.fixture
def pack() -> Callable[[dict[str, bytes]], bytes]:
    return archive


@pytest.fixture(scope="session", params=["light", "library", "APEX_GATEWAY_URL"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A running gateway, the same one for all tests of a session."""
    if request.param == "APEX_GATEWAY_URL":
        url = os.environ.get("APEX_GATEWAY_URL")
        if not url:
            pytest.skip("APEX_GATEWAY_URL names no gateway")
        yield Gateway(url.rstrip("/"))
        return
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "filesystem").mkdir()
    with start(folder, MINIWORLD_SERVER=request.param) as url:
        yield Gateway(url, folder / "filesystem")


@pytest.fixture
def sample(gateway: Gateway) -> Gateway:
    """A gateway whose servers and files a test may change."""
    if gateway.files is None:
        pytest.skip("needs a gateway that may be reconfigured")
    return gateway


@pytest.fixture(params=["light", "library"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that nothing was done to yet."""
    with start(tmp_path, MINIWORLD_SERVER=request.param) as url:
        yield Gateway(url, tmp_path / "filesystem")


class start:
    """Context of a gateway process of the sample world; enters with its URL."""

    def __init__(self, folder: Path, **settings: str) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._settings = {
            "MINIWORLD_HOST": "127.0.0.1",
            "MINIWORLD_PORT": str(port),
            "MINIWORLD_FILESYSTEM": str(folder / "filesystem"),
            "MINIWORLD_APPS_DATA": str(folder / "apps_data"),
            "MINIWORLD_RETRY_S": "5",
            **settings,
        }

    def __enter__(self) -> str:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "skyrl_apex_miniworld.gateway"],
            env={**os.environ, **self._settings},
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                pytest.fail(f"the gateway ended with {self._process.returncode}")
            try:
                if httpx.get(f"{self._url}/health").status_code == 200:
                    return self._url
            except httpx.TransportError:
                time.sleep(0.05)
        self.__exit__()
        pytest.fail(f"no answer from {self._url}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
