"""The checks find what is wrong with a backend; the command and the reaper say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from harbor.environments.base import BaseEnvironment, ExecResult

from skyrl_apex_plugin.cli.sandbox import sandbox
from skyrl_apex_plugin.sandboxes.conformance import CHECKS, SandboxMaker, run_checks
from skyrl_apex_sandbox_kit import Leftover


class Careless(BaseEnvironment):
    """Says yes to everything and does nothing."""

    left: ClassVar[list[str]] = ["old-1", "old-2"]

    @staticmethod
    def type() -> str:
        return "careless"

    def _validate_definition(self) -> None:
        return

    async def start(self, force_build: bool) -> None:
        return

    async def stop(self, delete: bool) -> None:
        return

    async def exec(self, command: str, **_: Any) -> ExecResult:  # type: ignore[override]
        return ExecResult(stdout="", stderr="", return_code=0)

    async def upload_file(self, source_path: Any, target_path: str) -> None:
        return

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        return

    async def download_file(self, source_path: str, target_path: Any) -> None:
        return

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        return

    @classmethod
    async def leftovers(cls) -> list[Leftover]:
        def remover(name: str) -> Any:
            async def remove() -> None:
                if name == "old-2":
                    raise PermissionError("not yours")
                cls.left.remove(name)

            return remove

        return [Leftover(name=n, description="dead", remove=remover(n)) for n in cls.left]


@pytest.fixture(autouse=True)
def resolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this module importable under the name that ``module:Class`` gives."""
    import sys

    monkeypatch.setitem(sys.modules, "careless_backend", sys.modules[__name__])
    monkeypatch.setattr(Careless, "left", ["old-1", "old-2"])


async def test_a_backend_that_does_nothing_passes_no_check_that_looks(tmp_path: Path) -> None:
    results = [result async for result in run_checks(SandboxMaker(Careless, tmp_path))]
    outcomes = {result.name: result.outcome for result in results}
    assert set(outcomes) == set(CHECKS)
    assert outcomes.pop("no_network") == "not offered"
    passing = {name for name, outcome in outcomes.items() if outcome == "passed"}
    assert passing == {"cancelled_start"}, "a backend that does nothing leaves nothing behind"


def test_the_command_prints_a_table_and_fails() -> None:
    arguments = ["check", "careless_backend:Careless", "--only", "commands", "--only", "no_network"]
    result = CliRunner().invoke(sandbox, arguments)
    assert result.exit_code == 1
    assert "commands                   failed" in result.output
    assert "exit code 7 arrived as 0" in result.output
    assert "not offered" in result.output


def test_an_unknown_check_is_named_with_the_known_ones() -> None:
    result = CliRunner().invoke(sandbox, ["check", "careless_backend:Careless", "--only", "typo"])
    assert result.exit_code == 1
    assert "no check is called typo" in result.output
    assert "timeout_kills_everything" in result.output


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    result = CliRunner().invoke(sandbox, ["check", "no-such-backend"])
    assert result.exit_code == 1
    assert "archipelago-local" in result.output


def test_reap_lists_first_then_deletes_and_reports_what_it_could_not() -> None:
    runner = CliRunner()
    dry = runner.invoke(sandbox, ["reap", "--dry-run", "careless_backend:Careless"])
    assert dry.exit_code == 0
    assert "2 leftovers found" in dry.output
    assert Careless.left == ["old-1", "old-2"]
    wet = runner.invoke(sandbox, ["reap", "careless_backend:Careless"])
    assert wet.exit_code == 1
    assert "not yours" in wet.output
    assert "1 leftover deleted" in wet.output
    assert Careless.left == ["old-2"]
