"""From a name in the configuration to a class."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import RLock
from typing import Any

import pluggy

from .entry_points import DISTRIBUTION, install_remedy
from .errors import BrokenName, DiscoveryError, PluginError, UnknownName
from .hooks import implementations_of
from .registry import KINDS, Kind, Registration, Registry
from .targets import is_target, load_target

REGISTRATION_HOOKS: dict[Kind, str] = {
    "sandbox": "apex_register_sandboxes",
    "grader": "apex_register_graders",
    "sampler": "apex_register_samplers",
    "reward": "apex_register_rewards",
}

_lock = RLock()


def resolve(kind: Kind, name: str) -> type:
    """The class behind ``name``: ``module:Class`` as it is written, else a registered name.

    :raises UnknownName: nobody registered it; the message lists the known names.
    :raises BrokenName: it is registered, but does not import; the message names the extra of
        this distribution that brings what is missing.
    """
    if is_target(name):
        return _load(kind, name, name, "the configuration", None)
    known = registered(kind)
    if name not in known:
        raise UnknownName(kind, name, known)
    entry = known[name]
    return _load(kind, name, entry.target, entry.owner, entry.extra)


def registered(kind: Kind) -> dict[str, Registration]:
    """Every registered name of a kind, in plugin order. Imports no target."""
    with _lock:
        return _registry().of_kind(kind)


def _load(kind: Kind, name: str, target: str, owner: str, extra: str | None) -> type:
    try:
        found = load_target(target)
    except (Exception, SystemExit) as error:  # a third party's module may raise anything
        distribution = owner.partition("(")[2].partition(" ")[0] or DISTRIBUTION
        remedy = (
            f"Install what it needs: pip install '{DISTRIBUTION}[{extra}]'"
            if extra
            else install_remedy(distribution, error)
        )
        raise BrokenName(kind, name, target, owner, error, remedy=remedy) from error
    if not isinstance(found, type):
        raise BrokenName(
            kind, name, target, owner, TypeError(f"{found!r} is not a class"), remedy=""
        )
    return found


@cache
def _registry() -> Registry:
    return build_registry()


def build_registry(manager: pluggy.PluginManager | None = None) -> Registry:
    """Call every registration hook.

    :param manager: by default the process's own.
    :raises DuplicateName: two plugins register one name.
    :raises PluginError: a hook raised, or registered something that is no ``module:Class``.
    """
    registry = Registry()
    for kind in KINDS:
        for implementation in implementations_of(REGISTRATION_HOOKS[kind], manager):
            owner = implementation.owner
            try:
                implementation.call(register=_registrar(registry, kind, owner))
            except DiscoveryError:
                raise
            except (Exception, SystemExit) as error:  # a third party's hook may raise anything
                reason = f"{type(error).__name__}: {error}"
                raise PluginError(f"{owner}: {REGISTRATION_HOOKS[kind]}: {reason}") from error
    return registry


def _registrar(registry: Registry, kind: Kind, owner: str) -> Callable[..., Any]:
    def register(name: str, target: str, *, extra: str | None = None, summary: str = "") -> None:
        entry = Registration(
            kind=kind, name=name, target=target, owner=owner, extra=extra, summary=summary
        )
        registry.add(entry)

    return register
