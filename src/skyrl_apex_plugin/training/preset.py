"""Presets: small YAML files with a run's settings, and the stock command line that they become."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]

Purpose = Literal["train", "eval"]

ENTRY_POINTS: Mapping[Purpose, str] = {
    "train": "skyrl.train.entrypoints.main_base",
    "eval": "skyrl.train.entrypoints.main_generate",
}
"""SkyRL's own modules."""

PLACES = ("run_dir", "tasks", "model")
"""What ``${…}`` may stand for in a preset."""


class PresetError(ValueError):
    """A preset that does not exist or does not say what it must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One bundled preset. ``settings`` maps dotted SkyRL keys to values."""

    name: str
    summary: str
    purpose: Purpose
    sample: bool
    """Whether it runs in the sample world with the sample model unless others are named."""
    settings: Mapping[str, Any]
    text: str
    """The file as it is, comments included."""


def preset_names() -> list[str]:
    """Names of all bundled presets."""
    folder = files(__package__) / "presets"
    return sorted(
        path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml")
    )


def load_preset(name: str) -> Preset:
    """Read a bundled preset. Raises :class:`PresetError` that lists the known ones."""
    if name not in preset_names():
        raise PresetError(f"no preset is called {name!r}; known: {', '.join(preset_names())}")
    text = (files(__package__) / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    return Preset(
        name=name,
        summary=document["summary"],
        purpose=document.get("purpose", "train"),
        sample=document.get("sample", False),
        settings=dict(_flat(document["config"])),
        text=text,
    )


def stock_arguments(settings: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    """``key=value`` as SkyRL's parser reads them, with ``${run_dir}`` and its like filled in.

    Raises :class:`PresetError` naming the setting whose place is not known.
    """
    return [f"{key}={_value(key, value, places)}" for key, value in settings.items()]


def stock_command(purpose: Purpose, arguments: list[str], *, shim: bool = True) -> list[str]:
    """The stock SkyRL command line. ``generator=NAME`` stands last, where SkyRL refuses it with
    an error rather than drop it, should the name shim be off.

    :param shim: whether names work; else the spelled-out form is given.
    """
    if shim:
        return [sys.executable, "-m", ENTRY_POINTS[purpose], *arguments, "generator=apex_tito"]
    if purpose == "eval":
        return [sys.executable, "-m", "skyrl_apex_plugin.training.evaluate", *arguments]
    override = "trainer.override_entrypoint=skyrl_apex_plugin.training.train"
    return [sys.executable, "-m", ENTRY_POINTS[purpose], override, *arguments]


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(key: str, value: Any, places: Mapping[str, str]) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return Template(text).substitute(places)
    except KeyError as error:
        place = str(error).strip("'")
        option = f"--{place.replace('_', '-')}" if place in PLACES else "another name"
        raise PresetError(f"{key}={text} needs {place}: give {option}") from error


def sample_places(run_dir: Path) -> dict[str, str]:
    """The sample world's tasks, written below ``run_dir`` in some seconds, and the sample model.

    Each run has its own tasks: one that starts never changes those of one that runs.
    """
    from skyrl_apex_miniworld.build import build
    from skyrl_apex_miniworld.tiny_model import checkpoint

    tasks = run_dir / "world"
    build(tasks)
    return {"tasks": str(tasks), "model": str(checkpoint())}
