"""Generators of any package: from ``generator=NAME`` to the classes that SkyRL runs.

A generator is what the entry-point group ``skyrl.generators`` names: a callable
``factory(cfg, tokenizer, inference_engine_client) -> GeneratorInterface`` with two optional
attributes, ``config_class`` (a subclass of ``SkyRLTrainConfig`` with the package's own fields) and
``experiment_class`` (a subclass of ``BasePPOExp``). SkyRL's classes are handed in as arguments, so
this module imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from .entry_points import find_entry_point, resolve_entry_point
from .errors import BrokenName
from .targets import is_target

GROUP = "skyrl.generators"
DEFAULT = "apex_tito"
"""What a command line that names no generator means where it reaches this package."""

KEYS = ("generator=", "apex.generator=")
"""How a command line names a generator: as users write it, and as it travels in the config."""

OVERRIDE = "trainer.override_entrypoint="
MARK = "apex_generator_name"
"""Attribute that carries the name in a config without an ``apex`` section; pickles with it."""


def split_command_line(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Take the generator's name, and the switch that led here, out of a SkyRL command line.

    The last name wins, as with every other key. ``generator={…}`` (an inline section) is not a
    name and stays.

    :returns: the name (``DEFAULT`` when none is given) and the remaining arguments.
    """
    name, rest = DEFAULT, list[str]()
    for argument in arguments:
        key, _, value = argument.partition("=")
        if f"{key}=" in KEYS and value and not value.startswith(("{", "[")):
            name = value.strip("'\"")
        elif not argument.startswith(OVERRIDE):
            rest.append(argument)
    return name, rest


@cache
def resolve_generator(name: str) -> Any:
    """The factory that ``name`` (registered, or ``module:factory``) stands for.

    :raises UnknownName: nobody registers it.
    :raises BrokenName: it does not import, or cannot be called.
    """
    factory = resolve_entry_point(GROUP, name)
    if callable(factory):
        return factory
    target = name if is_target(name) else find_entry_point(GROUP, name).value
    error = TypeError(f"{type(factory).__name__} object is not callable")
    remedy = "A generator is called as factory(cfg, tokenizer, inference_engine_client)."
    raise BrokenName("generator", name, target, name, error, remedy=remedy)


def config_from_command_line(name: str, arguments: Sequence[str], default: type[Any]) -> Any:
    """Parse ``arguments`` with the generator's ``config_class`` (else ``default``).

    The name travels in the result: as ``apex.generator`` where the class has an ``apex`` section,
    else as a plain attribute, since Ray workers have no command line.
    """
    config_class = getattr(resolve_generator(name), "config_class", None) or default
    config = config_class.from_cli_overrides(list(arguments))
    section: Any = getattr(config, "apex", None)
    if hasattr(section, "generator"):
        section.generator = name
    else:
        setattr(config, MARK, name)
    return config


def generator_of(config: Any) -> str | None:
    """The generator's name in a config; ``None`` in a config of stock SkyRL."""
    name = getattr(getattr(config, "apex", None), "generator", None)
    return name or getattr(config, MARK, None)


def experiment_class_of(name: str, base: type[Any]) -> type[Any]:
    """The generator's ``experiment_class``, else ``base`` with the factory as ``get_generator``."""
    factory = resolve_generator(name)
    declared = getattr(factory, "experiment_class", None)
    if declared is not None:
        experiment_class: type[Any] = declared
        return experiment_class

    def get_generator(self: Any, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        return factory(cfg, tokenizer, inference_engine_client)

    return type(f"{base.__name__}For{name}", (base,), {"get_generator": get_generator})


def joined_experiment_class(name: str, stock: type[Any], base: type[Any]) -> type[Any]:
    """``stock`` (an experiment class of SkyRL itself) with the generator's own methods below it.

    What ``stock`` overrides (evaluation without a training set, say) stays; everything that it
    inherits from ``base`` comes from the generator's experiment class.
    """
    experiment = experiment_class_of(name, base)
    if issubclass(stock, experiment):
        return stock
    if issubclass(experiment, stock):
        return experiment
    return type(stock.__name__, (stock, experiment), {"__module__": stock.__module__})
