"""A plugin that does not fit the contract is refused when it loads, by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from skyrl_apex_plugin.discovery import PluginError, manager, plugin_manager
from skyrl_apex_plugin.discovery.errors import DuplicateName


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("@hookimpl\ndef apex_reward_term(trajectory): ...", "did you mean apex_reward_terms"),
        ("@hookimpl\ndef apex_reward_terms(traj): ...", "traj"),
        ("def apex_reward_terms(trajectory): ...", "not marked"),
        ("@hookimpl\nasync def apex_reward_terms(trajectory): ...", "synchronous"),
        (
            "@hookimpl(wrapper=True)\ndef apex_reward_terms(trajectory):\n    return (yield)",
            "wrapper",
        ),
        ("import no_such_package_at_all", "no_such_package_at_all"),
        ("raise RuntimeError('boom')", "boom"),
        ("raise SystemExit(0)", "does not import: SystemExit: 0"),
    ],
    ids=["misspelt", "wrong-argument", "unmarked", "async", "wrapper", "import", "raises", "exits"],
)
def test_a_plugin_that_does_not_fit_fails_at_load(use, source, says):
    with pytest.raises(PluginError, match=says) as caught:
        use(strange=source)
    assert "'strange'" in str(caught.value) and "made_up_strange" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "def __init__(self): raise RuntimeError('boom')",
            "does not construct: RuntimeError: boom",
        ),
        ("def __init__(self): raise SystemExit(0)", "does not construct: SystemExit: 0"),
        ("def __init__(self, path): ...", "does not construct: TypeError"),
        ("def apex_reward_terms(self, trajectory): ...", "apex_reward_terms .* not marked"),
        ("@staticmethod\n    def apex_reward_term(trajectory): ...", "not marked"),
        ("@hookimpl\n    def apex_reward_term(self, trajectory): ...", "did you mean"),
    ],
)
def test_a_plugin_that_is_a_class_is_held_to_the_same(write_plugin, source, says):
    module = write_plugin("strange", f"class Plugin:\n    {source}\n")
    point = EntryPoint(name="strange", value=f"{module.value}:Plugin", group=manager.GROUP)
    with pytest.raises(PluginError, match=says) as caught:
        manager.load_plugins((point,))
    assert "'strange'" in str(caught.value)


def test_a_plugin_that_is_a_class_works(write_plugin):
    source = "class Plugin:\n    @hookimpl\n    def apex_reward_terms(self, trajectory): ...\n"
    module = write_plugin("tidy", source)
    point = EntryPoint(name="tidy", value=f"{module.value}:Plugin", group=manager.GROUP)
    assert manager.load_plugins((point,)).has_plugin("tidy")


def test_a_broken_plugin_is_told_how_to_be_left_out(use, monkeypatch):
    with pytest.raises(PluginError, match="APEX_PLUGINS="):
        use(strange="import no_such_package_at_all")


def test_an_imported_hook_function_is_not_mistaken_for_an_unmarked_one(use):
    use(
        tidy="""
        from skyrl_apex_plugin.discovery.core import apex_register_graders
        @hookimpl
        def apex_reward_terms(trajectory): ...
        """
    )


def test_all_installed_plugins_load_once(monkeypatch):
    monkeypatch.delenv(manager.ALLOW_LIST, raising=False)
    names = {name for name, _ in plugin_manager().list_name_plugin()}
    assert {"core", "local", "docker", "modal", "rubric", "rewards", "miniworld"} <= names
    assert plugin_manager() is plugin_manager()


def test_the_allow_list_restricts_what_loads(monkeypatch):
    monkeypatch.setenv(manager.ALLOW_LIST, "local, rubric")
    assert {p.name for p in manager.allowed_entry_points()} == {"core", "local", "rubric"}
    monkeypatch.setenv(manager.ALLOW_LIST, "")
    assert {p.name for p in manager.allowed_entry_points()} == {"core"}


def test_a_misspelt_allow_list_is_an_error_not_a_missing_plugin(monkeypatch):
    monkeypatch.setenv(manager.ALLOW_LIST, "rubrik")
    with pytest.raises(PluginError, match=r"rubrik.*Installed: .*rubric"):
        manager.allowed_entry_points()


def test_two_plugins_of_one_name_are_an_error(monkeypatch):
    points = tuple(EntryPoint(name="twin", value=v, group=manager.GROUP) for v in ("a", "b"))
    monkeypatch.setattr(manager, "entry_points_of", lambda group: points)
    with pytest.raises(DuplicateName, match="twin"):
        manager.allowed_entry_points()
