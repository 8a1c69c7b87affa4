"""Registers the ``archipelago-local`` sandbox."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl


@hookimpl
def apex_register_sandboxes(register: Register) -> None:
    register(
        "archipelago-local",
        "skyrl_apex_local.environment:LocalEnvironment",
        summary="Linux namespaces through bubblewrap: no containers and no daemon.",
    )
