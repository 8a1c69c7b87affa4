"""Asking the container engine on its command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class EngineError(RuntimeError):
    """The engine refused a command; carries its own words."""


async def engine(command: Sequence[str]) -> str:
    """Run a ``docker`` command; returns its output.

    :raises EngineError: when it fails, or there is no engine program.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise EngineError(f"{command[0]} is not installed") from error
    output, errors = await process.communicate()
    if process.returncode != 0:
        words = errors.decode(errors="replace").strip()
        raise EngineError(f"{' '.join(command)} ended with {process.returncode}: {words}")
    return output.decode()


async def has_image(program: Sequence[str], name: str) -> bool:
    """Whether the engine has an image of this name."""
    try:
        await engine([*program, "image", "inspect", "--format", "{{.Id}}", name])
    except EngineError as error:
        if "no such" in str(error).lower():
            return False
        raise
    return True
