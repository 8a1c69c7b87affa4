"""``skyrl-apex presets``."""

from __future__ import annotations

import click


@click.group()
def presets() -> None:
    """The bundled presets of ``skyrl-apex train`` and ``skyrl-apex eval``."""


@presets.command("list")
def list_presets() -> None:
    """Each preset with what it is for."""
    from skyrl_apex_plugin.training.preset import load_preset, preset_names

    for name in preset_names():
        preset = load_preset(name)
        click.echo(f"{name:24} {preset.purpose:6} {preset.summary}")


@presets.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a preset as it is written, to copy and change."""
    from skyrl_apex_plugin.training.preset import PresetError, load_preset

    try:
        click.echo(load_preset(name).text, nl=False)
    except PresetError as error:
        raise click.UsageError(str(error)) from error
