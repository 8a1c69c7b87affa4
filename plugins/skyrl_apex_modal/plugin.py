"""Registers the Modal sandbox."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl


@hookimpl
def apex_register_sandboxes(register: Register) -> None:
    register(
        "archipelago-modal",
        "skyrl_apex_modal.environment:ApexModalEnvironment",
        extra="modal",
        summary="Modal sandboxes with a tunnel to the world's gateway",
    )
