"""``ferryman plan``: is this a plan that can run, and what does it look like?"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli.options import FlowSpec, StateDir, Verbose
from ferryman.cli.terminal import block, json_line, say
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.plan.load import Runnable

app = typer.Typer(name="plan", help="Check or draw a plan.", no_args_is_help=True, rich_markup_mode=None)


class Format(enum.StrEnum):
    """How a plan can be drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


@app.command()
def check(plan: FlowSpec, verbose: Verbose = False) -> None:
    """Say what is wrong with a plan.

    Reads no documents, starts no Spark. Every reason for which it cannot run is an error, and the command ends with
    2. Warnings refuse nothing. Of a flow all plans are checked, and what joins them.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load

    loaded = load(plan)
    warnings = loaded.check()
    for warning in warnings:
        say(f"warning: {warning}")
    told = f"{len(warnings)} {'warning' if len(warnings) == 1 else 'warnings'}" if warnings else "all well"
    if isinstance(loaded, Flow):
        order = ", ".join(f"{loaded.label(each)} ({len(each.nodes)} nodes)" for each in loaded.order)
        say(f"flow {loaded.name}: {order}: {told}")
    else:
        say(f"plan {loaded.name}, version {loaded.version}: {len(loaded.nodes)} nodes, {told}")


@app.command()
def show(
    plan: FlowSpec,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,  # noqa: A002 - the option's name
    counts: Annotated[
        bool, typer.Option("--counts", help="In an SVG picture, also what became of the documents.")
    ] = False,
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Draw a plan.

    From its sources, through its steps, to its destinations: as a tree of lines, as a Mermaid flowchart (GitHub draws
    it), as an SVG picture, or as JSON. A plan that `plan check` refuses is drawn too. Of a flow all plans are drawn, in
    the order of their turns, and what joins them.
    """
    from ferryman.plan import picture
    from ferryman.plan.load import load

    loaded = load(plan)
    if counts and format is not Format.SVG:
        raise UsageError("--counts goes with --format svg; `ferryman status` shows them as text.")
    match format:
        case Format.TEXT:
            block(picture.text(loaded))
        case Format.MERMAID:
            block(picture.mermaid(loaded))
        case Format.SVG:
            drawn = _with_counts(loaded, state, plan) if counts else picture.svg(loaded)
            block(drawn.rstrip("\n"))
        case Format.JSON:
            json_line(picture.as_json(loaded))


def _with_counts(plan: Runnable, state: str | None, spec: str) -> str:
    from ferryman.cli.drawn_counts import svg_with_counts
    from ferryman.cli.status import states_of, status_of
    from ferryman.plan.load import plan_file

    plan.check()
    states = states_of(plan, state, plan_file(spec))
    return svg_with_counts(plan, states, {name: status_of(*each) for name, each in states.items()})
