"""The generic way from ``generator=NAME`` to classes, without SkyRL."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest

from skyrl_apex_plugin.discovery import BrokenName, UnknownName, generators


class Config:
    """Stands for ``SkyRLTrainConfig``."""

    def __init__(self, arguments):
        self.arguments = arguments

    @classmethod
    def from_cli_overrides(cls, arguments):
        return cls(arguments)


@dataclass
class Section:
    generator: str = "default"


@dataclass
class SectionedConfig:
    apex: Section = field(default_factory=Section)

    @classmethod
    def from_cli_overrides(cls, arguments):
        return cls()


class Base:
    """Stands for ``BasePPOExp``."""

    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return "stock"

    def get_tracker(self):
        return "stock"


class Own(Base):
    def get_tracker(self):
        return "own"


class Evaluation(Base):
    def get_eval_dataset(self):
        return "evaluation"


@pytest.fixture
def factory(monkeypatch):
    """Register a factory under the name ``made_up`` for one test."""

    def register(**attributes):
        def make(cfg, tokenizer, client):
            return ("made", cfg, tokenizer, client)

        vars(make).update(attributes)
        monkeypatch.setattr(generators, "resolve_entry_point", lambda group, name: make)

    generators.resolve_generator.cache_clear()
    yield register
    generators.resolve_generator.cache_clear()


@pytest.mark.parametrize(
    ("line", "name", "rest"),
    [
        (["generator=a", "generator.max_turns=3"], "a", ["generator.max_turns=3"]),
        (["x=1", "apex.generator=a"], "a", ["x=1"]),
        (["generator=a", "apex.generator=b"], "b", []),
        (["generator='a'"], "a", []),
        (["trainer.override_entrypoint=m", "x=1"], generators.DEFAULT, ["x=1"]),
        (["generator={max_turns: 3}"], generators.DEFAULT, ["generator={max_turns: 3}"]),
    ],
)
def test_the_name_is_taken_out_of_the_command_line(line, name, rest):
    assert generators.split_command_line(line) == (name, rest)


def test_the_name_travels_in_a_config_without_an_apex_section(factory):
    factory()
    config = generators.config_from_command_line("made_up", ["x=1"], Config)
    assert config.arguments == ["x=1"]
    assert generators.generator_of(pickle.loads(pickle.dumps(config))) == "made_up"


def test_the_name_travels_in_the_apex_section_where_there_is_one(factory):
    factory(config_class=SectionedConfig)
    config = generators.config_from_command_line("made_up", [], Config)
    assert config.apex.generator == "made_up" == generators.generator_of(config)


def test_a_stock_config_has_no_generator():
    assert generators.generator_of(Config([])) is None


def test_a_factory_without_an_experiment_class_only_replaces_the_generator(factory):
    factory()
    experiment = generators.experiment_class_of("made_up", Base)()
    assert experiment.get_generator("cfg", "tokenizer", "client")[0] == "made"
    assert experiment.get_tracker() == "stock"


def test_a_stock_experiment_keeps_its_own_and_inherits_the_generators(factory):
    factory(experiment_class=Own)
    joined = generators.joined_experiment_class("made_up", Evaluation, Base)()
    assert isinstance(joined, Evaluation)
    assert joined.get_eval_dataset() == "evaluation" and joined.get_tracker() == "own"


@pytest.mark.parametrize("stock", [Base, Own], ids=["the base itself", "the generator's own"])
def test_the_generators_own_experiment_is_used_as_it_is(factory, stock):
    factory(experiment_class=Own)
    assert generators.joined_experiment_class("made_up", stock, Base) is Own


def test_a_factory_that_cannot_be_called_is_broken():
    with pytest.raises(BrokenName, match=r"factory\(cfg, tokenizer, inference_engine_client\)"):
        generators.resolve_generator("json:__name__")


def test_an_unknown_generator_lists_the_known_ones():
    with pytest.raises(UnknownName, match="apex_tito"):
        generators.resolve_generator("apex_titto")
