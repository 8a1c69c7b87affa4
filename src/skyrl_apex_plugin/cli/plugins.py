"""``skyrl-apex plugins``: what is installed, and a new package to start from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skyrl_apex_plugin.discovery.inventory import Inventory


@click.group()
def plugins() -> None:
    """List plugins, or write a new one."""


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plugins(as_json: bool) -> None:
    """Show every installed plugin and every name that a configuration may use.

    Ends with status 1 when a plugin is broken or a name is taken twice.
    """
    from skyrl_apex_plugin.discovery.inventory import take_inventory

    found = take_inventory()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _show(found)
    if found.problems:
        raise SystemExit(1)


def _show(found: Inventory) -> None:
    click.secho("Plugins", bold=True)
    for plugin in found.plugins:
        hooks = ", ".join(plugin.hooks) or "no hooks"
        colour = {"loaded": "green", "broken": "red"}.get(plugin.status, "yellow")
        status = click.style(f"{plugin.status:9}", fg=colour)
        click.echo(f"  {plugin.name:14} {status} {plugin.owner}: {hooks}")
    kinds: dict[str, list[str]] = {}
    for entry in found.names:
        needs = f" (needs the extra {entry.extra})" if entry.extra else ""
        about = entry.summary or entry.target
        kinds.setdefault(entry.kind, []).append(f"  {entry.name:20} {about}{needs}")
    for kind, lines in kinds.items():
        click.secho(f"\n{kind.capitalize()} names", bold=True)
        click.echo("\n".join(lines))
    for problem in found.problems:
        click.secho(f"\n{problem}", fg="red", err=True)


@plugins.command()
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    help="Folder that gets the new package's folder.",
)
def new(name: str, into: Path) -> None:
    """Write a working plugin package called NAME, with tests.

    It registers a grader, adds a reward term and observes trials; take out what you do not need.
    """
    from skyrl_apex_plugin.cli.plugin_template import write_plugin_package

    try:
        folder = write_plugin_package(name, into)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"wrote {folder}\n\n"
        f"  pip install --editable '{folder}[test]'\n"
        f"  python -m pytest {folder}\n"
        f"  skyrl-apex plugins list\n\n"
        f"then train with: apex.grader.name={name}"
    )
