"""``skyrl-apex report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from skyrl_apex_plugin.report import DEFAULT_PAGES


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; RUN_DIR/report.html by default.",
)
@click.option(
    "--pages",
    default=DEFAULT_PAGES,
    show_default=True,
    type=click.IntRange(min=0),
    help="Trajectories that get a page, spread evenly over the run.",
)
@click.option("--trial", "trials", multiple=True, help="Give this trial a page; repeatable.")
@click.option("--tokenizer", help="Directory of the tokenizer; the run's own by default.")
def report(
    run_dir: Path, output: Path | None, pages: int, trials: Sequence[str], tokenizer: str | None
) -> None:
    """Write one self-contained HTML file about a run.

    RUN_DIR is the directory of a training or evaluation run (it holds run.json), or of a harbor
    job.
    """
    from skyrl_apex_plugin.report.html import write_report
    from skyrl_apex_plugin.report.run import load_run

    try:
        run = load_run(run_dir)
        target = write_report(
            run,
            output or run_dir / "report.html",
            pages=pages,
            only=trials,
            tokenizer=tokenizer,
        )
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if run.unreadable:
        count = len(run.unreadable)
        click.echo(f"{count} unreadable entries left out; first: {run.unreadable[0]}", err=True)
    click.echo(f"{target}  ({target.stat().st_size / 1e6:.1f} MB)")
