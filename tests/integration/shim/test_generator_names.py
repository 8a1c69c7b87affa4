"""``generator=NAME`` in stock SkyRL command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MAIN_BASE = "skyrl.train.entrypoints.main_base"

# Stands in for the entry point that would train, at every start of this Python.
SITE = """
import sys, types
entry = types.ModuleType("skyrl_apex_plugin.training.train")
entry.main = lambda: print("ARGV", __import__("json").dumps(sys.argv[1:]))
sys.modules["skyrl_apex_plugin.training.train"] = entry
"""


def arguments_seen(result) -> list[str]:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ARGV ")]
    return json.loads(line.removeprefix("ARGV "))


@pytest.mark.parametrize("first", [True, False], ids=["name-first", "name-last"])
def test_stock_main_base_reaches_our_entry_point(python, tmp_path, first):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    others = ["generator.max_turns=3", "trainer.epochs=1"]
    line = ["generator=apex_tito", *others] if first else [*others, "generator=apex_tito"]
    result = python.run("-m", MAIN_BASE, *line, PYTHONPATH=str(tmp_path))
    assert arguments_seen(result) == [
        "trainer.override_entrypoint=skyrl_apex_plugin.training.train",
        *others,
        "apex.generator=apex_tito",
    ]


PARSE = """
import json, sys
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl_apex_plugin.discovery.generators import generator_of

class Evaluation(BasePPOExp):  # as stock main_generate has it
    def __init__(self, cfg): self.cfg = cfg
    def get_train_dataset(self): return "none"

def parsed(*arguments):
    cfg = SkyRLTrainConfig.from_cli_overrides(list(arguments))
    experiment = Evaluation(cfg)
    return [
        type(cfg).__name__, cfg.generator.max_turns, generator_of(cfg),
        isinstance(experiment, Evaluation), type(experiment).__mro__[2].__name__,
        experiment.get_train_dataset(),
        getattr(experiment.get_generator(cfg, Tokenizer, None), "word", None),
    ]

class Tokenizer: pass
BasePPOExp.get_generator = lambda self, cfg, tokenizer, client: "stock"
print(json.dumps({
    "first": parsed("generator=acme_echo", "acme.word=hi", "generator.max_turns=3"),
    "last": parsed("generator.max_turns=3", "acme.word=hi", "generator=acme_echo"),
    "plain": parsed("generator.max_turns=3", "generator=acme_plain"),
    "stock": parsed("generator.max_turns=3"),
}))
try:
    parsed("generator=acme_eco")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_any_packages_generator_reaches_stock_experiments(python, third_party):
    result = python.run("-c", PARSE, PYTHONPATH=str(third_party))
    seen, error = result.stdout.splitlines()[-2:]
    echo = ["AcmeConfig", 3, "acme_echo", True, "AcmeExperiment", "none", "hi"]
    plain = ["SkyRLTrainConfig", 3, "acme_plain", True, "BasePPOExpForacme_plain", "none", "plain"]
    stock = ["SkyRLTrainConfig", 3, None, True, "object", "none", None]
    assert json.loads(seen) == {"first": echo, "last": echo, "plain": plain, "stock": stock}
    assert error.startswith("UnknownName") and "'acme_echo'" in error


OFF = """
from skyrl.train.config import SkyRLTrainConfig
cfg = SkyRLTrainConfig.from_cli_overrides(["generator=apex_tito", "generator.max_turns=3"])
print("ignored", type(cfg).__name__)
try:
    SkyRLTrainConfig.from_cli_overrides(["generator.max_turns=3", "generator=apex_tito"])
except Exception as error:
    print("rejected")
"""


def test_switched_off_stock_skyrl_ignores_a_leading_name_and_rejects_a_trailing_one(python):
    result = python.run("-c", OFF, SKYRL_APEX_AUTOLOAD="0")
    assert result.stdout.split() == ["ignored", "SkyRLTrainConfig", "rejected"]


RAY = """
import json, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote
def seen():
    import skyrl_apex_shim
    from harbor.models.environment_type import EnvironmentType
    from skyrl.train.config import SkyRLTrainConfig
    cfg = SkyRLTrainConfig.from_cli_overrides(["generator=acme_plain"])
    return [skyrl_apex_shim.active(), EnvironmentType("acme-box").value, cfg.apex_generator_name]

print(json.dumps(ray.get(seen.remote())))
ray.shutdown()
"""


def test_it_works_in_ray_workers(python, third_party, tmp_path: Path):
    result = python.run("-c", RAY, PYTHONPATH=str(third_party), cwd=tmp_path, timeout=240)
    assert json.loads(result.stdout.splitlines()[-1]) == [True, "acme-box", "acme_plain"]
