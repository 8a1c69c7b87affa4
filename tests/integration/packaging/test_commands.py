"""Commands that only look are quick and import nothing heavy."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "ray", "vllm", "litellm", "modal", "skyrl", "harbor", "transformers", "mcp")
PROBE = """
import sys
try:
    {statement}
except SystemExit:
    pass
print("HEAVY", [name for name in {heavy} if name in sys.modules])
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import skyrl_apex_plugin, skyrl_apex_hookspecs",
        "from skyrl_apex_plugin.cli.main import main; main(['--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['plugins', 'list'])",
        "from skyrl_apex_plugin.cli.main import main; main(['plugins', 'list', '--json'])",
        "from skyrl_apex_plugin.cli.main import main; main(['doctor'])",
        "from skyrl_apex_plugin.cli.main import main; main(['presets', 'list'])",
        "from skyrl_apex_plugin.cli.main import main; main(['train', '--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['data', '--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['sandbox', '--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['miniworld', '--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['report', '--help'])",
        "from skyrl_apex_plugin.cli.main import main; main(['tito', '--help'])",
    ],
)
def test_nothing_heavy_is_imported(python, statement):
    result = python.run("-c", PROBE.format(statement=statement, heavy=HEAVY))
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_the_contract_imports_pluggy_and_the_standard_library_only(python):
    code = (
        "import sys; before = set(sys.modules); import skyrl_apex_hookspecs\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names)))"
    )
    assert set(python.run("-c", code).stdout.split()) == {"pluggy", "skyrl_apex_hookspecs"}


@pytest.mark.benchmark
def test_listing_plugins_takes_under_half_a_second(python):
    """Of CPU time: the clock on the wall also counts what else the machine is doing."""
    command = [python.script("skyrl-apex"), "plugins", "list"]
    wall, cpu = [], []
    for _ in range(5):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        wall.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    print(f"\nplugins list: {min(wall):.2f} s, {min(cpu):.2f} s of CPU")
    assert min(cpu) < 0.5


def test_every_command_of_the_help_exists(python):
    from skyrl_apex_plugin.cli.main import COMMANDS, LazyGroup

    group = LazyGroup("skyrl-apex")
    for name in COMMANDS:
        assert group.get_command(None, name) is not None, name


def test_a_new_plugin_package_installs_and_passes_its_own_tests(python, tmp_path):
    python.run(python.script("skyrl-apex"), "plugins", "new", "my-judge", "--into", tmp_path)
    site = tmp_path / "site"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", site)
    python.run("-m", "pip", "install", *options, tmp_path / "my-judge")
    tests = python.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "my-judge"),
        PYTHONPATH=str(site),
        cwd=tmp_path,
    )
    assert "5 passed" in tests.stdout
    listed = python.run(python.script("skyrl-apex"), "plugins", "list", PYTHONPATH=str(site))
    assert "my-judge" in listed.stdout


@pytest.mark.parametrize("name", ["", "3d", "a b", "../up", "-x"])
def test_a_name_that_cannot_be_a_package_is_refused(python, tmp_path, name):
    command = [sys.executable, "-m", "skyrl_apex_plugin.cli.main", "plugins", "new"]
    result = subprocess.run(
        [*command, "--into", tmp_path, "--", name], capture_output=True, text=True
    )
    assert result.returncode == 1 and "cannot name a package" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_written_into(python, tmp_path):
    (tmp_path / "mine").mkdir()
    result = python.run(
        *(python.script("skyrl-apex"), "plugins", "new", "mine", "--into", tmp_path), check=False
    )
    assert result.returncode == 1 and "exists already" in result.stderr
