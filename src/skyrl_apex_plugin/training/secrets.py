"""Keeping secrets out of what is printed and written."""

from __future__ import annotations

import re
from typing import Any

SECRET = re.compile(r"(api_?key|token|secret|password|credential|authorization)s?$", re.IGNORECASE)
"""Keys whose values are never shown. ``max_tokens`` and its like are numbers, which are kept."""


def redacted(value: Any, key: str = "") -> Any:
    """``value`` with every text under a key that names a secret replaced, at any depth."""
    if isinstance(value, dict):
        return {name: redacted(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, key) for inner in value]
    if isinstance(value, str) and value and SECRET.search(key):
        return "***"
    return value
