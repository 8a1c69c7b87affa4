"""The contract is frozen: a change needs a new version, not a changed file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from skyrl_apex_hookspecs import CONTRACT_VERSION

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def described():
    spec = importlib.util.spec_from_file_location("describe_contract", HERE / "describe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return json.loads(json.dumps(module.describe()))


@pytest.mark.parametrize(
    "part",
    ["names", "hooks", "classes", "treatments", "configuration", "files", "entry_points"],
)
def test_the_contract_is_what_its_version_says(described, part):
    snapshot = HERE / f"contract-{CONTRACT_VERSION}.json"
    assert snapshot.exists(), (
        f"CONTRACT_VERSION is {CONTRACT_VERSION} but {snapshot.name} is missing: run "
        "python tests/unit/contract/describe.py"
    )
    frozen = json.loads(snapshot.read_text())
    assert described[part] == frozen[part], (
        f"the contract's {part} changed. Plugins, configurations and stored files rely on them: "
        "raise CONTRACT_VERSION, write the change into CHANGELOG.md, then run "
        "python tests/unit/contract/describe.py"
    )


def test_snapshots_of_earlier_versions_stay():
    kept = {path.name for path in HERE.glob("contract-*.json")}
    assert kept == {f"contract-{version}.json" for version in range(1, CONTRACT_VERSION + 1)}
