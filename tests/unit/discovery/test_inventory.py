"""A broken plugin is listed, and hides nobody."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from skyrl_apex_plugin.cli.plugins import plugins
from skyrl_apex_plugin.discovery import inventory, manager


@pytest.fixture
def installed(write_plugin, monkeypatch):
    """``installed(name=source, …)``: pretend that only these plugins are installed."""

    def installed(**sources: str) -> None:
        points = tuple(write_plugin(name, source) for name, source in sources.items())
        for module in (inventory, manager):
            monkeypatch.setattr(module, "entry_points_of", lambda group: points)
        monkeypatch.setattr(inventory, "NAME_GROUPS", {})
        monkeypatch.delenv(manager.ALLOW_LIST, raising=False)

    return installed


GRADER = "@hookimpl\ndef apex_register_graders(register): register('mine', 'a:B', summary='s')"


def test_a_broken_plugin_is_listed_beside_the_others(installed):
    installed(good=GRADER, bad="import no_such_package_at_all")
    found = inventory.take_inventory()
    assert {p.name: p.status for p in found.plugins} == {"good": "loaded", "bad": "broken"}
    assert [(n.kind, n.name, n.summary) for n in found.names] == [("grader", "mine", "s")]
    assert len(found.problems) == 1 and "no_such_package_at_all" in found.problems[0]


@pytest.mark.parametrize(
    "source",
    ["raise SystemExit(0)", "@hookimpl\ndef apex_register_graders(register): raise SystemExit(0)"],
    ids=["at import", "in a hook"],
)
def test_a_plugin_that_exits_does_not_end_the_command_in_silence(installed, source):
    installed(bad=source)
    result = CliRunner().invoke(plugins, ["list"])
    assert result.exit_code == 1
    assert "bad" in result.stderr and "SystemExit" in result.stderr


def test_what_the_allow_list_leaves_out_is_shown_as_left_out(installed, monkeypatch):
    installed(good=GRADER, other="")
    monkeypatch.setenv(manager.ALLOW_LIST, "other")
    found = inventory.take_inventory()
    assert {p.name: p.status for p in found.plugins} == {"good": "left out", "other": "loaded"}
    assert found.names == ()


def test_a_name_taken_twice_is_a_problem_that_names_both(installed):
    installed(one=GRADER, two=GRADER)
    (problem,) = inventory.take_inventory().problems
    assert "'mine'" in problem and "one" in problem and "two" in problem


def test_the_command_fails_when_something_is_wrong(installed):
    installed(bad="@hookimpl\ndef apex_no_such_hook(): ...")
    result = CliRunner().invoke(plugins, ["list", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["plugins"][0]["status"] == "broken"


def test_the_command_lists_everything_that_is_installed():
    result = CliRunner().invoke(plugins, ["list"])
    assert result.exit_code == 0, result.output
    for name in ("archipelago-local", "rubric", "completions", "apex_tito", "archipelago"):
        assert f"  {name} " in result.output
