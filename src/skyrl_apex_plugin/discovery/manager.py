"""The plugin manager: which plugins load, in which order, and what is wrong with them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint
from threading import RLock
from types import ModuleType
from typing import Any

import pluggy

import skyrl_apex_hookspecs
from skyrl_apex_hookspecs import PROJECT, specs

from .entry_points import DISTRIBUTION, distribution_of, entry_points_of, owner_of
from .errors import DuplicateName, PluginError

GROUP = "skyrl_apex"
ALLOW_LIST = "APEX_PLUGINS"
"""Environment variable: the plugins that load, by entry-point name, comma-separated. Unset
loads all. The ``core`` plugin of this distribution always loads."""
ALWAYS = "core"

AWAITED_HOOKS = frozenset(
    {"apex_prepare_world", "apex_trial_started", "apex_turn_finished", "apex_trial_finished"}
)
"""Hooks whose implementations may be coroutine functions."""

_lock = RLock()


def plugin_manager() -> pluggy.PluginManager:
    """The process's plugin manager, with every allowed plugin loaded and checked.

    Loads once in each process, Ray workers included. Plugin order, which is also the order of
    calls: third-party plugins by name, bundled ones by name, then ``core``; an implementation
    may ask for ``tryfirst`` or ``trylast``.

    :raises PluginError: a plugin does not import or construct, implements a hook that does not
        exist, asks for arguments that a hook does not have, or forgot ``@hookimpl``.
    """
    with _lock:
        return _load()


@cache
def _load() -> pluggy.PluginManager:
    return load_plugins(allowed_entry_points())


def load_plugins(points: tuple[EntryPoint, ...]) -> pluggy.PluginManager:
    """A manager with the plugins of ``points``, each imported and checked."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    # pluggy calls the plugin that was registered last first.
    for point in reversed(in_plugin_order(points)):
        register_plugin(manager, point)
    return manager


def allowed_entry_points() -> tuple[EntryPoint, ...]:
    """Entry points of the plugins that may load.

    :raises PluginError: the allow-list names a plugin that is not installed.
    :raises DuplicateName: two distributions declare a plugin of the same name.
    """
    points = entry_points_of(GROUP)
    by_name: dict[str, EntryPoint] = {}
    for point in points:
        other = by_name.setdefault(point.name, point)
        if other.value != point.value:
            raise DuplicateName("plugin", point.name, (owner_of(other), owner_of(point)))
    listed = os.environ.get(ALLOW_LIST)
    if listed is None:
        return tuple(by_name.values())
    wanted = {name.strip() for name in listed.split(",") if name.strip()}
    missing = sorted(wanted - by_name.keys())
    if missing:
        raise PluginError(
            f"{ALLOW_LIST}={listed!r} names plugins that are not installed: {', '.join(missing)}. "
            f"Installed: {', '.join(sorted(by_name))}."
        )
    return tuple(point for name, point in by_name.items() if name in wanted | {ALWAYS})


def in_plugin_order(points: tuple[EntryPoint, ...]) -> list[EntryPoint]:
    """Third-party plugins by name, bundled ones by name, then ``core``."""

    def rank(point: EntryPoint) -> tuple[bool, bool, str]:
        bundled = distribution_of(point) == DISTRIBUTION
        return bundled, bundled and point.name == ALWAYS, point.name

    return sorted(points, key=rank)


def register_plugin(manager: pluggy.PluginManager, point: EntryPoint) -> None:
    """Import a plugin and check its hooks before any of them is called."""
    owner = f"plugin {point.name!r} ({owner_of(point)}, {point.value})"
    fault = "import"
    try:
        plugin = point.load()
        if inspect.isclass(plugin):
            fault = "construct"
            plugin = plugin()
    except (Exception, SystemExit) as error:  # a third party's code may raise anything
        others = ",".join(p.name for p in entry_points_of(GROUP) if p.name != point.name)
        raise PluginError(
            f"{owner} does not {fault}: {type(error).__name__}: {error}. Repair or uninstall "
            f"{distribution_of(point)}, or leave it out: {ALLOW_LIST}={others}"
        ) from error
    check_marked(plugin, owner)
    try:
        manager.register(plugin, name=point.name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"{owner} does not fit the contract: {error}") from error
    check_implementations(manager, plugin, owner)


def check_marked(plugin: Any, owner: str) -> None:
    """Refuse a function that is named like a hook and lacks ``@hookimpl``: it would never run."""
    for name, function in own_functions(plugin):
        if not name.startswith("apex_") or hasattr(function, f"{PROJECT}_impl"):
            continue
        raise PluginError(
            f"{owner}: function {name} is named like a hook but is not marked. Decorate it with "
            "@hookimpl (from skyrl_apex_hookspecs), or choose a name without the prefix apex_."
        )


def own_functions(plugin: Any) -> Iterator[tuple[str, Any]]:
    """The functions that a module defines itself, or the methods of an object."""
    if isinstance(plugin, ModuleType):
        for name, member in vars(plugin).items():
            if inspect.isfunction(member) and member.__module__ == plugin.__name__:
                yield name, member
    else:
        yield from inspect.getmembers(plugin, inspect.isroutine)


def check_implementations(manager: pluggy.PluginManager, plugin: Any, owner: str) -> None:
    """Refuse misspelt hooks, wrappers, and coroutine functions where nothing awaits them."""
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():
            known = [
                name for name in dir(specs) if hasattr(getattr(specs, name), f"{PROJECT}_spec")
            ]
            close = get_close_matches(caller.name, known, n=1)
            raise PluginError(
                f"{owner} implements {caller.name}, which is no hook of contract version "
                f"{skyrl_apex_hookspecs.CONTRACT_VERSION}"
                + (f"; did you mean {close[0]}?" if close else f". Hooks: {', '.join(known)}")
            )
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(
                    f"{owner}: {caller.name} is a hook wrapper. Wrappers are not part of the "
                    "contract: an error could no longer name the plugin that it came from."
                )
            is_async = inspect.iscoroutinefunction(implementation.function)
            if is_async and caller.name not in AWAITED_HOOKS:
                raise PluginError(
                    f"{owner}: {caller.name} is a coroutine function, but this hook is "
                    f"synchronous. Only these are awaited: {', '.join(sorted(AWAITED_HOOKS))}."
                )
