"""One sandbox on this machine: namespaces, a supervisor inside, limits, and their end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from skyrl_apex_sandbox_kit import start_or_undo

from . import cgroups, wire
from .disk import watch
from .host_privileges import HostPrivileges
from .images import Image
from .output import OutputPipe
from .rootfs import give_to, plan_root
from .state import SandboxState
from .template_client import Template, open_request, python_paths, running_template

READY_TIMEOUT_SEC = 60.0
END_TIMEOUT_SEC = 60.0
_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="sandbox")
"""Preparing and removing waits for the kernel; in the default executor it would keep running trials
waiting."""
Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[str, Stream], Awaitable[None]]


class SandboxError(RuntimeError):
    """A sandbox did not start, or is gone."""


class CommandTimeout(RuntimeError):
    """A command ran past its time; its whole process tree was killed."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is made of."""

    bwrap: str
    image: Image | None = None
    limits: cgroups.Limits = field(default_factory=cgroups.Limits)
    disk_bytes: int | None = None
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    stdout: str
    stderr: str
    exit_code: int


@dataclass(slots=True)
class _Processes:
    """What holds a sandbox up on the host, as far as its start got."""

    init: int | None = None
    """Pidfd of the first process inside."""
    bwrap: subprocess.Popen[bytes] | None = None
    console: socket.socket | None = None

    def kill(self) -> None:
        """Kill them, and with them all that runs inside; blocks until the first ones are gone.

        :raises SandboxError: when one stays.
        """
        if self.init is not None:
            try:
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it is dead already, which is what is wanted
            finally:
                os.close(self.init)
        if self.bwrap is not None:
            # The group: bubblewrap's child may not have asked yet to die with its parent.
            os.killpg(self.bwrap.pid, signal.SIGKILL)
            self.bwrap.wait()
        if self.console is not None:
            with self.console:
                self._wait_for_the_other_end(self.console)

    def _wait_for_the_other_end(self, console: socket.socket) -> None:
        """Until nobody holds it: the shell inside ends with it, should the kills have missed it."""
        console.shutdown(socket.SHUT_WR)
        console.settimeout(END_TIMEOUT_SEC)
        try:
            while console.recv(4096):
                pass
        except TimeoutError:
            raise SandboxError(
                f"processes of the sandbox were there {END_TIMEOUT_SEC:.0f} s after their kill"
            ) from None


def _remove(processes: _Processes, groups: tuple[str, ...], state: SandboxState | None) -> None:
    """Blocks. What a process that stays still uses is left to the reaper."""
    processes.kill()
    try:
        cgroups.remove(groups)
    finally:
        if state is not None:
            state.remove()


async def _to_the_end[Result](blocking: Callable[..., Result], *arguments: Any) -> Result:
    """Run a blocking call in a thread and wait for its end, also when cancelled meanwhile.

    A future, not a task: an event loop that closes would cancel a task.
    """
    job = asyncio.get_running_loop().run_in_executor(_THREADS, blocking, *arguments)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise


class Sandbox:
    """Started once, stopped once; both may be called again without harm."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.refused_limits: Mapping[str, str] = {}
        self._state: SandboxState | None = None
        self._processes = _Processes()
        self._control: socket.socket | None = None
        self._cgroups: tuple[str, ...] = ()
        self._disk_watch: asyncio.Task[None] | None = None
        self._end: str | None = None

    @property
    def running(self) -> bool:
        return self._control is not None

    @property
    def has_host_python(self) -> bool:
        """Whether this process's Python installation is visible inside."""
        return self.spec.image is None or not self.spec.image.whole_system

    async def start(self) -> None:
        """Set the sandbox up; on any failure, cancellation included, nothing is left.

        :raises SandboxError: with bubblewrap's own words when it refused.
        """
        if not self.running:
            await start_or_undo(self._start, self.stop)

    async def _start(self) -> None:
        privileges = HostPrivileges.detect()
        template = await running_template()
        state = self._state = SandboxState.create()
        uids = privileges.choose_uids(state.name)
        # To the end: the thread would write into what is being removed.
        mounts = await _to_the_end(self._plan, state, template, uids[0], privileges)
        pid = await self._start_bwrap(mounts, privileges)
        self._processes.init = init = os.pidfd_open(pid)
        groups = cgroups.create(state.name, self.spec.limits)
        self._cgroups, self.refused_limits = groups.paths, groups.refused or {}
        state.record(init=pid, cgroups=groups.paths)
        ours, theirs = socket.socketpair()
        with theirs:
            self._control = ours
            request = {
                "cgroups": groups.paths,
                "uids": uids,
                "single_user": privileges.single_user,
                "file_size_limit": self.spec.disk_bytes,
            }
            await template.fork(request, [init, theirs.fileno()])
        ours.setblocking(False)
        if self.spec.disk_bytes is not None:
            self._disk_watch = asyncio.create_task(
                watch(state.backing, self.spec.disk_bytes, self._disk_exceeded)
            )

    async def _disk_exceeded(self, used: int) -> None:
        self._end = (
            f"the sandbox was ended: its files take {used / 2**20:.0f} MB of the "
            f"{(self.spec.disk_bytes or 0) / 2**20:.0f} MB that the task allows (storage_mb)"
        )
        await self._kill()

    def _plan(
        self, state: SandboxState, template: Template, first_uid: int, privileges: HostPrivileges
    ) -> list[str]:
        spec = self.spec
        mounts = plan_root(
            state.backing,
            image=spec.image,
            python_paths=python_paths(template.import_path),
            writable=spec.writable,
        )
        if not privileges.single_user:
            give_to(state.backing, first_uid)
        return mounts

    async def _start_bwrap(self, mounts: Sequence[str], privileges: HostPrivileges) -> int:
        """Start bubblewrap; returns the host's PID of the sandbox's init, once its root is set.

        Not with ``asyncio.create_subprocess_exec``, which on Python 3.12.1 waits for ever when it
        is cancelled half-way, as a closing event loop does.
        """
        info, info_write = os.pipe()
        console, theirs = socket.socketpair()
        console.setblocking(False)
        self._processes.console = console
        command = [
            self.spec.bwrap,
            *_NAMESPACES,
            *privileges.bwrap_arguments(),
            "--info-fd",
            str(info_write),
            *mounts,
            "--",
            # Lives until the host process closes the console, by ending if nothing else.
            *("/bin/sh", "-c", "echo ready; read _"),
        ]
        try:
            with theirs:
                self._processes.bwrap = _spawn(command, theirs, [info_write])
            os.close(info_write)
            info_write = -1
            await self._wait_for_ready_line(console)
            return int(json.loads(os.read(info, 4096))["child-pid"])
        finally:
            os.close(info)
            if info_write != -1:
                os.close(info_write)

    async def _wait_for_ready_line(self, console: socket.socket) -> None:
        loop, said = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(READY_TIMEOUT_SEC):
                while chunk := await loop.sock_recv(console, 4096):
                    said += chunk
                    if said.endswith(b"ready\n"):
                        return
            problem = said.decode(errors="replace").strip()
        except TimeoutError:
            problem = f"it was not ready after {READY_TIMEOUT_SEC:.0f} s"
        raise SandboxError(f"bubblewrap could not make the sandbox: {problem}{_hint(problem)}")

    async def stop(self, *, keep_files: bool = False) -> None:
        """Kill everything inside and remove what the sandbox had on the host.

        :raises SandboxError: when a process of it stays.
        """
        if self._disk_watch is not None:
            self._disk_watch.cancel()
            self._disk_watch = None
        if self._control is not None:
            self._control.close()
            self._control = None
        groups, self._cgroups = self._cgroups, ()
        state, self._state = self._state, None
        await _to_the_end(_remove, self._take_processes(), groups, None if keep_files else state)

    async def _kill(self) -> None:
        await _to_the_end(self._take_processes().kill)

    def _take_processes(self) -> _Processes:
        taken, self._processes = self._processes, _Processes()
        return taken

    @contextmanager
    def _request(self, kind: bytes = b"R") -> Iterator[socket.socket]:
        """A connection to whoever serves the sandbox from inside.

        :raises SandboxError: when the sandbox is not running, or ends meanwhile.
        """
        if self._control is None:
            raise SandboxError("the sandbox is not running: start() it first")
        try:
            with open_request(self._control, kind) as conn:
                yield conn
        except (wire.ConnectionLost, ConnectionError) as error:
            raise SandboxError(self._end or "the sandbox is gone: all in it has ended") from error

    async def network_socket(self, *, listening: bool = False) -> tuple[socket.socket, int]:
        """A TCP socket of the sandbox's network, to use from this process, and its port.

        Unconnected, or listening on a free port of the sandbox's loopback.
        """
        with self._request(b"L" if listening else b"S") as conn:
            answer, fds = await wire.receive_fds_async(conn)
        fresh = socket.socket(fileno=fds[0])
        fresh.setblocking(False)
        return fresh, answer["port"]

    async def execute(
        self,
        command: str,
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_sec: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Completed:
        """Run a shell command. Background processes it leaves behind stay; on timeout or
        cancellation the whole tree is killed.

        :raises CommandTimeout: after ``timeout_sec``.
        :raises SandboxError: when the sandbox died under the command.
        """
        message = {"op": "exec", "command": command, "cwd": cwd, "user": user, "env": dict(env)}
        async with OutputPipe("stdout", on_output) as out, OutputPipe("stderr", on_output) as err:
            return await self._execute(message, out, err, timeout_sec)

    async def _execute(
        self, message: dict[str, Any], out: OutputPipe, err: OutputPipe, timeout_sec: float | None
    ) -> Completed:
        with self._request() as conn:
            await wire.send_async(conn, message, [out.write_end, err.write_end])
            out.start()
            err.start()
            code = await self._exit_code(conn, timeout_sec, message["command"])
            return Completed(await out.finish(), await err.finish(), code)

    async def _exit_code(self, conn: socket.socket, timeout_sec: float | None, command: str) -> int:
        try:
            async with asyncio.timeout(timeout_sec):
                answer = await wire.receive_async(conn)
        except TimeoutError:
            conn.send(b"k")
            await wire.receive_async(conn)
            raise CommandTimeout(
                f"command timed out after {timeout_sec} seconds and was killed with all its "
                f"processes: {command[:200]}"
            ) from None
        _raise_for(answer, "a command")
        return int(answer["exit"])

    async def open_file(self, path: str, *, write: bool, mode: int = 0o644) -> int:
        """Open a file inside; returns a descriptor. No link leads out of the sandbox."""
        message = {"op": "open", "path": path, "write": write, "mode": mode}
        with self._request() as conn:
            await wire.send_async(conn, message)
            answer, fds = await wire.receive_fds_async(conn)
        _raise_for(answer, path)
        return fds[0]

    async def transfer(self, message: dict[str, Any], descriptor: int) -> None:
        """Run a ``pack`` or ``unpack`` request on a tar stream."""
        with self._request() as conn:
            await wire.send_async(conn, message, [descriptor])
            answer = await wire.receive_async(conn)
        _raise_for(answer, message["base"])


_NAMESPACES = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"),
    *("--hostname", "sandbox"),
)


def _spawn(
    command: Sequence[str], console: socket.socket, fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a program on a console; blocks for about a millisecond."""
    end = console.fileno()
    return subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, pass_fds=fds, start_new_session=True
    )


def _raise_for(answer: Mapping[str, Any], path: str) -> None:
    if "error" not in answer:
        return
    number = answer.get("errno")
    if number is None:
        raise SandboxError(f"{path} in the sandbox: {answer['error']}")
    raise OSError(number, os.strerror(number), path)


def _hint(problem: str) -> str:
    if "namespace" in problem or "ermission" in problem or "not permitted" in problem:
        return (
            ". This machine does not let this user make namespaces: allow them "
            "(sysctl kernel.unprivileged_userns_clone=1, or run the container with "
            "--security-opt seccomp=unconfined --cap-add SYS_ADMIN)"
        )
    return ""
