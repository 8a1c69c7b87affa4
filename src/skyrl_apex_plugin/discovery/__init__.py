"""Entry points, name resolution and the plugin manager.

Imports nothing heavy: ``importlib.metadata``, pluggy and the contract.
"""

from .entry_points import resolve_entry_point
from .errors import BrokenName, DiscoveryError, DuplicateName, PluginError, UnknownName
from .manager import plugin_manager
from .registry import Registration
from .resolve import registered, resolve

__all__ = [
    "BrokenName",
    "DiscoveryError",
    "DuplicateName",
    "PluginError",
    "Registration",
    "UnknownName",
    "plugin_manager",
    "registered",
    "resolve",
    "resolve_entry_point",
]
