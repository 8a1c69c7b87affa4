"""What every Ray worker process does first. Imports nothing heavy."""

from __future__ import annotations

import logging

CHATTY = ("httpx", "httpx2", "mcp")
"""Loggers that say one line or more about every request: two thirds of a run's log."""


def prepare() -> None:
    """Switch the name shim on, lend SkyRL the flash_attn import that it cannot do without, and
    keep the log readable."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    import skyrl_apex_shim
    from skyrl_apex_plugin.embedded import bert_padding

    skyrl_apex_shim.install()
    bert_padding.lend()
