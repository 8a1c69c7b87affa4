"""Registers the Docker sandbox."""

from __future__ import annotations

from skyrl_apex_hookspecs import Register, hookimpl


@hookimpl
def apex_register_sandboxes(register: Register) -> None:
    register(
        "archipelago-docker",
        "skyrl_apex_docker.environment:ApexDockerEnvironment",
        summary="harbor's Docker environment with a tunnel to the world's gateway",
    )
