"""Checks of the settings that terms take."""

from __future__ import annotations

import math


def require_positive(**settings: float | None) -> None:
    """Raise ``ValueError`` naming the first setting that is not a finite number above 0.

    ``None`` stands for a setting that is left to the trajectory.
    """
    for name, value in settings.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r}: expected a finite number above 0")


def require_at_least_zero(**settings: float) -> None:
    """Raise ``ValueError`` naming the first setting that is negative or not finite."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: expected a finite number of at least 0")
