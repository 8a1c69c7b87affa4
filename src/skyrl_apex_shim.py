"""Teaches stock SkyRL and stock harbor the names that installed packages register.

Loaded at every Python start by ``skyrl_apex_shim.pth`` (Python 3.15 and later read
``skyrl_apex_shim.start`` in its place). It puts one finder on ``sys.meta_path`` and is done;
everything else happens when one of the modules in ``TARGETS`` is imported. Standard library only,
and at start nothing that Python has not imported by then. ``SKYRL_APEX_AUTOLOAD=0`` turns it off.

It serves every package, not only this one, and steps aside where upstream reads an entry-point
group by itself. Whatever goes wrong here becomes one line on standard error, never an exception
in somebody else's import.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would cost every Python start some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from importlib.metadata import EntryPoint
    from types import ModuleType
    from typing import Any

    Target = tuple[str, str]
    """Module and attribute that an entry point names."""

SWITCH = "SKYRL_APEX_AUTOLOAD"
OVERRIDE = "trainer.override_entrypoint="
TRAIN_MODULE = "skyrl_apex_plugin.training.train"

_said: set[str] = set()
_adapted: set[str] = set()
_added: dict[str, dict[Any, Target]] = {}
"""By entry-point group: the enum members that were added, and what each stands for."""


class Finder:
    """Finds nothing itself: lets the others find a target module and adapts it once it ran."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        adapt = TARGETS.get(fullname)
        if adapt is None:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is Finder or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    loader: Any = _AdaptingLoader(spec.loader, adapt)
                    spec.loader = loader
                return spec
        return None


class _AdaptingLoader:
    """Stands in for a module's loader until the module ran, then puts the real one back."""

    def __init__(self, loader: Loader, adapt: Callable[[Any], None]) -> None:
        self._loader = loader
        self._adapt = adapt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _adapt_once(module, self._adapt)


def install() -> None:
    """Switch the shim on; also adapts targets that are already imported. Safe to repeat.

    Ray calls it in its workers too (``worker_process_setup_hook``), where a ``.pth`` may not run.
    """
    if os.environ.get(SWITCH) == "0" or active():
        return
    finder: Any = Finder
    sys.meta_path.insert(0, finder)
    for name in TARGETS:
        if name in sys.modules:
            _adapt_once(sys.modules[name], TARGETS[name])


def active() -> bool:
    """Whether the shim is switched on in this process."""
    return any(finder is Finder for finder in sys.meta_path)


def _adapt_once(module: ModuleType, adapt: Callable[[Any], None]) -> None:
    if module.__name__ in _adapted:
        return
    _adapted.add(module.__name__)
    try:
        adapt(module)
    except Exception as error:
        _warn(f"could not adapt {module.__name__}: {type(error).__name__}: {error}")


def _warn(message: str) -> None:
    if message not in _said:
        _said.add(message)
        print(f"skyrl-apex shim: {message} ({SWITCH}=0 turns the shim off)", file=sys.stderr)


# --- entry points -------------------------------------------------------------------------------


def _entry_points(group: str) -> dict[str, Target]:
    """``{name: (module, attribute)}`` of a group; what is broken or ambiguous is warned about."""
    claims: dict[str, dict[Target, EntryPoint]] = {}
    for point in _read_entry_points(group):
        module, _, attribute = point.value.partition("[")[0].strip().partition(":")
        if module and attribute:
            claims.setdefault(point.name, {})[(module, attribute)] = point
        else:
            _warn(
                f"ignored the entry point {point.name!r} of {_owner(point)} in {group}: "
                f"{point.value!r} is not module:attribute"
            )
    found: dict[str, Target] = {}
    for name, by_target in claims.items():
        if len(by_target) == 1:
            found[name] = next(iter(by_target))
        else:
            owners = " and ".join(sorted(_owner(point) for point in by_target.values()))
            _warn(f"ignored {name!r} in {group}: registered by {owners}; uninstall one of them")
    return found


def _read_entry_points(group: str) -> list[EntryPoint]:
    from importlib import metadata

    try:
        return list(metadata.entry_points(group=group))
    except Exception:
        return list(_read_one_by_one(metadata, group))


def _read_one_by_one(metadata: Any, group: str) -> Iterable[EntryPoint]:
    """The slow way, when one distribution's metadata cannot be read: all the others still count."""
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            name = distribution.name
            points = distribution.entry_points.select(group=group)
        except Exception as error:
            _warn(f"ignored a distribution whose entry points cannot be read: {error}")
            continue
        if name not in seen:
            seen.add(name)
            yield from points


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed distribution"


def _knows_group(group: str, *files: str) -> bool:
    """Whether upstream's own source names the entry-point group: then it reads it by itself."""
    for file in files:
        if not os.path.isfile(file):
            continue
        with open(file, encoding="utf-8", errors="replace") as source:
            text = source.read()
        if f'"{group}"' in text or f"'{group}'" in text:
            return True
    return False


# --- harbor: closed enums of names, and the tables behind them ----------------------------------


def _adapt_agent_names(module: Any) -> None:
    _extend(module, module.AgentName, "harbor.agents")


def _adapt_environment_types(module: Any) -> None:
    _extend(module, module.EnvironmentType, "harbor.environments")


def _extend(module: Any, enum: Any, group: str) -> None:
    if _knows_group(group, module.__file__):
        return
    for value, target in _entry_points(group).items():
        name = "".join(c if c.isalnum() else "_" for c in value).upper()
        if value in enum._value2member_map_:
            _warn(f"ignored {value!r} in {group}: {enum.__name__} of harbor has that name already")
        elif name in enum._member_map_ or not name.isidentifier():
            _warn(f"ignored {value!r} in {group}: it cannot become a member of {enum.__name__}")
        else:
            _added.setdefault(group, {})[_add_member(enum, name, value)] = target


def _add_member(enum: Any, name: str, value: str) -> Any:
    """Add a member to a ``str`` enum, before pydantic models are built from it."""
    member: Any = str.__new__(enum, value)
    member._name_ = name
    member._value_ = value
    member.__objclass__ = enum
    member._sort_order_ = len(enum._member_names_)
    type.__setattr__(enum, name, member)
    enum._member_names_.append(name)
    enum._member_map_[name] = member
    enum._value2member_map_[value] = member
    if hasattr(enum, "_hashable_values_"):  # what `value in enum` reads, Python 3.13
        enum._hashable_values_.append(value)
    return member


def _adapt_agent_factory(module: Any) -> None:
    for member, (target_module, attribute) in _added.get("harbor.agents", {}).items():
        module.AgentFactory._AGENT_MAP[member] = f"{target_module}:{attribute}"


def _adapt_environment_factory(module: Any) -> None:
    for member, (target_module, attribute) in _added.get("harbor.environments", {}).items():
        entry = module._EnvEntry(target_module, attribute, None)
        module._ENVIRONMENT_REGISTRY[member] = entry


# --- SkyRL: generator=NAME ----------------------------------------------------------------------


def _adapt_config(module: Any) -> None:
    """Training: rewrite the command line of ``main_base``. Elsewhere: let the parser take names."""
    if _skyrl_knows_generators(module):
        return
    if _runs_main_base():
        _rewrite_command_line()
    config_class = module.SkyRLTrainConfig
    stock = config_class.from_cli_overrides.__func__

    def from_cli_overrides(cls: Any, args: Any) -> Any:
        if isinstance(args, dict) or not any(_names_generator(argument) for argument in args):
            return stock(cls, args)
        from skyrl_apex_plugin.discovery import generators

        name, rest = generators.split_command_line(args)
        return generators.config_from_command_line(name, rest, cls)

    from_cli_overrides.__doc__ = stock.__doc__
    config_class.from_cli_overrides = classmethod(from_cli_overrides)


def _adapt_main_base(module: Any) -> None:
    """``main_generate`` and scripts build ``BasePPOExp`` or a subclass of it from such a config."""
    if _skyrl_knows_generators(module):
        return
    base = module.BasePPOExp
    stock_main = module.main

    def __new__(cls: Any, cfg: Any = None, *args: Any, **kwargs: Any) -> Any:
        from skyrl_apex_plugin.discovery import generators

        name = generators.generator_of(cfg)
        if name is None:
            return object.__new__(cls)
        return object.__new__(generators.joined_experiment_class(name, cls, base))

    def main() -> Any:
        _rewrite_command_line()
        return stock_main()

    base.__new__ = __new__
    module.main = main


def _skyrl_knows_generators(module: Any) -> bool:
    train = os.path.dirname(os.path.dirname(module.__file__))
    files = ("entrypoints/main_base.py", "config/config.py", "generators/__init__.py")
    return _knows_group("skyrl.generators", *(os.path.join(train, file) for file in files))


def _names_generator(argument: str) -> bool:
    key, _, value = argument.partition("=")
    return key == "generator" and bool(value) and not value.startswith(("{", "["))


def _runs_main_base() -> bool:
    """Whether this process is ``python -m skyrl.train.entrypoints.main_base`` (or its file)."""
    main_spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main_spec is not None:
        return str(main_spec.name) == "skyrl.train.entrypoints.main_base"
    if sys.argv and sys.argv[0] == "-m":  # runpy is still importing the parent packages
        return "skyrl.train.entrypoints.main_base" in sys.orig_argv
    script = sys.argv[0].replace("\\", "/") if sys.argv else ""
    return script.endswith("skyrl/train/entrypoints/main_base.py")


def _rewrite_command_line() -> None:
    """Turn ``generator=NAME`` into SkyRL's own switch to another entry point.

    Must happen before SkyRL parses: ``generator=NAME generator.max_turns=3`` would parse to a
    config without the name and train the stock generator in silence. The order of arguments does
    not matter. A command line that names its own entry point is left to that.
    """
    arguments = sys.argv[1:]
    named = [argument for argument in arguments if _names_generator(argument)]
    if not named or any(argument.startswith(OVERRIDE) for argument in arguments):
        return
    rest = [argument for argument in arguments if not _names_generator(argument)]
    sys.argv[1:] = [OVERRIDE + TRAIN_MODULE, *rest, "apex." + named[-1]]


TARGETS: dict[str, Callable[[Any], None]] = {
    "harbor.models.agent.name": _adapt_agent_names,
    "harbor.models.environment_type": _adapt_environment_types,
    "harbor.agents.factory": _adapt_agent_factory,
    "harbor.environments.factory": _adapt_environment_factory,
    "skyrl.train.config": _adapt_config,
    "skyrl.train.entrypoints.main_base": _adapt_main_base,
}
