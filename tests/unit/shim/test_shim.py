"""The shim in a plain Python: it costs nothing, breaks nothing, and says once what it ignores."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import skyrl_apex_shim

OURS = "trainer.override_entrypoint=skyrl_apex_plugin.training.train"

FAKE_NAMES = """
from enum import Enum
class AgentName(str, Enum):
    ORACLE = "oracle"
    @classmethod
    def values(cls): return {member.value for member in cls}
"""
FAKE_TYPES = """
from enum import Enum
class EnvironmentType(str, Enum):
    DOCKER = "docker"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An import folder with a stand-in for the two harbor modules that hold closed enums."""
    models = tmp_path / "harbor/models/agent"
    models.mkdir(parents=True)
    for package in (tmp_path / "harbor", tmp_path / "harbor/models", models):
        (package / "__init__.py").write_text("")
    (models / "name.py").write_text(FAKE_NAMES)
    (tmp_path / "harbor/models/environment_type.py").write_text(FAKE_TYPES)
    return tmp_path


def distribute(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def names(python, folder):
    """Run a Python with ``folder`` first on its path; give harbor's agent names and the errors."""

    def run(**variables: str) -> tuple[set[str], str]:
        code = "from harbor.models.agent.name import AgentName; print(*AgentName.values())"
        result = python.run("-c", code, PYTHONPATH=str(folder), **variables)
        return set(result.stdout.split()), result.stderr

    return run


def test_it_is_active_and_imports_nothing_by_itself(python):
    code = (
        "import sys; before = set(sys.modules); import skyrl_apex_shim as shim\n"
        "assert shim.active() and 'skyrl_apex_shim' in before\n"
        "heavy = {'importlib.metadata', 'pluggy', 'skyrl_apex_plugin', 'typing', 're', 'inspect'}\n"
        "print(sorted(heavy & before))"
    )

    assert python.run("-c", code).stdout.strip() in ("[]",)


def test_the_switch_turns_it_off(python):
    code = "import sys; print(any('shim' in getattr(f, '__module__', '') for f in sys.meta_path))"
    assert python.run("-c", code, SKYRL_APEX_AUTOLOAD="0").stdout.strip() == "False"
    assert python.run("-c", code).stdout.strip() == "True"


def test_names_of_every_installed_package_are_learnt(names, folder):
    distribute(folder, "acme", "[harbor.agents]\nacme-agent = acme.agent:Agent\n")
    known, errors = names()
    assert {"oracle", "archipelago", "acme-agent"} <= known
    assert errors == ""


def test_switched_off_nothing_is_learnt(names):
    assert names(SKYRL_APEX_AUTOLOAD="0") == ({"oracle"}, "")


@pytest.mark.parametrize(
    "entry_points",
    [
        "[harbor.agents]\nbroken = acme.agent\n",
        "[harbor.agents]\nbroken = \n",
        "[harbor.agents]\noracle = acme.agent:Mine\n",
    ],
    ids=["no-attribute", "empty", "taken-by-harbor"],
)
def test_a_broken_third_party_entry_point_gives_one_warning_and_nothing_else(
    names, folder, entry_points
):
    distribute(folder, "acme", entry_points)
    known, errors = names()
    assert "archipelago" in known and "broken" not in known
    (warning,) = errors.splitlines()
    assert warning.startswith("skyrl-apex shim: ignored")


def test_a_name_that_two_packages_claim_is_refused_naming_both(names, folder):
    for name in ("first", "second"):
        distribute(folder, name, f"[harbor.agents]\ntwin = {name}:Agent\n")
    known, errors = names()
    assert "twin" not in known
    assert "registered by first and second" in errors


def test_metadata_that_cannot_be_read_hides_nobody_else(names, folder):
    distribute(folder, "acme", "")
    (folder / "acme-1.0.dist-info/entry_points.txt").write_bytes(b"\xff\xfe[harbor.agents]\n\xff")
    known, errors = names()
    assert "archipelago" in known
    assert errors.count("\n") == 1 and "cannot be read" in errors


def test_it_steps_aside_when_harbor_reads_the_group_itself(names, folder):
    upstream = FAKE_NAMES + "\nGROUP = 'harbor.agents'  # read with importlib.metadata\n"
    (folder / "harbor/models/agent/name.py").write_text(upstream)
    assert names() == ({"oracle"}, "")


@pytest.mark.parametrize("upstream", ["", "GROUP = 'skyrl.generators'"], ids=["stock", "knows"])
def test_it_steps_aside_when_skyrl_reads_the_group_itself(python, tmp_path, upstream):
    train = tmp_path / "skyrl/train"
    for package in ("config", "entrypoints"):
        (train / package).mkdir(parents=True)
    for package in (train.parent, train, train / "entrypoints"):
        (package / "__init__.py").write_text("")
    (train / "config/__init__.py").write_text(
        "class SkyRLTrainConfig:\n"
        "    @classmethod\n"
        "    def from_cli_overrides(cls, args): return args\n"
    )
    (train / "entrypoints/main_base.py").write_text(upstream)
    code = (
        "from skyrl.train.config import SkyRLTrainConfig as C\n"
        "try: print(C.from_cli_overrides(['generator=no_such']))\n"
        "except Exception as error: print(type(error).__name__)"
    )
    said = python.run("-c", code, PYTHONPATH=str(tmp_path)).stdout.strip()
    assert said == ("['generator=no_such']" if upstream else "UnknownName")


def test_a_harbor_it_does_not_understand_still_imports(names, folder):
    (folder / "harbor/models/agent/name.py").write_text(
        "class AgentName:\n    values = staticmethod(lambda: {'rewritten'})\n"
    )
    known, errors = names()
    assert known == {"rewritten"}
    assert "could not adapt harbor.models.agent.name" in errors


def test_an_adapted_module_keeps_its_own_loader(python, folder):
    code = (
        "import harbor.models.agent.name as m, pickle\n"
        "print(type(m.__loader__).__name__, type(m.__spec__.loader).__name__)\n"
        "member = m.AgentName('archipelago')\n"
        "assert pickle.loads(pickle.dumps(member)) is member\n"
        "assert m.AgentName.ARCHIPELAGO is member and member == 'archipelago'\n"
        "assert member in m.AgentName and 'archipelago' in m.AgentName"
    )
    result = python.run("-c", code, PYTHONPATH=str(folder))
    assert result.stdout.split() == ["SourceFileLoader"] * 2


def test_late_installation_adapts_what_is_already_imported(python, folder):
    """What happens in a Ray worker whose set-up hook runs after harbor was imported."""
    code = (
        "from harbor.models.agent.name import AgentName\n"
        "assert AgentName.values() == {'oracle'}\n"
        "import os, skyrl_apex_shim; os.environ.pop('SKYRL_APEX_AUTOLOAD')\n"
        "skyrl_apex_shim.install(); skyrl_apex_shim.install()\n"
        "print(*AgentName.values(), len([f for f in __import__('sys').meta_path"
        " if f is skyrl_apex_shim.Finder]))"
    )
    said = python.run("-c", code, PYTHONPATH=str(folder), SKYRL_APEX_AUTOLOAD="0").stdout.split()
    assert {"oracle", "archipelago", "1"} == set(said)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            ["generator=apex_tito", "generator.max_turns=3"],
            [OURS, "generator.max_turns=3", "apex.generator=apex_tito"],
        ),
        (["a.b=1", "generator=pkg.mod:make"], [OURS, "a.b=1", "apex.generator=pkg.mod:make"]),
        (["generator=one", "generator=two"], [OURS, "apex.generator=two"]),
        (["generator.max_turns=3"], ["generator.max_turns=3"]),
        (["generator={max_turns: 3}"], ["generator={max_turns: 3}"]),
        ([OURS, "generator=apex_tito"], [OURS, "generator=apex_tito"]),
        (["trainer.override_entrypoint=x", "generator=y"],) * 2,
    ],
)
def test_the_name_becomes_skyrls_own_switch(monkeypatch, before, after):
    monkeypatch.setattr(sys, "argv", ["main_base.py", *before])
    skyrl_apex_shim._rewrite_command_line()
    assert sys.argv == ["main_base.py", *after]


def test_the_shim_uses_the_standard_library_only():
    tree = ast.parse(Path(skyrl_apex_shim.__file__).read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {a.name for n in top if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"os", "sys"}
    assert {n.module for n in top if isinstance(n, ast.ImportFrom)} == {"__future__"}
    assert imported <= set(sys.stdlib_module_names)
