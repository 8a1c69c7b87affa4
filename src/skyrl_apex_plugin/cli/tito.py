"""``skyrl-apex tito``: whether a tokenizer's token streams are exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from skyrl_apex_plugin.tito.check import Report
    from skyrl_apex_plugin.tito.tools import ToolCatalogue

COLOURS = {"exact": "green", "appended": "yellow", "not testable": "cyan"}


@click.group()
def tito() -> None:
    """Token-in, token-out: exact token streams."""


@tito.command()
@click.argument("model_or_tokenizer_dir")
@click.option(
    "--tools",
    "tools_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON list of tools, as MCP lists them or as OpenAI takes them.",
)
@click.option("--renderer", default="auto", show_default=True, help="As in apex.renderer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    model_or_tokenizer_dir: str, tools_file: Path | None, renderer: str, as_json: bool
) -> None:
    """Play scripted conversations and compare each boundary with the chat template.

    Ends with status 0 when every boundary extends exactly, 1 when one does not or no renderer
    serves the tokenizer exactly.
    """
    from skyrl_apex_plugin.tito.check import check as run_check
    from skyrl_apex_plugin.tito.renderer import RendererError, load_renderer
    from skyrl_apex_plugin.tito.tokenizer import load_tokenizer

    catalogue = _catalogue(tools_file)
    try:
        tokenizer = load_tokenizer(model_or_tokenizer_dir)
        chosen = load_renderer(tokenizer, tools=catalogue, name=renderer)
    except (RendererError, OSError, ValueError) as error:
        # Errors of templates and of transformers have many lines.
        raise click.ClickException(" ".join(str(error).split())) from error
    if not tokenizer.chat_template:
        raise click.ClickException(f"{model_or_tokenizer_dir} has no chat template to compare with")
    report = run_check(tokenizer, chosen, catalogue)
    if as_json:
        click.echo(json.dumps(report.as_dict(), ensure_ascii=False, indent=2))
    else:
        _show(report)
    if not report.ok:
        raise SystemExit(1)


def _catalogue(file: Path | None) -> ToolCatalogue:
    from skyrl_apex_plugin.tito.probes import TOOLS
    from skyrl_apex_plugin.tito.tools import ToolCatalogue

    if file is None:
        return ToolCatalogue([_as_mcp(tool) for tool in TOOLS])
    try:
        found = json.loads(file.read_text())
        listed = found["tools"] if isinstance(found, dict) else found
        return ToolCatalogue([_as_mcp(tool) for tool in listed])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.ClickException(f"{file} is no list of tools: {error!r}") from error


def _as_mcp(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    schema = function.get("inputSchema") or function.get("parameters")
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "inputSchema": schema,
    }


def _show(report: Report) -> None:
    click.echo(f"{report.tokenizer}: renderer {report.renderer}\n")
    conversation = ""
    for boundary in report.boundaries:
        if boundary.conversation != conversation:
            conversation = boundary.conversation
            click.secho(conversation, bold=True)
        where = "first prompt" if boundary.turn < 0 else f"after turn {boundary.turn}"
        word = click.style(f"{boundary.status:13}", fg=COLOURS.get(boundary.status, "red"))
        click.echo(f"  {where:13} {word} {boundary.tokens:6} tokens")
        if boundary.detail:
            click.echo(f"                {boundary.detail}")
    verdict = ("every boundary is exact", "green") if report.ok else ("NOT exact", "red")
    click.secho(f"\n{verdict[0]}", fg=verdict[1], bold=True)
