"""The ``skyrl-apex`` command. Each command lives in its own module, imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "data": (
        "skyrl_apex_plugin.cli.data:data",
        "Pull, extract, pack, check and look at task data.",
    ),
    "doctor": (
        "skyrl_apex_plugin.cli.doctor:doctor",
        "What is installed, what fits, what is missing.",
    ),
    "eval": (
        "skyrl_apex_plugin.cli.train:evaluate",
        "Evaluate a model through stock main_generate.",
    ),
    "miniworld": ("skyrl_apex_miniworld.cli:miniworld", "Build the sample world and its tasks."),
    "plugins": ("skyrl_apex_plugin.cli.plugins:plugins", "List plugins, or write a new one."),
    "presets": ("skyrl_apex_plugin.cli.presets:presets", "List and show the bundled presets."),
    "report": ("skyrl_apex_plugin.cli.report:report", "Write the HTML report of a run."),
    "sandbox": (
        "skyrl_apex_plugin.cli.sandbox:sandbox",
        "Check a sandbox backend, reap leftovers.",
    ),
    "tito": ("skyrl_apex_plugin.cli.tito:tito", "Check token exactness for a tokenizer."),
    "train": ("skyrl_apex_plugin.cli.train:train", "Train through the stock SkyRL command line."),
}
"""Command name to ``module:attribute`` and the line that ``--help`` shows for it."""


class LazyGroup(click.Group):
    """A group whose help needs none of its commands' modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="skyrl-apex-plugin")
def cli() -> None:
    """RL training of knowledge-work agents on stock SkyRL and stock harbor."""


def main(argv: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return cli(args=argv, prog_name="skyrl-apex")


if __name__ == "__main__":
    main()
