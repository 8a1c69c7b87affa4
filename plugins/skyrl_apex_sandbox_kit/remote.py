"""What backends with a plain ``exec`` and nothing else build the rest of the contract from."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

MARK = "APEX_EXEC_ID"
_KILL_MARKED = (
    "while :; do found=; for p in /proc/[0-9]*; do "
    'if grep -qa "{mark}" "$p/environ" 2>/dev/null; then '
    'pid=${{p#/proc/}}; [ "$pid" = $$ ] || {{ kill -9 "$pid" 2>/dev/null && found=1; }}; fi; '
    'done; [ -n "$found" ] || break; done'
)
"""A process keeps the variables it was started with, so daemons are found as well."""


async def exec_and_kill[Result](
    run: Callable[[dict[str, str]], Coroutine[Any, Any, Result]],
    kill: Callable[[str], Awaitable[object]],
    timeout_sec: float | None,
) -> Result:
    """Run a command; on a timeout or cancellation end every process it started inside.

    :param run: runs it with these further variables and no time limit of its own.
    :param kill: runs a shell command as root inside.
    :raises RuntimeError: after ``timeout_sec``.
    """
    mark = uuid.uuid4().hex
    running = asyncio.create_task(run({MARK: mark}))
    try:
        return await asyncio.wait_for(asyncio.shield(running), timeout_sec)
    except (TimeoutError, asyncio.CancelledError) as reason:
        while not running.done():  # it may not have started yet when the first kill looks
            await kill(_KILL_MARKED.format(mark=f"{MARK}={mark}"))
            await asyncio.wait([running], timeout=1.0)
        if isinstance(reason, TimeoutError):
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        raise


async def start_or_undo(
    start: Callable[[], Coroutine[Any, Any, None]], undo: Callable[[], Awaitable[None]]
) -> None:
    """Await ``start()``; when it fails or is cancelled, await ``undo()`` and raise.

    A request that is on its way cannot be called back: a cancelled start is let finish first,
    so that there is something to undo.
    """
    starting = asyncio.create_task(start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        await asyncio.wait([starting])
        await undo()
        raise


def snapshot_command(paths: Sequence[str], target_path: str) -> str:
    """Shell command that packs what exists of the paths, members relative to the root."""
    names = " ".join(shlex.quote(path.lstrip("/")) for path in paths)
    target = shlex.quote(target_path)
    return (
        f'mkdir -p "$(dirname {target})" && cd / && set -- && for p in {names}; do '
        f'[ -e "$p" ] && set -- "$@" "$p"; done; umask 077; tar -czf {target} "$@"'
    )
