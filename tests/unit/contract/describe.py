"""Describes the contract: everything that plugins, configurations and stored files rely on.

``python tests/unit/contract/describe.py`` writes the description of the current
``CONTRACT_VERSION``. It refuses to overwrite a different one: raise the version first.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

import skyrl_apex_hookspecs as contract
from skyrl_apex_hookspecs import specs, types

HERE = Path(__file__).parent


def snapshot_path() -> Path:
    return HERE / f"contract-{contract.CONTRACT_VERSION}.json"


def describe() -> dict[str, Any]:
    """The contract as data that JSON can hold."""
    return {
        "names": sorted(contract.__all__),
        "hooks": hooks(),
        "classes": {
            name: describe_class(value)
            for name, value in sorted(vars(types).items())
            if inspect.isclass(value) and value.__module__ == types.__name__
        },
        "treatments": treatments(),
        "configuration": configuration(),
        "files": files(),
        "entry_points": entry_points(),
    }


def hooks() -> dict[str, Any]:
    described = {}
    for name, function in sorted(vars(specs).items()):
        options = getattr(function, f"{specs.PROJECT}_spec", None)
        if options is not None:
            described[name] = {
                "signature": str(inspect.signature(function)),
                "firstresult": bool(options["firstresult"]),
            }
    return described


def describe_class(cls: type) -> dict[str, Any]:
    if issubclass(cls, enum.Enum):
        return {"members": {member.name: member.value for member in cls}}
    if dataclasses.is_dataclass(cls):
        return {
            "frozen": cls.__dataclass_params__.frozen,  # type: ignore[attr-defined]
            "fields": {f.name: describe_field(f) for f in dataclasses.fields(cls)},
        }
    if issubclass(cls, Exception):
        return {"bases": [b.__name__ for b in cls.__bases__], "outcome": str(cls.outcome)}  # type: ignore[attr-defined]
    methods = {n: f for n, f in vars(cls).items() if inspect.isfunction(f) and n[0] != "_"}
    if "__call__" in vars(cls):
        methods["__call__"] = vars(cls)["__call__"]
    return {
        "methods": {
            name: ("async " if inspect.iscoroutinefunction(f) else "") + str(inspect.signature(f))
            for name, f in sorted(methods.items())
        }
    }


def describe_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
    described: dict[str, Any] = {"type": kind}
    if field.default is not dataclasses.MISSING:
        described["default"] = json.loads(json.dumps(field.default))
    elif field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        described["default"] = made if isinstance(made, dict | list) else type(made).__name__
    return described


def treatments() -> dict[str, str]:
    from skyrl_apex_plugin.rollout.outcomes import TREATMENTS

    return {outcome.value: treatment.value for outcome, treatment in TREATMENTS.items()}


def configuration() -> dict[str, Any]:
    """Every key of the section ``apex`` with its type and default."""
    from skyrl_apex_plugin.training.config import ApexConfig

    keys: dict[str, Any] = {}

    def walk(section: type, prefix: str) -> None:
        for field in dataclasses.fields(section):
            if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
                walk(field.type, f"{prefix}.{field.name}")
            else:
                keys[f"{prefix}.{field.name}"] = describe_field(field)

    walk(ApexConfig, "apex")
    return keys


def files() -> dict[str, Any]:
    """The shape of each file that a trial directory holds, as its own writer writes it."""
    from skyrl_apex_plugin.agent.record import Recorder, TrialOutcome, read_turns
    from skyrl_apex_plugin.grading.verdict_file import verdict_path, write_verdict
    from skyrl_apex_plugin.tito.ledger import TokenLedger

    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder)
        criterion = contract.CriterionResult(criterion_id="c", score=1.0)
        write_verdict(
            trial, contract.Verdict(grader="g", score=1.0, criteria=(criterion,), metrics={"m": 1})
        )
        ledger = TokenLedger(array("i", [1]))
        ledger.append_sampled(array("i", [2]), array("f", [-1.0]), finish_reason="stop")
        ledger.save(trial / "tokens.apex")
        raw = (trial / "tokens.apex").read_bytes()
        header = raw[12 : 12 + int.from_bytes(raw[8:12], "little")]
        task = contract.Task(task_id="t", directory=trial, instruction="i")
        recorder = Recorder(trial)
        recorder.start(task, [], model="m", mode="tito", tools=[])
        recorder.close()
        recorder.write_outcome(
            TrialOutcome(outcome=contract.Outcome.COMPLETE, answer="a", metrics=recorder.metrics())
        )
        return {
            "verifier/verdict.json": shape(json.loads(verdict_path(trial).read_text())),
            "agent/tokens.apex": {
                "magic": raw[:8].decode("ascii"),
                "header": shape(json.loads(header)),
            },
            "agent/turns.jsonl": {"start": shape(read_turns(trial)[0])},
            "outcome.json": shape(json.loads((trial / "outcome.json").read_text())),
        }


def shape(value: Any) -> Any:
    """A document with its values replaced by the names of their types; the schema number stays."""
    if isinstance(value, dict):
        return {k: v if k == "schema" else shape(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "null" if value is None else type(value).__name__


def entry_points() -> dict[str, list[str]]:
    """Names that command lines use."""
    from importlib.metadata import entry_points

    groups = ("skyrl.generators", "harbor.agents", "harbor.environments", "harbor.plugins")
    return {
        group: sorted(
            point.name
            for point in entry_points(group=group)
            if point.dist is not None and point.dist.name == "skyrl-apex-plugin"
        )
        for group in groups
    }


def main() -> None:
    path, text = snapshot_path(), json.dumps(describe(), indent=1) + "\n"
    if path.exists() and path.read_text() != text and "--force" not in sys.argv:
        sys.exit(
            f"{path.name} describes another contract. Raise CONTRACT_VERSION in "
            "hookspecs/skyrl_apex_hookspecs/__init__.py and say what changed in CHANGELOG.md; "
            "--force is for a version that was never released."
        )
    path.write_text(text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
