"""``ferryman status``: what became of everything, per destination, and whether the counts balance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.drawn_counts import svg_with_counts
from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose, has_run
from ferryman.cli.terminal import command, json_line, note, say, table, when
from ferryman.cli.unlisted import say_unread

if TYPE_CHECKING:
    from ferryman.plan import Plan

SOURCE = ("documents", "deleted", "again")
DESTINATION = ("delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt")
LOOK_AT = ("failed", "rejected", "in_doubt")
"""Counts that ask for an operator."""


def status(
    plan: PlanSpec,
    state: StateDir = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="FILE", show_default=False, help="Also draw the plan into this file, with the counts."
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Count what became of all documents.

    Per destination: delivered, deleted, dropped, failed, rejected, pending, in_doubt. Starts no Spark. Counts are of
    deliveries of the current version of each document. pending is everything that still has to be sent, tried or not;
    in_doubt was in flight, at-most-once, when it was killed: sent or not, the destination did not say.

    With --svg the picture has the documents of each source, what became of them at each destination, and at each step
    and router the deliveries of which the reason names it.
    """
    from ferryman import account
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    loaded.check()
    root = state_root(loaded, state, plan_file(plan))
    waves: list[dict[str, Any]] = []
    if not has_run(root):
        note(f"{root}: there is no state here yet: nothing has run. Next: {command('run', plan, state=state)}")
        found = never_run(loaded)
    else:
        found = account.status(root, loaded)
        waves = [] if json else account.waves(root, plan=loaded)
    if svg is not None:
        svg.write_text(svg_with_counts(loaded, root, found), "ascii")
    if json:
        json_line(found)
        return
    _told(found, waves, has_run(root))
    if any(numbers["pending"] for numbers in found["destinations"].values()):
        say_unread(loaded, root)
    for name in LOOK_AT:
        if any(numbers[name] for numbers in found["destinations"].values()):
            say(f"Which are {name}, and why: {command('deliveries', plan, '--status', name, state=state)}")


def never_run(plan: Plan) -> dict[str, Any]:
    """The status of a plan that never ran: all is zero, and balanced."""
    kinds = {n.name: n.kind for n in plan.nodes}
    return {
        "plan": plan.name,
        "version": plan.version,
        "waves": 0,
        "sources": {name: dict.fromkeys(SOURCE, 0) for name, kind in kinds.items() if kind == "source"},
        "destinations": {
            name: dict.fromkeys(DESTINATION, 0) for name, kind in kinds.items() if kind in ("destination", "tee")
        },
        "balanced": True,
    }


def _told(found: dict[str, Any], waves: list[dict[str, Any]], ran: bool) -> None:
    waves_run = "1 wave" if found["waves"] == 1 else f"{found['waves']} waves"
    say(f"plan {found['plan']}, version {found['version']}: {waves_run}")
    say()
    table(
        ("source", *SOURCE),
        [(name, *(numbers[c] for c in SOURCE)) for name, numbers in found["sources"].items()],
    )
    say()
    table(
        ("destination", *DESTINATION),
        [(name, *(numbers[c] for c in DESTINATION)) for name, numbers in found["destinations"].items()],
    )
    say()
    if waves:
        say("The last waves:")
        columns = list(waves[0])
        table(columns, [[when(w[c]) if c == "created" else w[c] for c in columns] for w in waves])
        say()
    if not ran:
        say("Nothing has run yet: there is nothing to balance.")
    elif found["balanced"]:
        say("Balanced: every document is accounted for at every destination that its source reaches.")
    else:
        say(
            "NOT BALANCED: some deliveries are unaccounted for. If a destination was added with --accept-changes, "
            "`ferryman retry --force` sends it the existing documents; otherwise `ferryman fsck` looks for damage."
        )
