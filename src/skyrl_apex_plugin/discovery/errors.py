"""What can go wrong between a name in a configuration and the object it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from skyrl_apex_hookspecs import ApexError


class DiscoveryError(ApexError):
    """Base of the errors of this package; an ended trial that met one is a ``setup_error``."""


class UnknownName(DiscoveryError):
    """Nobody registered the name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, origin: str = "") -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        super().__init__(
            f"no {kind} is called {name!r}{f' ({origin})' if origin else ''}"
            + (f"; did you mean {close[0]!r}?" if close else ".")
            + f" Known: {', '.join(names) or 'none'}."
            " Write one of these, or module:Class, or install the package that registers it"
            " (`skyrl-apex plugins list` shows what is installed)."
        )


class BrokenName(DiscoveryError):
    """The name is registered, but its target cannot be imported."""

    def __init__(
        self, kind: str, name: str, target: str, owner: str, cause: BaseException, *, remedy: str
    ) -> None:
        super().__init__(
            f"the {kind} {name!r} of {owner} is registered as {target}, which does not import: "
            f"{type(cause).__name__}: {cause}. {remedy}"
        )


class DuplicateName(DiscoveryError):
    """Two owners claim one name."""

    def __init__(self, kind: str, name: str, owners: Iterable[str]) -> None:
        super().__init__(
            f"the {kind} name {name!r} is registered by {' and by '.join(owners)}: "
            "uninstall one of them, or leave one out of APEX_PLUGINS."
        )


class PluginError(DiscoveryError):
    """A plugin does not load, or its hooks do not fit the contract."""
