"""Start and stop a CPU engine process."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal, Self

STOP_SECONDS = 5.0


class EngineStartError(RuntimeError):
    """The engine process ended, or was not ready in time. Holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of one engine; ``apex.sampler.kwargs`` holds them in a training run."""

    slots: int = 32
    """Sequences that are computed or remembered at once; more requests than this queue."""
    max_model_len: int | None = None
    """Prompt and completion in tokens; by default the model's own limit, at most 8192."""
    step_tokens: int = 1024
    """Tokens computed in one step at most."""
    threads: int = 1
    """Threads of the linear algebra library."""
    logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] = "processed_logprobs"
    served_model_name: str | None = None
    """Name in requests; the model's directory is always accepted."""
    startup_seconds: float = 120.0
    log_path: str | None = None
    """File for the engine's log; by default a temporary one, shown when the start fails."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Raises ``ValueError`` that names an unknown option and the known ones."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(options.keys() - set(known)):
            raise ValueError(f"unknown engine options {unknown}; known are {known}")
        return cls(**options)

    def arguments(self) -> list[str]:
        given = {
            "--slots": self.slots,
            "--max-model-len": self.max_model_len,
            "--step-tokens": self.step_tokens,
            "--threads": self.threads,
            "--logprobs-mode": self.logprobs_mode,
            "--served-model-name": self.served_model_name,
        }
        return [
            part
            for name, value in given.items()
            if value is not None
            for part in (name, str(value))
        ]


class EngineHandle:
    """A running engine. Ends with :meth:`stop`, and in any case with this process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.url = url
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Idempotent; returns when the process is gone."""
        atexit.unregister(self.stop)
        _end(self._process)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def start_engine(
    model_dir: str | Path,
    options: EngineOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> EngineHandle:
    """Start an engine for ``model_dir`` and return once it answers (port 0: a free one).

    The child reads from a pipe whose other end only this process holds. Its end of file tells the
    child that this process is gone, also after ``kill -9``.

    Raises :class:`EngineStartError`.
    """
    options = options or EngineOptions()
    log: IO[bytes] = open(options.log_path, "ab+") if options.log_path else tempfile.TemporaryFile()  # noqa: SIM115
    ready_read, ready_write = os.pipe()
    command = [sys.executable, "-m", "skyrl_apex_plugin.embedded.engine"]
    command += ["--model", str(model_dir), "--host", host, "--port", str(port)]
    command += ["--ready-fd", str(ready_write), "--exit-with-stdin", *options.arguments()]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=[ready_write],
        env=os.environ | {"OMP_NUM_THREADS": str(options.threads), "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,  # Ctrl-C reaches the parent, which stops this child in order
    )
    os.close(ready_write)
    try:
        address = _wait_ready(ready_read, options.startup_seconds)
    except EngineStartError as error:
        _end(process)
        raise EngineStartError(f"{error}; {' '.join(command)}\n{_tail(log)}") from None
    except BaseException:
        _end(process)
        raise
    return EngineHandle(process, f"http://{address['host']}:{address['port']}", log)


def _wait_ready(descriptor: int, seconds: float) -> dict[str, Any]:
    deadline, content = time.monotonic() + seconds, b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise EngineStartError(f"the engine was not ready after {seconds:.0f} s")
            chunk = pipe.read(4096)
            if not chunk:
                break
            content += chunk
    if not content:
        raise EngineStartError("the engine ended before it was ready")
    address: dict[str, Any] = json.loads(content)
    return address


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: IO[bytes], size: int = 4000) -> str:
    log.flush()
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - size))
    return log.read().decode(errors="replace")
