"""``skyrl-apex miniworld``."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def miniworld() -> None:
    """The sample world: a simulated company with tasks that a program can grade."""


@miniworld.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Draws other companies and tasks.")
def build(out: Path, seed: int) -> None:
    """Write OUT/image, OUT/train and OUT/heldout and install the image for local sandboxes."""
    from skyrl_apex_miniworld.build import build as build_world

    try:
        built = build_world(out, seed=seed)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error
    click.echo(f"image     {built.image}")
    click.echo(f"installed {built.installed}")
    click.echo(f"train     {out / 'train'} ({len(built.train)} tasks)")
    click.echo(f"held-out  {out / 'heldout'} ({len(built.held_out)} tasks)")
