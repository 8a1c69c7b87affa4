from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyrl_apex_hookspecs import SetupError, Task
from skyrl_apex_plugin.agent.settings import PrepareSettings
from skyrl_apex_plugin.agent.world import World, missing_servers, server_of, world_env


def task(**fields: Any) -> Task:
    return Task(**{"task_id": "t", "directory": Path("/t"), "instruction": "", **fields})


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def test_a_missing_key_is_named_before_launch() -> None:
    wanted = task(required_env_keys=("A", "B"))
    with pytest.raises(SetupError, match=r"task t needs B in the environment"):
        world_env(wanted, PrepareSettings(), {"A": "1"})


def test_offline_mode_stands_in_for_a_missing_key_only() -> None:
    wanted = task(required_env_keys=("A", "B"))
    settings = PrepareSettings(
        env={"MODE": "default"}, offline={"A": {"A_OFF": "1"}, "B": {"B_OFF": "1"}}
    )
    assert world_env(wanted, settings, {"A": "k"}) == {"MODE": "default", "A": "k", "B_OFF": "1"}


def test_a_name_that_is_no_variable_is_refused() -> None:
    with pytest.raises(SetupError, match="no name of an environment variable"):
        world_env(task(), PrepareSettings(env={"A;id": "1"}), {})


def test_missing_servers_are_named() -> None:
    servers = ("excel", "mail")
    assert missing_servers(tools("excel_read", "excel_write"), servers) == ("mail",)
    assert missing_servers(tools("excel_read", "mail_send"), servers) == ()


def test_one_server_has_bare_tool_names() -> None:
    assert missing_servers(tools("read"), ("files",)) == ()
    assert missing_servers([], ("files",)) == ("files",)


def test_the_longest_server_name_wins() -> None:
    assert server_of("mail_archive_find", ("mail", "mail_archive")) == "mail_archive"
    assert server_of("other", ("mail", "files")) == ""


def test_the_servers_are_those_of_settings_then_apps_then_task() -> None:
    declared = task(metadata={"mcp_servers": {"of_task": {}}})
    apps = {"mcpServers": {"of_apps": {}}}

    def servers(**settings: Any) -> tuple[str, ...]:
        world = World(None, declared, PrepareSettings(**settings), {}, timeout_sec=1)
        return world.declared_servers()

    assert servers() == ("of_task",)
    assert servers(apps=apps) == ("of_apps",)
    assert servers(apps=apps, servers=("set",)) == ("set",)


def test_values_of_keys_are_masked() -> None:
    keyed = task(required_env_keys=("A", "B"))
    world = World(None, keyed, PrepareSettings(), {"A": "sec", "B": "secret"}, timeout_sec=1)
    assert world.redact("got secret and sec") == "got *** and ***"


@pytest.mark.parametrize(
    "declared",
    [
        [SimpleNamespace(name="a", transport="stdio", url=None)],
        [
            SimpleNamespace(name=name, transport="streamable-http", url="http://localhost:1/mcp")
            for name in "ab"
        ],
    ],
)
def test_mcp_servers_that_cannot_be_served_are_named(declared: list[Any]) -> None:
    with pytest.raises(SetupError, match="the task declares the MCP servers a"):
        World(None, task(), PrepareSettings(), {}, timeout_sec=1, mcp_servers=declared)
