"""Plugins made up on the spot, loaded through the real loader."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pluggy
import pytest

from skyrl_apex_hookspecs import Outcome, Task, Trajectory, Turn, Verdict
from skyrl_apex_plugin.discovery import hooks
from skyrl_apex_plugin.discovery.manager import GROUP, load_plugins

PREAMBLE = """
from skyrl_apex_hookspecs import *
calls = []
"""


@pytest.fixture
def write_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EntryPoint]:
    """Write a plugin module and give the entry point that an installed package would declare."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> EntryPoint:
        module = f"made_up_{name}"
        (tmp_path / f"{module}.py").write_text(PREAMBLE + dedent(source))
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint(name=name, value=module, group=GROUP)

    return write


@pytest.fixture
def use(
    write_plugin: Callable[..., EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pluggy.PluginManager]:
    """``use(name=source, …)``: only these plugins are loaded while the test runs."""

    def use(**sources: str) -> pluggy.PluginManager:
        manager = load_plugins(tuple(write_plugin(n, s) for n, s in sources.items()))
        monkeypatch.setattr(hooks, "plugin_manager", lambda: manager)
        return manager

    return use


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(task_id="t1", directory=tmp_path, instruction="add")


@pytest.fixture
def trajectory(task: Task) -> Trajectory:
    """Two prompt tokens, three sampled ones, score 0.5."""
    return Trajectory(
        task=task,
        outcome=Outcome.COMPLETE,
        tokens=array("i", [1, 2, 3, 4, 5]),
        logprobs=array("f", [0, 0, -1, -1, -1]),
        loss_mask=bytes([0, 0, 1, 1, 1]),
        prompt_length=2,
        turns=(Turn(index=0, start=2, end=5, finish_reason="stop"),),
        verdict=Verdict(grader="task", score=0.5),
    )
