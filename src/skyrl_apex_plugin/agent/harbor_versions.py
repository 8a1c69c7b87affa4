"""What differs between harbor 0.21 and 0.26 for an agent."""

from __future__ import annotations

from typing import Any

RUNTIME_KWARGS = frozenset(
    {
        "override_setup_timeout_sec",
        "disable_web_search",
        "reasoning_effort",
        "base_url",
        "model_api_key_name",
        "model_api_format",
        "skip_model_parsing",
        "environment_logs_dir",
    }
)
"""Keyword arguments that some release of harbor hands to every agent."""


def declare_capabilities[Class: type](cls: Class) -> Class:
    """Class decorator: 0.26's capability flags, and 0.21's class variables of the same meaning.

    Set after the class is made: 0.26 warns of the old names in a class body.
    """
    try:
        from harbor.agents.capabilities import AgentCapabilities
    except ModuleNotFoundError:
        pass
    else:
        cls.capabilities = AgentCapabilities(base_url=True, atif=True, mcp_servers=True)  # type: ignore[attr-defined]
    cls.SUPPORTS_ATIF = True  # type: ignore[attr-defined]
    return cls


def model_connection_spec() -> Any:
    """How harbor resolves a hosted model's key and endpoint for this agent."""
    try:
        from harbor.agents.agent_auth_resolution import ModelConnectionSpec
    except ModuleNotFoundError:
        from harbor.agents.model_connection import ModelConnectionSpec
    return ModelConnectionSpec()


def model_access(agent: Any) -> dict[str, Any]:
    """``api_key`` and ``api_base`` for litellm, where harbor's settings name them."""
    connection = agent.model_connection
    # 0.26 tells configured endpoints from SDK defaults; 0.21 has one configured URL.
    base = getattr(agent, "_execution_base_url", None)
    base = base or getattr(connection, "configured_base_url", None)
    found = {"api_key": connection.api_key, "api_base": base}
    return {name: value for name, value in found.items() if value}
