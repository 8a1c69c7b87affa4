"""What is installed and what it registers, for ``skyrl-apex plugins list`` and ``doctor``.

Looks at each plugin by itself, so that a broken one is listed instead of hiding the others.
Imports plugin modules, which are light by contract, and no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

from .entry_points import entry_points_of, owner_of
from .errors import DiscoveryError
from .manager import GROUP, allowed_entry_points, load_plugins
from .resolve import build_registry

NAME_GROUPS = {
    "skyrl.generators": "generator",
    "harbor.agents": "harbor agent",
    "harbor.environments": "harbor environment",
    "harbor.plugins": "harbor plugin",
}
"""Entry-point groups that are not hooks, and the kind that the inventory calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One plugin. ``status`` is ``loaded``, ``left out`` or ``broken`` (then with an error)."""

    name: str
    module: str
    owner: str
    status: str
    hooks: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord:
    """One name that a configuration or a command line may use."""

    kind: str
    name: str
    target: str
    owner: str
    extra: str | None = None
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    plugins: tuple[PluginRecord, ...]
    names: tuple[NameRecord, ...]
    problems: tuple[str, ...]
    """What would stop a run: broken plugins, names taken twice, a wrong allow-list."""


def take_inventory() -> Inventory:
    """Look at everything that is installed. Never raises for what it finds."""
    problems: list[str] = []
    try:
        allowed = allowed_entry_points()
    except DiscoveryError as error:
        problems.append(str(error))
        allowed = entry_points_of(GROUP)
    plugins = tuple(_look_at(point, point in allowed) for point in entry_points_of(GROUP))
    problems += [record.error for record in plugins if record.error]
    loaded = {record.name for record in plugins if record.status == "loaded"}
    names = _registered(tuple(point for point in allowed if point.name in loaded), problems)
    return Inventory(
        plugins=plugins, names=(*names, *_named_by_entry_points()), problems=tuple(problems)
    )


def _look_at(point: EntryPoint, allowed: bool) -> PluginRecord:
    status, hooks, error = "left out", tuple[str, ...](), None
    if allowed:
        try:
            manager = load_plugins((point,))
        except DiscoveryError as found:
            status, error = "broken", str(found)
        else:
            status = "loaded"
            callers = manager.get_hookcallers(manager.get_plugin(point.name)) or ()
            hooks = tuple(sorted(caller.name for caller in callers))
    return PluginRecord(
        name=point.name,
        module=point.value,
        owner=owner_of(point),
        status=status,
        hooks=hooks,
        error=error,
    )


def _registered(points: tuple[EntryPoint, ...], problems: list[str]) -> list[NameRecord]:
    try:
        registry = build_registry(load_plugins(points))
    except DiscoveryError as error:
        problems.append(str(error))
        return []
    return [
        NameRecord(
            kind=entry.kind,
            name=entry.name,
            target=entry.target,
            owner=entry.owner,
            extra=entry.extra,
            summary=entry.summary,
        )
        for entry in registry
    ]


def _named_by_entry_points() -> list[NameRecord]:
    return [
        NameRecord(kind=kind, name=point.name, target=point.value, owner=owner_of(point))
        for group, kind in NAME_GROUPS.items()
        for point in entry_points_of(group)
    ]
