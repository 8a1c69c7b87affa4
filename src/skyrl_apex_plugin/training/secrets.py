"""Keeping secrets out of what is printed and written."""

from __future__ import annotations

import re
from typing import Any

import yaml

NAMES = (
    r"(?:(?:api|access|secret|private|auth)[-_. ]?key|token|secret|passw(?:or)?d|passphrase"
    r"|credential|authorization)s?"
)
SECRET = re.compile(NAMES + "$", re.IGNORECASE)
"""Keys whose values are never shown."""
COUNTED = re.compile("tokens?$", re.IGNORECASE)
"""``max_tokens`` and its like: their numbers are shown."""
USERINFO = re.compile(r"(?<=://)[^/\s?#]+(?=@)")
"""User and password of a URL."""
IN_QUERY = re.compile(rf"([?&][\w.-]*{NAMES}=)[^&#\s]+", re.IGNORECASE)
HIDDEN = "***"


def redacted(value: Any, key: str = "") -> Any:
    """``value`` with everything under a key that names a secret replaced, at any depth, and the
    secrets in URLs."""
    if isinstance(value, dict):
        # What stands under a secret's name is secret whatever its own names are.
        return {
            name: redacted(inner, key if SECRET.search(key) else str(name))
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(inner, key) for inner in value]
    if SECRET.search(key) and _is_secret(value, key):
        return HIDDEN
    if isinstance(value, str):
        return IN_QUERY.sub(rf"\1{HIDDEN}", USERINFO.sub(HIDDEN, value))
    return value


def _is_secret(value: Any, key: str) -> bool:
    if isinstance(value, int | float):
        return not isinstance(value, bool) and not COUNTED.search(key)
    return value is not None and value != ""


def redacted_setting(setting: str) -> str:
    """The same for ``key=value`` of a command line, whose value may be written in YAML."""
    key, separator, text = setting.partition("=")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    names = [part for part in key.split(".") if SECRET.search(part)]
    shown = redacted(value, names[0] if names else "")
    if not isinstance(value, dict | list):
        # As it was written: YAML reads ``1e-6`` and ``off`` in its own way.
        return f"{key}{separator}{HIDDEN if shown == HIDDEN else redacted(text)}"
    # ``{api_key:sk-1}`` is a name without a value to YAML.
    if shown != value or re.search(NAMES + r"[\"']?:[^\s]", text, re.IGNORECASE):
        return f"{key}{separator}{HIDDEN}"
    return setting
