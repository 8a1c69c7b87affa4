"""``skyrl-apex doctor``: what is installed, what fits together, how to get what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

MARKS = {"ok": ("ok", "green"), "warn": ("note", "yellow"), "fail": ("FAIL", "red")}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Check this installation and this machine.

    Ends with status 1 when something is wrong; what is merely absent is a note.
    """
    from skyrl_apex_plugin.discovery.checkup import check_everything

    checks = check_everything()
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        area = ""
        for check in checks:
            if check.area != area:
                area = check.area
                click.secho(f"\n{area}", bold=True)
            word, colour = MARKS[check.status]
            click.echo(f"  {click.style(f'{word:5}', fg=colour)}{check.name:14} {check.found}")
            if check.remedy:
                click.echo(f"       -> {check.remedy}")
    if any(check.status == "fail" for check in checks):
        raise SystemExit(1)
