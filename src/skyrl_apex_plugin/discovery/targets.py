"""``module:Class`` strings."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def is_target(name: str) -> bool:
    """Whether ``name`` is spelled out as ``module:Class`` rather than a registered name."""
    module, colon, attribute = name.partition(":")
    return bool(colon and module and attribute)


def load_target(target: str) -> Any:
    """Import ``module:Class``; nested attributes (``module:Outer.Inner``) work too.

    :raises ValueError: ``target`` is not of that form.
    :raises ImportError: the module, or the attribute in it, is not there.
    """
    if not is_target(target):
        raise ValueError(f"{target!r} is not of the form module:Class")
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ImportError(f"module {module!r} has no attribute {attribute!r}") from error
    return found
