"""Other releases of what the agent stands on: mcp 1.x and harbor 0.26."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_parts import HERE


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", ["mcp==1.24.0", "mcp<2"])
def test_the_session_tests_pass_with_an_older_client(release: str, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*install, release, "httpx-sse", "pydantic-settings"], check=True, timeout=120)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*tests, str(HERE / "test_session.py")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_harbor_26_knows_what_the_agent_can_do(python26: Any) -> None:
    """Declared as 0.26 wants it: its warning about the old class variables is an error here."""
    code = """if True:
        from skyrl_apex_plugin.agent.agent import ArchipelagoAgent as agent
        can = agent.capabilities
        assert can.atif and can.mcp_servers and can.base_url and not can.skills
        assert agent.SUPPORTS_ATIF
    """
    python26.run("-W", "error:Agent:DeprecationWarning", "-c", code)
