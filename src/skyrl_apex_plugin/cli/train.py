"""``skyrl-apex train`` and ``skyrl-apex eval``: stock SkyRL command lines from presets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from skyrl_apex_plugin.training.preset import Purpose


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that training and evaluation share."""
    for option in reversed(
        (
            click.option("--preset", metavar="NAME", help="Start from a bundled preset."),
            click.option("--dry-run", is_flag=True, help="Check what can be checked; run nothing."),
            click.option(
                "--tasks",
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                help="Folder with train/ and heldout/ task directories.",
            ),
            click.option(
                "--model",
                metavar="PATH",
                help="Model or checkpoint to start from (train) or evaluate (eval).",
            ),
            click.option(
                "--run-dir",
                type=click.Path(file_okay=False, path_type=Path),
                help="The run's directory; a new one under ./runs by default.",
            ),
            click.option(
                "--env-file",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="NAME=value lines with the keys that tasks and plugins need.",
            ),
            click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
        )
    ):
        command = option(command)
    return command


@click.command()
@run_options
def train(**options: Any) -> None:
    """Train through the stock SkyRL command line, which is printed.

    KEY=VALUE are SkyRL's own settings and this package's (apex.…); they win over the preset.
    """
    _launch("train", **options)


@click.command("eval")
@run_options
def evaluate(**options: Any) -> None:
    """Evaluate a model through SkyRL's stock main_generate, which is printed.

    KEY=VALUE are SkyRL's own settings and this package's (apex.…); they win over the preset.
    """
    _launch("eval", **options)


def _launch(
    purpose: Purpose,
    *,
    preset: str | None,
    dry_run: bool,
    tasks: Path | None,
    model: str | None,
    run_dir: Path | None,
    env_file: Path | None,
    settings: Sequence[str],
) -> None:
    from skyrl_apex_plugin.training.keys import read_env_file
    from skyrl_apex_plugin.training.preset import PresetError, stock_command

    for setting in settings:
        if "=" not in setting:
            raise click.UsageError(f"{setting!r}: expected KEY=VALUE, as SkyRL takes it")
    try:
        given = read_env_file(env_file) if env_file else {}
        run_dir = _run_dir(run_dir)
        model = _model(model)
        arguments = [*_preset_arguments(purpose, preset, tasks, model, run_dir), *settings]
    except (PresetError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    environment = {**os.environ, **given}
    if dry_run:
        _dry_run(purpose, arguments, environment)
        return
    command = stock_command(purpose, arguments, shim=_shim_is_on())
    click.echo(_shown(command))
    _watch(command, environment, run_dir, _planned_steps(arguments))


def _preset_arguments(
    purpose: Purpose, name: str | None, tasks: Path | None, model: str | None, run_dir: Path
) -> list[str]:
    """The preset's settings with its places filled in; without a preset, only the places."""
    from skyrl_apex_plugin.training import preset as presets

    places = {"run_dir": str(run_dir)}
    places |= {"tasks": str(tasks.resolve())} if tasks else {}
    places |= {"model": model} if model else {}
    if name is None:
        given = {"run_dir": "apex.record.dir", "model": "trainer.policy.model.path"}
        settings = {key: places[place] for place, key in given.items() if place in places}
        if tasks:
            settings["data.val_data"] = f"[{tasks.resolve()}/heldout]"
            settings["data.train_data"] = f"[{tasks.resolve()}/train]"
        return presets.stock_arguments(settings, {})
    chosen = presets.load_preset(name)
    if chosen.purpose != purpose:
        command = {"train": "train", "eval": "eval"}[chosen.purpose]
        raise presets.PresetError(f"preset {name!r} is for `skyrl-apex {command}`")
    if chosen.sample and not {"tasks", "model"} <= places.keys():
        places = presets.sample_places(run_dir) | places
    return presets.stock_arguments(chosen.settings, places)


def _run_dir(given: Path | None) -> Path:
    from skyrl_apex_plugin.rollout.record import new_run_dir

    return (given or new_run_dir(Path("runs"))).resolve()


def _model(given: str | None) -> str | None:
    """A name of the Hugging Face Hub as it is; a path, which must exist, in full.

    Raises ``ValueError`` for a missing path. Without this, the model library would take it for a
    name and complain of its form, after Ray has started.
    """
    if given is None or (given.count("/") <= 1 and not given.startswith(("/", ".", "~"))):
        return given
    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        raise ValueError(f"--model {given}: there is no such directory")
    return str(path)


def _shim_is_on() -> bool:
    return os.environ.get("SKYRL_APEX_AUTOLOAD") != "0"


def _planned_steps(arguments: Sequence[str]) -> int | None:
    """The last ``trainer.max_training_steps`` on the command line."""
    steps = None
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "trainer.max_training_steps" and value.isdigit():
            steps = int(value)
    return steps


def _watch(
    command: Sequence[str], environment: dict[str, str], run_dir: Path, steps: int | None
) -> None:
    """Run the command with a live display; says at the end where everything is."""
    from rich.console import Console

    from skyrl_apex_plugin.training.launch import run_child
    from skyrl_apex_plugin.training.progress import RunView
    from skyrl_apex_plugin.training.report import evaluation_report

    console = Console()
    log = run_dir / "log.txt"
    try:
        with RunView(run_dir, console, steps=steps) as view:
            status = run_child(command, env=environment, log=log, watch=view.refresh)
    except KeyboardInterrupt:
        click.echo(f"stopped. The log is {log}")
        raise click.exceptions.Exit(130) from None
    if status != 0:
        lines = log.read_text(errors="replace").splitlines()[-30:]
        click.echo("\n".join(lines), err=True)
        raise click.ClickException(f"SkyRL ended with status {status}. The whole log: {log}")
    if view.evaluations:
        click.echo(evaluation_report(view.evaluations[-1]))
    click.echo(f"run record   {run_dir}")
    for path in _checkpoints(run_dir):
        click.echo(f"checkpoint   {path}")
    click.echo(f"command      {_shown(command)}")


def _shown(command: Sequence[str]) -> str:
    """The command line as it is printed: without values that are secret."""
    from skyrl_apex_plugin.training.secrets import redacted_setting

    return shlex.join(["python", *map(redacted_setting, command[1:])])


def _checkpoints(run_dir: Path) -> list[Path]:
    """Models in HuggingFace's format, then SkyRL's own checkpoints."""
    models = sorted(path.parent for path in run_dir.glob("export/global_step_*/policy/config.json"))
    return [*models, *sorted(run_dir.glob("checkpoints/global_step_*"))]


def _dry_run(purpose: Purpose, arguments: list[str], environment: dict[str, str]) -> None:
    from skyrl_apex_plugin.training.dry_run import run_checks

    os.environ.update(environment)  # SkyRL's validators and the sandbox's check look there
    failed = 0
    for check in run_checks(purpose, arguments, environment):
        failed += check.status == "failed"
        click.echo(f"{check.status:8} {check.name:10} {check.detail}")
    if failed:
        raise click.exceptions.Exit(1)
