"""What a run that was killed left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A sandbox without an owner. A backend lists its own with a class method
    ``async leftovers() -> list[Leftover]``, which must never list one that is still used."""

    name: str
    description: str
    remove: Callable[[], Awaitable[None]]
    """Deletes it; called at most once."""
