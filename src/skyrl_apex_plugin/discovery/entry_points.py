"""Entry points that installed distributions declare."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import BrokenName, DuplicateName, UnknownName
from .targets import is_target, load_target

DISTRIBUTION = "skyrl-apex-plugin"


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Every entry point of ``group``, sorted by name; read once in each process."""
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def distribution_of(point: EntryPoint) -> str:
    """Name of the distribution that declares ``point``."""
    return point.dist.name if point.dist is not None else "an unnamed distribution"


def owner_of(point: EntryPoint) -> str:
    """Who declares ``point``, for messages: ``name version``."""
    if point.dist is None:
        return distribution_of(point)
    return f"{point.dist.name} {point.dist.version}"


def find_entry_point(group: str, name: str) -> EntryPoint:
    """The one entry point called ``name``.

    :raises UnknownName: nobody declares it.
    :raises DuplicateName: two distributions declare it.
    """
    points = entry_points_of(group)
    found = [point for point in points if point.name == name]
    if not found:
        raise UnknownName(f"{group} entry point", name, {point.name for point in points})
    if len({point.value for point in found}) > 1:
        raise DuplicateName(f"{group} entry point", name, (owner_of(point) for point in found))
    return found[0]


def resolve_entry_point(group: str, name: str) -> Any:
    """Load ``module:Class`` as it is written, else what ``name`` stands for in ``group``.

    :raises UnknownName: nobody declares it; the message lists the known names.
    :raises BrokenName: it is declared, but does not import.
    :raises DuplicateName: two distributions declare it.
    """
    if is_target(name):
        try:
            return load_target(name)
        except ImportError as error:
            raise BrokenName(group, name, name, "the configuration", error, remedy="") from error
    point = find_entry_point(group, name)
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a third party's module may raise anything
        kind = f"{group} entry point"
        remedy = install_remedy(distribution_of(point), error, point.extras)
        raise BrokenName(kind, name, point.value, owner_of(point), error, remedy=remedy) from error


def install_remedy(distribution: str, error: BaseException, extras: Iterable[str] = ()) -> str:
    """The command that is likely to repair a target that does not import."""
    wanted = ",".join(extras)
    if wanted:
        return f"Install what it needs: pip install '{distribution}[{wanted}]'"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install the package that brings {error.name!r} beside {distribution}."
    return f"Repair or uninstall {distribution}."
