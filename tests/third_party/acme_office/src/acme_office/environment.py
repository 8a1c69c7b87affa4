"""A harbor environment of few lines: one bubblewrap call for each command."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

MOUNTED = ("logs", "tests", "solution", "work")


class AcmeBox(BaseEnvironment):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="acme-box-"))
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "acme-box"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @override
    def _validate_definition(self) -> None:
        return

    @override
    async def start(self, force_build: bool) -> None:
        for name in (*MOUNTED, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir(parents=True, exist_ok=True)

    @override
    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _on_host(self, path: str | Path) -> Path:
        host = self._root / str(path).lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        return host

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy2(source_path, self._on_host(target_path))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._on_host(target_dir), dirs_exist_ok=True)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy2(self._on_host(source_path), target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._on_host(source_dir), target_dir, dirs_exist_ok=True)

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
        **options: Any,
    ) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *("bwrap", "--die-with-parent", "--unshare-all", "--proc", "/proc", "--dev", "/dev"),
            *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
            *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--tmpfs", "/tmp", "--chdir", cwd or "/work"),
            *(part for m in MOUNTED for part in ("--bind", str(self._root / m), f"/{m}")),
            *(part for k, v in (env or {}).items() for part in ("--setenv", k, v)),
            *("/bin/sh", "-c", command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_sec)
        return ExecResult(
            stdout=stdout.decode(), stderr=stderr.decode(), return_code=process.returncode or 0
        )
