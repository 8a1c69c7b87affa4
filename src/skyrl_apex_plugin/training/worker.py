"""What every Ray worker process does first. Imports nothing heavy."""

from __future__ import annotations


def prepare() -> None:
    """Switch the name shim on, and lend SkyRL the flash_attn import that it cannot do without."""
    import skyrl_apex_shim
    from skyrl_apex_plugin.embedded import bert_padding

    skyrl_apex_shim.install()
    bert_padding.lend()
