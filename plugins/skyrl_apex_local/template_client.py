"""The host's side of the template process, of which every host process has one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import wire

START_TIMEOUT_SEC = 60.0


class TemplateError(RuntimeError):
    """The template process did not come up."""


def open_request(channel: socket.socket, kind: bytes) -> socket.socket:
    """Hand a fresh connection to whoever serves ``channel``; returns our end, non-blocking."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(channel, [kind], [theirs.fileno()])
    ours.setblocking(False)
    return ours


class Template:
    """A running template process. It ends when this process closes the channel or ends.

    Starting blocks until it is up.

    :raises TemplateError: when it does not come up.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.channel, theirs = socket.socketpair()
        with theirs:
            module = f"{__package__}.template"
            command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(Path.home())},
                start_new_session=True,
            )
        self.channel.settimeout(START_TIMEOUT_SEC)
        try:
            answer, _ = wire.receive(self.channel)
        except (wire.ConnectionLost, TimeoutError) as error:
            self.close()
            raise TemplateError(
                f"the sandbox template ({' '.join(command)}) did not start: exit code "
                f"{self._process.returncode}"
            ) from error
        self.import_path: tuple[str, ...] = tuple(answer["path"])
        self.channel.setblocking(False)

    async def fork(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        """Fork a supervisor into a sandbox.

        :raises TemplateError: when it could not enter it.
        :raises OSError: when the host has no room for a further process.
        """
        with open_request(self.channel, b"F") as conn:
            await wire.send_async(conn, request, fds)
            try:
                async with asyncio.timeout(START_TIMEOUT_SEC):
                    answer = await wire.receive_async(conn)
            except (wire.ConnectionLost, TimeoutError) as error:
                raise TemplateError(
                    f"the supervisor did not enter the sandbox: {error or 'it died'}"
                ) from error
        if "errno" in answer:
            raise OSError(answer["errno"], f"no supervisor for a sandbox: {answer['error']}")
        if "error" in answer:
            raise TemplateError(answer["error"])

    @property
    def usable(self) -> bool:
        """Whether it runs and is this process's own, not one inherited by a fork."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        self.channel.close()
        self._process.kill()
        self._process.wait()


_template: Template | None = None
_start_lock = threading.Lock()


async def running_template() -> Template:
    """The template of this process; started on first use, and again when it died."""
    if _template is not None and _template.usable:
        return _template
    return await asyncio.to_thread(_start_template)


def _start_template() -> Template:
    global _template
    with _start_lock:
        if _template is None or not _template.usable:
            _template = Template()
        return _template


def python_paths(import_path: Sequence[str]) -> list[Path]:
    """Directories that Python programs inside need, outermost only: the installation, the
    virtual environment, and where editable packages lie."""
    candidates = [sys.base_prefix, os.path.realpath(sys.base_prefix), sys.prefix, *import_path]
    chosen: list[Path] = []
    for path in map(Path, candidates):
        if path.is_dir() and not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return chosen
