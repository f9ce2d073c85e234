"""``ferryman plan``: is this a plan that can run, and what does it look like?"""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ferryman.cli.options import PlanSpec, Verbose
from ferryman.cli.terminal import block, json_line, say

app = typer.Typer(name="plan", help="Check or draw a plan.", no_args_is_help=True, rich_markup_mode=None)


class Format(enum.StrEnum):
    """How a plan can be drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


@app.command()
def check(plan: PlanSpec, verbose: Verbose = False) -> None:
    """Say what is wrong with a plan.

    Reads no documents, starts no Spark. Every reason for which it cannot run is an error, and the command ends with
    2. Warnings refuse nothing.
    """
    from ferryman.plan.load import load_plan

    loaded = load_plan(plan)
    warnings = loaded.check()
    for warning in warnings:
        say(f"warning: {warning}")
    told = f"{len(warnings)} {'warning' if len(warnings) == 1 else 'warnings'}" if warnings else "all well"
    say(f"plan {loaded.name}, version {loaded.version}: {len(loaded.nodes)} nodes, {told}")


@app.command()
def show(
    plan: PlanSpec,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,  # noqa: A002 - the option's name
    verbose: Verbose = False,
) -> None:
    """Draw a plan.

    From its sources, through its steps, to its destinations: as a tree of lines, as a Mermaid flowchart (GitHub draws
    it), as an SVG picture, or as JSON. A plan that `plan check` refuses is drawn too.
    """
    from ferryman.plan import picture
    from ferryman.plan.load import load_plan

    loaded = load_plan(plan)
    match format:
        case Format.TEXT:
            block(picture.text(loaded))
        case Format.MERMAID:
            block(picture.mermaid(loaded))
        case Format.SVG:
            block(picture.svg(loaded).rstrip("\n"))
        case Format.JSON:
            json_line(picture.as_json(loaded))
