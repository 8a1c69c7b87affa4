"""Finding and deleting what killed runs left behind, over all backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from skyrl_apex_plugin.discovery import BrokenName, registered, resolve


@dataclass(frozen=True, slots=True)
class Reaped:
    """One leftover, or one backend that could not be asked (``name`` is then empty)."""

    backend: str
    name: str
    outcome: Literal["found", "deleted", "failed", "not asked"]
    detail: str = ""


async def reap(
    backends: list[str] | None = None, *, dry_run: bool = False
) -> AsyncIterator[Reaped]:
    """Go through the backends, all registered ones when none is named.

    :raises skyrl_apex_plugin.discovery.UnknownName: for a name that is not registered.
    """
    for backend in backends or sorted(registered("sandbox")):
        try:
            cls = resolve("sandbox", backend)
        except BrokenName as error:
            yield Reaped(backend, "", "not asked", str(error))
            continue
        list_leftovers = getattr(cls, "leftovers", None)
        if list_leftovers is None:
            yield Reaped(backend, "", "not asked", "the backend cannot list leftovers")
            continue
        try:
            found = await list_leftovers()
        except Exception as error:
            yield Reaped(backend, "", "not asked", f"{type(error).__name__}: {error}")
            continue
        for leftover in found:
            if dry_run:
                yield Reaped(backend, leftover.name, "found", leftover.description)
                continue
            try:
                await leftover.remove()
            except Exception as error:
                yield Reaped(backend, leftover.name, "failed", f"{type(error).__name__}: {error}")
            else:
                yield Reaped(backend, leftover.name, "deleted", leftover.description)
