"""Keys: who needs them, and what a missing one looks like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from skyrl_apex_plugin.training.keys import (
    MissingKeys,
    needed_keys,
    optional_keys,
    read_env_file,
    require_keys,
)


def task(folder: Path, name: str, toml: str = "", keys: str = "[]") -> Path:
    directory = folder / name
    directory.mkdir()
    (directory / "instruction.md").write_text("Do it.")
    (directory / "task.toml").write_text(toml)
    (directory / "archipelago.json").write_text(f'{{"required_env_keys": {keys}}}')
    return directory


def test_a_missing_key_is_named_for_every_task_that_needs_it(tmp_path: Path) -> None:
    first = task(tmp_path, "first", '[verifier.env]\nKEY = "${KEY}"\nFREE = "${FREE:-none}"')
    second = task(tmp_path, "second", keys='["KEY", "OTHER"]')
    needed = needed_keys([first, second], env={})
    with pytest.raises(MissingKeys) as caught:
        require_keys(needed, {})
    assert caught.value.keys == ["KEY", "OTHER"]
    assert str(first) in str(caught.value) and str(second) in str(caught.value)
    assert "FREE" not in str(caught.value)


def test_references_are_those_that_harbor_resolves(tmp_path: Path) -> None:
    toml = """
[metadata]
note = "written as ${LIKE} or ${THIS}"
env = { A = "${METADATA}" }
[environment.env]
A = "${my.key}"
B = "${K-dash}"
[environment.healthcheck]
command = "test -f ${INSIDE}/ready"
[solution.env]
A = "${ORACLE}"
[verifier.env]
A = "${9X}"
B = "text with ${LITERAL}"
C = "${FREE:-}"
"""
    needed = needed_keys([task(tmp_path, "one", toml)], env={})
    assert sorted(needed) == ["9X", "K-dash", "my.key"]


def test_present_keys_are_returned_and_nothing_else(tmp_path: Path) -> None:
    needed = needed_keys([task(tmp_path, "one", keys='["KEY"]')], env={})
    assert require_keys(needed, {"KEY": "", "HOME": "/root"}) == {"KEY": ""}


def test_a_plugin_says_what_it_needs() -> None:
    class Judge:
        optional_env = ("JUDGE_URL", "JUDGE_PROFILE")

        @staticmethod
        def needed_env(env: Mapping[str, str], model: str | None = None) -> Iterable[str]:
            return [f"{(model or env['JUDGE_MODEL']).upper()}_KEY"]

    env = {"JUDGE_MODEL": "acme", "JUDGE_URL": "http://x"}
    assert list(needed_keys([], plugins=[(Judge, {})], env=env)) == ["ACME_KEY"]
    assert list(needed_keys([], plugins=[(Judge, {"model": "b"})], env=env)) == ["B_KEY"]
    assert optional_keys([(Judge, {})], env) == {"JUDGE_URL": "http://x"}


@pytest.mark.parametrize("value", ["a b;$(id)", "`id`", "$HOME", "x'y", "über", "${OTHER}"])
def test_values_of_an_env_file_arrive_byte_for_byte(tmp_path: Path, value: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"# keys\nexport OTHER=1\nKEY={value}\n", encoding="utf-8")
    assert read_env_file(path) == {"OTHER": "1", "KEY": value}


def test_a_line_that_is_no_assignment_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("KEY=1\njust words here\n")
    with pytest.raises(ValueError, match=r"\.env:2: not of the form NAME=value"):
        read_env_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"A=1\nKEY=\xff\n", r"\.env: not UTF-8"), (b"A=1\nKEY=a\0b\n", r"\.env:2: holds a NUL")],
)
def test_an_env_file_that_no_environment_takes_is_named(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_env_file(tmp_path / ".env")
