"""Names that plugins register, and the lazy targets behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .errors import DuplicateName, PluginError
from .targets import is_target

Kind = Literal["sandbox", "grader", "sampler", "reward"]
KINDS: tuple[Kind, ...] = ("sandbox", "grader", "sampler", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registered name. ``target`` (``module:Class``) is imported only when it is used."""

    kind: Kind
    name: str
    target: str
    owner: str
    """``plugin (distribution version)``."""
    extra: str | None = None
    summary: str = ""


class Registry:
    """All registrations of one process."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[str, Registration]] = {kind: {} for kind in KINDS}

    def add(self, registration: Registration) -> None:
        """Take up a registration.

        :raises DuplicateName: its name is taken.
        :raises PluginError: its target is not ``module:Class``, or its name is empty.
        """
        known = self._by_kind[registration.kind]
        if registration.name in known:
            owners = (known[registration.name].owner, registration.owner)
            raise DuplicateName(registration.kind, registration.name, owners)
        if not registration.name or not is_target(registration.target):
            raise PluginError(
                f"{registration.owner} registers the {registration.kind} {registration.name!r} as "
                f"{registration.target!r}: a name and a target of the form module:Class are needed"
            )
        known[registration.name] = registration

    def __iter__(self) -> Iterator[Registration]:
        for known in self._by_kind.values():
            yield from known.values()

    def of_kind(self, kind: Kind) -> dict[str, Registration]:
        """Registrations of one kind by name, in plugin order."""
        return dict(self._by_kind[kind])
