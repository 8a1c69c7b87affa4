"""The doctor names what is wrong and the command that repairs it."""

from __future__ import annotations

import json
import shlex
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from skyrl_apex_plugin.cli.doctor import doctor
from skyrl_apex_plugin.discovery import checkup
from skyrl_apex_plugin.discovery.versions import KnownPackage, known_packages, packages_beside

ROOT = Path(__file__).parents[3]


def known(name: str) -> KnownPackage:
    return next(package for package in known_packages() if package.name == name)


@pytest.mark.parametrize(
    ("name", "installed", "status", "says"),
    [
        ("vllm-router", "0.1.14", "ok", "0.1.14"),
        ("vllm-router", "0.1.15", "fail", "pd_disaggregation"),
        ("vllm-router", "0.1.17", "fail", "pd_disaggregation"),
        ("vllm-router", None, "warn", "extra train"),
        ("harbor", "0.21.0", "ok", "0.21.0"),
        ("harbor", "0.26.0", "ok", "0.26.0"),
        ("harbor", "0.23.1", "warn", "not tested"),
        ("harbor", "0.20.0", "fail", "outside"),
        ("harbor", None, "fail", "not installed"),
        ("torch", "2.11.0+cpu", "ok", "2.11.0"),
        ("skyrl", "0.4.0", "ok", "0.4.0"),
        ("skyrl", "0.5.0", "fail", "outside"),
    ],
)
def test_a_version_is_judged(name, installed, status, says):
    check = checkup.check_package(known(name), installed)
    assert check.status == status and says in check.found
    assert (check.remedy is not None) == (status == "fail" or installed is None)


def test_a_router_that_breaks_skyrl_comes_with_the_command_that_repairs_it():
    assert checkup.check_package(known("vllm-router"), "0.1.17").remedy == (
        "pip install 'vllm-router==0.1.14'"
    )


@pytest.mark.parametrize(
    ("skyrl", "name", "installed", "status"),
    [
        ("0.3.0", "torch", "2.11.0", "ok"),
        ("0.4.0", "torch", "2.13.0", "ok"),
        ("0.4.0", "torch", "2.11.0", "fail"),
        ("0.4.0", "vllm-router", "0.1.17", "ok"),
        ("0.4.0", "vllm-router", "0.1.14", "fail"),
        ("0.5.0", "torch", "2.11.0", "ok"),
        (None, "torch", "2.13.0", "fail"),
    ],
)
def test_a_version_is_judged_by_the_skyrl_beside_it(skyrl, name, installed, status):
    (row,) = (package for package in packages_beside(skyrl) if package.name == name)
    assert checkup.check_package(row, installed).status == status


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_what_is_documented_is_the_table_that_the_doctor_reads(page):
    text = (ROOT / page).read_text()
    for skyrl in known("skyrl").seen:
        line = next(x for x in text.splitlines() if x.startswith(f"| {skyrl} |"))
        for name in ("torch", "ray", "vllm-router"):
            (row,) = (package for package in packages_beside(skyrl) if package.name == name)
            assert set(row.seen) <= set(line.split()), name


def oldest(specifier: str | SpecifierSet) -> Version | None:
    """The oldest release that a specifier admits, if it names one."""
    named = [each for each in SpecifierSet(str(specifier)) if each.operator in (">=", "==")]
    return max((Version(each.version.removesuffix(".*")) for each in named), default=None)


@pytest.mark.parametrize("name", sorted({package.name for package in known_packages()}))
def test_what_is_said_to_work_is_what_pip_would_install(name):
    """No older release than the requirements admit, in the table and in its commands."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = [Requirement(line) for line in lines]
    admitted = [oldest(each.specifier) for each in declared if each.name == name]
    rows = [package for package in known_packages() if package.name == name]
    accepted = [oldest(row.works) for row in rows]
    if admitted and all(accepted):  # a row may name no oldest release
        assert min(accepted) == min(admitted)
    for row in rows:
        command = oldest(Requirement(shlex.split(row.install)[-1]).specifier)
        assert command is None or row.fits(str(command))


@pytest.mark.parametrize("skyrl", known("skyrl").seen)
def test_the_table_agrees_with_the_pins(skyrl):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(line) for line in project["dependencies"]]
    declared += [Requirement(line) for lines in extras.values() for line in lines]
    pins = (ROOT / f"constraints/skyrl-{skyrl}.txt").read_text().splitlines()
    for package in packages_beside(skyrl):
        for requirement in declared:
            if requirement.name == package.name and package.with_skyrl is None:
                for version in package.seen:
                    assert package.fits(version), f"{package.name} {version} was seen to work"
        if package.extra in (None, "train"):
            assert any(f"{package.name}=={seen}" in pins for seen in package.seen), package.name


def test_an_inactive_shim_is_a_failure(monkeypatch):
    monkeypatch.setattr("skyrl_apex_shim.active", lambda: False)
    monkeypatch.delenv("SKYRL_APEX_AUTOLOAD", raising=False)
    (check,) = checkup.check_shim()
    assert check.status == "fail" and "inactive" in check.found and "pip install" in check.remedy


def test_a_shim_that_was_switched_off_is_a_note_about_the_order_of_arguments(monkeypatch):
    monkeypatch.setattr("skyrl_apex_shim.active", lambda: False)
    monkeypatch.setenv("SKYRL_APEX_AUTOLOAD", "0")
    (check,) = checkup.check_shim()
    assert check.status == "warn" and "last" in check.remedy


def test_a_missing_program_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(checkup.shutil, "which", lambda name: None)
    assert checkup.check_bubblewrap().remedy == "apt-get install -y bubblewrap"
    assert "docker.io" in checkup.check_docker().remedy
    assert "laptop" in checkup.check_gpu().found


def test_a_program_that_fails_or_hangs_is_reported_not_raised(monkeypatch, tmp_path):
    assert not checkup.ask("sh", "-c", "echo no >&2; exit 3").ok
    assert checkup.ask("sh", "-c", "echo a; echo b").text == "a; b"
    monkeypatch.setattr(checkup, "SECONDS", 0.1)
    assert "TimeoutExpired" in checkup.ask("sleep", "5").text


def test_the_command_prints_json_with_every_area():
    result = CliRunner().invoke(doctor, ["--json"])
    areas = {check["area"] for check in json.loads(result.stdout)}
    assert areas == {"Versions", "Shim", "Plugins", "Machine"}
    assert result.exit_code in (0, 1)
