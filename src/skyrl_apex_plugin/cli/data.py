"""``skyrl-apex data``: pull, extract, pack, validate, stats, sample."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from skyrl_apex_hookspecs import Task
    from skyrl_apex_plugin.data.validate import Finding

SOURCES = click.argument("sources", nargs=-1, required=True, metavar="TASKS…")
CACHE = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Where shards are extracted to.  [default: ~/.cache/skyrl-apex/tasks]",
)


@click.group()
def data() -> None:
    """Pull, extract, pack, check and look at task data.

    TASKS are task directories, directories of them, or parquet shards.
    """


def _extract_options(command: Callable[..., Any]) -> Callable[..., Any]:
    ratio = click.option(
        "--unpack-ratio",
        default=200,
        show_default=True,
        type=click.IntRange(min=1),
        help="Unpacked to packed size beyond which an archive is refused as a bomb.",
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Processes that unpack; small shards need none.  [default: CPUs, at most 8]",
    )
    return ratio(workers(command))


@data.command()
@click.argument("source", metavar="REPO_OR_PATH")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--revision", help="Branch, tag or commit of the hub's repository.")
@_extract_options
def pull(
    source: str, out: Path, revision: str | None, workers: int | None, unpack_ratio: int
) -> None:
    """Fetch a dataset and extract it into OUT.

    REPO_OR_PATH is a dataset on the HuggingFace hub (OWNER/NAME; HF_TOKEN is used when set) or a
    local shard or directory of shards. Run it again to go on after an interruption.
    """
    from skyrl_apex_plugin.data.pull import fetch_shards

    with _user_errors():
        shards = fetch_shards(source, revision=revision, folder=out / ".skyrl-apex" / "shards")
        _extract(shards, out, workers, unpack_ratio)


@data.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@_extract_options
def extract(shards: Sequence[Path], out: Path, workers: int | None, unpack_ratio: int) -> None:
    """Extract parquet SHARDS (files or directories) into task directories below OUT.

    Rows that are refused are named and do not stop the others; the exit code is then 1.
    """
    from skyrl_apex_plugin.data.shards import find_shards

    with _user_errors():
        found = [shard for source in shards for shard in find_shards(source)]
        _extract(found, out, workers, unpack_ratio)


def _extract(shards: list[Path], out: Path, workers: int | None, unpack_ratio: int) -> None:
    from skyrl_apex_plugin.data.extract import extract as extract_shards
    from skyrl_apex_plugin.data.limits import Limits
    from skyrl_apex_plugin.data.shards import count_rows

    with _progress("tasks", count_rows(shards)) as advance:
        result = extract_shards(
            shards,
            out,
            limits=Limits(unpack_ratio=unpack_ratio),
            workers=workers,
            on_row=advance,
        )
    click.echo(
        f"{result.extracted} tasks extracted into {out}, {result.kept} were there already, "
        f"{len(result.refused)} rows refused"
    )
    for where, reason in result.refused.items():
        click.echo(f"refused: {where}: {reason}", err=True)
    if result.refused:
        raise click.exceptions.Exit(1)


@data.command()
@click.argument("tasks", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
def pack(tasks: Path, out: Path) -> None:
    """Pack the task directories below TASKS into the parquet shard OUT.

    Equal directories give equal bytes.
    """
    from skyrl_apex_plugin.data.archive import pack as pack_task
    from skyrl_apex_plugin.data.shards import write_shard
    from skyrl_apex_plugin.data.tasks import find_task_dirs

    with _user_errors():
        found = list(find_task_dirs(tasks))
        if not found:
            raise ValueError(f"{tasks}: no task directory (one with a task.toml) in it")
        with _progress("tasks", len(found)) as advance:

            def rows() -> Iterator[tuple[str, bytes]]:
                for directory in found:
                    relative = directory.relative_to(tasks if directory != tasks else tasks.parent)
                    packed = pack_task(directory)
                    advance(len(packed))
                    yield relative.as_posix(), packed

            count = write_shard(out, rows())
    click.echo(f"{count} tasks packed into {out}")


@data.command()
@SOURCES
@CACHE
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--strict", is_flag=True, help="Let warnings fail too.")
def validate(sources: Sequence[str], cache_dir: Path | None, as_json: bool, strict: bool) -> None:
    """Check every field of tasks, their task.toml, their keys; list the images of each world."""
    from dataclasses import asdict

    from skyrl_apex_plugin.data.sources import task_dirs
    from skyrl_apex_plugin.data.validate import validate_task

    with _user_errors():
        directories = list(task_dirs(sources, cache_dir))
        findings = [finding for each in directories for finding in validate_task(each, os.environ)]
        images = _images_by_world(directories)
    failed = sum(finding.level == "error" or strict for finding in findings)
    if as_json:
        document = {
            "tasks": len(directories),
            "findings": [asdict(finding) for finding in findings],
            "images": images,
        }
        click.echo(json.dumps(document, indent=1))
    else:
        _print_findings(findings, images, len(directories))
    if failed:
        raise click.exceptions.Exit(1)


def _images_by_world(directories: Sequence[Path]) -> dict[str, list[str]]:
    """Images of the worlds whose tasks can be read; the others have findings already."""
    from skyrl_apex_hookspecs import SetupError
    from skyrl_apex_plugin.data.tasks import read_task

    found: dict[str, set[str]] = {}
    for directory in directories:
        try:
            task = read_task(directory)
        except (SetupError, OSError, ValueError):
            continue
        if task.image:
            found.setdefault(task.world_short_name or task.world_id, set()).add(task.image)
    return {world: sorted(images) for world, images in sorted(found.items())}


def _print_findings(findings: Sequence[Finding], images: dict[str, list[str]], tasks: int) -> None:
    for finding in findings:
        click.echo(f"{finding.level}: {finding.task}: {finding.where}: {finding.what}")
    for world, names in images.items():
        remark = "" if len(names) == 1 else f"  ({len(names)} images for one world)"
        click.echo(f"world {world}: {', '.join(names)}{remark}")
    errors = sum(finding.level == "error" for finding in findings)
    click.echo(f"{tasks} tasks, {errors} errors, {len(findings) - errors} warnings")


@data.command()
@SOURCES
@CACHE
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Write an SVG of them."
)
def stats(
    sources: Sequence[str], cache_dir: Path | None, as_json: bool, picture: Path | None
) -> None:
    """Show worlds, kinds, criteria and prompt lengths."""
    from skyrl_apex_plugin.data.picture import draw
    from skyrl_apex_plugin.data.statistics import statistics_of
    from skyrl_apex_plugin.files import write_atomic

    with _user_errors():
        figures = statistics_of(_tasks(sources, cache_dir))
        if picture is not None:
            write_atomic(picture, draw(figures))
    if as_json:
        click.echo(json.dumps(figures.as_json(), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_row("tasks", str(figures.tasks))
    table.add_row("worlds", str(figures.worlds))
    for kind, count in figures.kinds.items():
        table.add_row(f"  {kind}", str(count))
    table.add_row("with snapshots", str(figures.snapshot_tasks))
    for name, spread in (("criteria", figures.criteria), ("prompt length", figures.prompt_chars)):
        table.add_row(
            f"{name}: least, median, p90, greatest",
            f"{spread.least:g}, {spread.median:g}, {spread.p90:g}, {spread.greatest:g}",
        )
    for key, count in figures.required_env_keys.items():
        table.add_row(f"needs {key}", str(count))
    Console().print(table)


@data.command()
@click.argument("number", type=click.IntRange(min=1), metavar="N")
@SOURCES
@CACHE
@click.option("--seed", default=0, show_default=True)
@click.option("--where", help="Only tasks for which this holds, as in 'world_kind == \"law\"'.")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON lines.")
def sample(
    number: int,
    sources: Sequence[str],
    cache_dir: Path | None,
    seed: int,
    where: str | None,
    as_json: bool,
) -> None:
    """Show N tasks at random: prompt, facts and criteria."""
    import random

    from skyrl_apex_plugin.data.expression import compile_expression
    from skyrl_apex_plugin.data.tasks import read_verifiers, task_facts

    with _user_errors():
        keep = compile_expression(where, "--where") if where else None
        tasks = [t for t in _tasks(sources, cache_dir) if keep is None or keep(task_facts(t))]
        if not tasks:
            raise ValueError(f"--where={where!r}: no task matches")
        for task in random.Random(seed).sample(tasks, min(number, len(tasks))):
            criteria = [
                each["verifier_values"].get("criteria", "")
                for each in read_verifiers(task.directory)
            ]
            facts = {key: value for key, value in task_facts(task).items() if key != "criteria"}
            if as_json:
                document = {**facts, "prompt": task.instruction, "criteria": criteria}
                click.echo(json.dumps(document, ensure_ascii=False))
                continue
            click.secho(f"{task.task_id}  {task.directory}", bold=True)
            click.echo("  ".join(f"{key}={value}" for key, value in facts.items() if value))
            click.echo(f"\n{task.instruction.rstrip()}\n")
            for text in criteria:
                click.echo(f"  - {text}")
            click.echo()


def _tasks(sources: Sequence[str], cache_dir: Path | None) -> Iterator[Task]:
    from skyrl_apex_plugin.data.sources import task_dirs
    from skyrl_apex_plugin.data.tasks import read_task

    return (read_task(directory) for directory in task_dirs(sources, cache_dir))


@contextmanager
def _user_errors() -> Iterator[None]:
    """Show what is wrong with the input or the disk as one line, not as a traceback."""
    from skyrl_apex_hookspecs import ApexError

    try:
        yield
    except (click.exceptions.Exit, BrokenPipeError):
        raise  # a RuntimeError to click, but no fault; and a reader that has seen enough
    except (ValueError, ApexError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error
    except KeyboardInterrupt:
        click.echo("interrupted; run the same command again to go on", err=True)
        raise click.exceptions.Exit(130) from None


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with rows, bytes and time left on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    seen = 0
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[read]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task(what, total=total, read="0.0 MB")

        def advance(size: int) -> None:
            nonlocal seen
            seen += size
            bar.update(row, advance=1, read=f"{seen / 1e6:.1f} MB")

        yield advance
