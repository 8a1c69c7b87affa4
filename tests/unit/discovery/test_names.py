"""From a name in the configuration to a class: three answers, two errors."""

from __future__ import annotations

import json

import pytest

from skyrl_apex_plugin.discovery import (
    BrokenName,
    DuplicateName,
    PluginError,
    UnknownName,
    registered,
    resolve,
    resolve_entry_point,
)
from skyrl_apex_plugin.discovery.registry import Registration, Registry


def entry(name: str, target: str = "json:JSONDecoder", owner: str = "one 1.0") -> Registration:
    return Registration(kind="grader", name=name, target=target, owner=owner)


def test_a_spelled_out_class_needs_no_registration():
    assert resolve("grader", "json:JSONDecoder") is json.JSONDecoder


def test_a_registered_name_resolves():
    assert resolve("grader", "task").__name__ == "TaskGrader"


def test_an_unknown_name_lists_what_is_known_and_guesses():
    with pytest.raises(UnknownName, match=r"no grader is called 'rubrik'; did you mean 'rubric'"):
        resolve("grader", "rubrik")
    with pytest.raises(UnknownName, match="exact, rubric, task"):
        resolve("grader", "nothing-like-it")


def test_found_but_broken_is_another_error_and_names_the_extra(monkeypatch):
    import sys

    resolver = sys.modules["skyrl_apex_plugin.discovery.resolve"]
    broken = Registration(
        kind="sandbox",
        name="cloud",
        target="no_such_cloud:Box",
        owner="acme (acme-office 2.1)",
        extra="modal",
    )
    monkeypatch.setattr(resolver, "registered", lambda kind: {"cloud": broken})
    with pytest.raises(BrokenName, match=r"pip install 'skyrl-apex-plugin\[modal\]'") as caught:
        resolve("sandbox", "cloud")
    assert "acme-office 2.1" in str(caught.value)


def test_a_target_that_is_no_class_is_broken():
    with pytest.raises(BrokenName, match="is not a class"):
        resolve("grader", "json:dumps")


def test_registering_a_taken_name_names_both_owners():
    registry = Registry()
    registry.add(entry("twin"))
    with pytest.raises(DuplicateName, match=r"one 1\.0 and by two 2\.0"):
        registry.add(entry("twin", owner="two 2.0"))


@pytest.mark.parametrize("target", ["json", "json:", ":JSONDecoder", ""])
def test_a_target_must_be_spelled_out(target):
    with pytest.raises(PluginError, match="module:Class"):
        Registry().add(entry("odd", target=target))


def test_bundled_sandboxes_are_registered_without_importing_them():
    assert {"archipelago-local", "archipelago-docker", "archipelago-modal"} <= set(
        registered("sandbox")
    )


def test_entry_points_resolve_by_name_and_spelled_out():
    assert resolve_entry_point("skyrl.generators", "json:dumps") is json.dumps
    with pytest.raises(UnknownName, match="apex_tito"):
        resolve_entry_point("skyrl.generators", "apex_titto")
    with pytest.raises(BrokenName, match="no_such_module"):
        resolve_entry_point("skyrl.generators", "no_such_module:factory")
