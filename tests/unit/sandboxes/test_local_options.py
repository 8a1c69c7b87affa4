"""Options of ``archipelago-local``: a misspelt one is refused, harbor's own are not."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment

from skyrl_apex_local.environment import LocalEnvironment
from skyrl_apex_plugin.sandboxes.conformance import SandboxMaker


def test_an_unknown_option_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    maker = SandboxMaker(LocalEnvironment, tmp_path, kwargs={"bogus": 1})
    with pytest.raises(ValueError, match=r"no option bogus; known: bwrap, image, .*processes"):
        maker.make()


def test_own_options_and_all_of_harbors_are_taken(tmp_path: Path) -> None:
    optional = {
        each.name: each.default
        for each in inspect.signature(BaseEnvironment).parameters.values()
        if each.default is not each.empty
    }
    assert len(optional) > 5
    maker = SandboxMaker(LocalEnvironment, tmp_path, kwargs={**optional, "processes": 9})
    assert isinstance(maker.make(), LocalEnvironment)
