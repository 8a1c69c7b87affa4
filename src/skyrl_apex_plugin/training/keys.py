"""The environment variables that a run needs: who asks for them, and whether they are there."""

from __future__ import annotations

import io
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skyrl_apex_plugin.discovery import resolve

REFERENCE = re.compile(r"\$\{([^}:]+)(?P<default>:-.*)?\}")
"""``${KEY}`` and ``${KEY:-default}``, as harbor resolves a whole value of an ``env`` table."""


class MissingKeys(ValueError):
    """Keys that are not set. Names each with who needs it, never a value."""

    def __init__(self, missing: Mapping[str, Iterable[str]]) -> None:
        lines = [f"  {key}  needed by {_some(owners)}" for key, owners in sorted(missing.items())]
        super().__init__(
            "environment variables are missing:\n" + "\n".join(lines) + "\n"
            "Set them, or put them into a file and pass it with --env-file. "
            "`skyrl-apex data validate` names every task that lacks one."
        )
        self.keys = sorted(missing)


def read_env_file(path: Path) -> dict[str, str]:
    """The assignments of a ``.env`` file. No shell reads it: ``$``, backticks and ``;`` in a value
    are themselves.

    Raises ``ValueError`` naming the file when it is not UTF-8, and the line that is no assignment
    or holds a NUL, which no environment takes.
    """
    from dotenv.parser import parse_stream

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error}") from error
    values: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        line = f"{path}:{binding.original.line}"
        if binding.error or (binding.key is not None and binding.value is None):
            raise ValueError(f"{line}: not of the form NAME=value")
        if binding.key is not None and binding.value is not None:
            if "\0" in binding.key + binding.value:
                raise ValueError(f"{line}: holds a NUL character")
            values[binding.key] = binding.value
    return values


def needed_keys(
    task_dirs: Iterable[Path],
    *,
    plugins: Iterable[tuple[type, Mapping[str, Any]]] = (),
    env: Mapping[str, str],
) -> dict[str, list[str]]:
    """Key to those that need it: task directories, and plugin classes.

    A task needs what its ``archipelago.json`` lists and what the ``env`` tables of its
    ``task.toml`` refer to without a default. A plugin class may have
    ``needed_env(env, **kwargs) -> Iterable[str]``: which keys it needs may depend on others, such
    as one that names a model.
    """
    needed: dict[str, list[str]] = defaultdict(list)
    for directory in task_dirs:
        for key in task_keys(directory):
            needed[key].append(str(directory))
    for cls, kwargs in plugins:
        ask = getattr(cls, "needed_env", None)
        for key in ask(env, **kwargs) if ask is not None else ():
            needed[key].append(f"{cls.__module__}:{cls.__qualname__}")
    return dict(needed)


def task_keys(directory: Path) -> set[str]:
    """Keys that one task needs. Raises ``ValueError`` naming a file that does not parse."""
    from skyrl_apex_plugin.agent.task import load_task

    keys = set(load_task(directory).required_env_keys)
    path = directory / "task.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return keys | set(_references(document))


def plugin_classes(apex: Any) -> list[tuple[type, Mapping[str, Any]]]:
    """The classes that a configuration chooses, with their keyword arguments."""
    chosen: list[tuple[type, Mapping[str, Any]]] = [
        (resolve("grader", apex.grader.name), apex.grader.kwargs)
    ]
    if "type" not in (apex.trial.get("environment") or {}):
        chosen.append((resolve("sandbox", apex.sandbox.name), apex.sandbox.kwargs))
    if apex.sampler.name != "embedded":  # its keyword arguments are those of the engine
        chosen.append((resolve("sampler", apex.sampler.name), apex.sampler.kwargs))
    return chosen


def optional_keys(
    plugins: Iterable[tuple[type, Mapping[str, Any]]], env: Mapping[str, str]
) -> dict[str, str]:
    """What plugin classes use when it is set (their ``optional_env``), with its values."""
    names = {name for cls, _ in plugins for name in getattr(cls, "optional_env", ())}
    return {name: env[name] for name in sorted(names & env.keys())}


def require_keys(needed: Mapping[str, Iterable[str]], env: Mapping[str, str]) -> dict[str, str]:
    """The needed keys with their values, to hand to worker processes.

    An empty value is a value. Raises :class:`MissingKeys`.
    """
    missing = {key: owners for key, owners in needed.items() if key not in env}
    if missing:
        raise MissingKeys(missing)
    return {key: env[key] for key in needed}


def _references(value: Any) -> Iterable[str]:
    """Keys that ``env`` tables refer to. ``metadata`` is free text that nobody resolves, and
    ``solution`` is for harbor's oracle, which no run here is."""
    if isinstance(value, list):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "env" and isinstance(inner, Mapping):
                found = (REFERENCE.fullmatch(str(text)) for text in inner.values())
                yield from (each[1] for each in found if each and not each["default"])
            elif name not in ("metadata", "solution"):
                yield from _references(inner)


def _some(owners: Iterable[str], shown: int = 3) -> str:
    names = list(owners)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
