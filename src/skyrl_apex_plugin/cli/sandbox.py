"""``skyrl-apex sandbox``: check a backend against the contract, delete leftovers."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import click

_COLOURS = {"passed": "green", "failed": "red", "not offered": "yellow"}


@click.group()
def sandbox() -> None:
    """Check a sandbox backend, delete what killed runs left."""


@sandbox.command()
@click.argument("name")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the backend; the value is JSON, else a string. May be repeated.",
)
@click.option("--image", help="Docker image that the checked sandboxes run.")
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check only; repeatable.")
def check(name: str, options: tuple[str, ...], image: str | None, only: tuple[str, ...]) -> None:
    """Run the conformance checks against the backend NAME (a name or module:Class).

    Ends with status 1 when a check fails. Sandboxes are really started: a hosted backend costs
    money.
    """
    from skyrl_apex_plugin.discovery import DiscoveryError, resolve
    from skyrl_apex_plugin.sandboxes.conformance import CHECKS, SandboxMaker

    if unknown := set(only) - set(CHECKS):
        raise click.ClickException(
            f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}"
        )
    try:
        backend = resolve("sandbox", name)
    except DiscoveryError as error:
        raise click.ClickException(str(error)) from error
    with tempfile.TemporaryDirectory() as directory:
        maker = SandboxMaker(
            backend,
            Path(directory),
            kwargs=dict(map(_option, options)),
            task={"docker_image": image} if image else {},
        )
        if asyncio.run(_check(maker, list(only))):
            raise SystemExit(1)


def _option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise click.ClickException(f"--option {text!r}: write KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


async def _check(maker: Any, only: list[str]) -> int:
    """Print each result as it comes; returns how many failed."""
    from skyrl_apex_plugin.sandboxes.conformance import run_checks

    failed = 0
    async for result in run_checks(maker, only):
        outcome = click.style(f"{result.outcome:11}", fg=_COLOURS[result.outcome])
        click.echo(f"{result.name:26} {outcome} {result.seconds:6.2f} s  {result.about}")
        if result.detail:
            click.echo(f"{'':26} {result.detail}")
        failed += result.outcome == "failed"
    return failed


@sandbox.command()
@click.argument("names", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
def reap(names: tuple[str, ...], dry_run: bool) -> None:
    """Delete sandboxes whose run was killed, of all backends or of those NAMED.

    Ends with status 1 when something could not be deleted.
    """
    if asyncio.run(_reap(list(names), dry_run)):
        raise SystemExit(1)


async def _reap(names: list[str], dry_run: bool) -> int:
    """Print what was found; returns how many deletions failed."""
    from skyrl_apex_plugin.discovery import DiscoveryError
    from skyrl_apex_plugin.sandboxes.reaper import reap as reap_leftovers

    failed = count = 0
    try:
        async for each in reap_leftovers(names, dry_run=dry_run):
            click.echo(f"{each.backend:20} {each.outcome:9} {each.name} {each.detail}".rstrip())
            failed += each.outcome == "failed"
            count += each.outcome in ("found", "deleted")
    except DiscoveryError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} leftover{'s' if count != 1 else ''} {'found' if dry_run else 'deleted'}")
    return failed
