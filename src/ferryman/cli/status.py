"""``ferryman status``: what became of everything, per destination, and whether the counts balance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.drawn_counts import svg_with_counts
from ferryman.cli.options import FlowSpec, Json, StateDir, Verbose, has_run
from ferryman.cli.terminal import command, json_line, note, say, table, when
from ferryman.cli.unlisted import say_unread
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.plan import Plan
    from ferryman.plan.load import Runnable

SOURCE = ("documents", "deleted", "again")
DESTINATION = ("delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt")
LOOK_AT = ("failed", "rejected", "in_doubt")
"""Counts that ask for an operator."""


def status(
    plan: FlowSpec,
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

    If PLAN is a flow, this is said of each of its plans; with --json the object has flow and plans: by name, each
    plan's own.

    With --svg the picture has the documents of each source, what became of them at each destination, and at each step
    and router the deliveries of which the reason names it.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file, spec_of

    loaded = load(plan)
    loaded.check()
    states = states_of(loaded, state, plan_file(plan))
    for _, root in states.values():
        if not has_run(root):
            note(f"{root}: there is no state here yet: nothing has run. Next: {command('run', plan, state=state)}")
    found = {name: status_of(each, root) for name, (each, root) in states.items()}
    if svg is not None:
        svg.write_text(svg_with_counts(loaded, states, found), "ascii")
    if json:
        json_line({"flow": loaded.name, "plans": found} if isinstance(loaded, Flow) else found[loaded.name])
        return
    for number, (name, (each, root)) in enumerate(states.items()):
        if number:
            say()
        _report(found[name], each, root, spec_of(plan, loaded, each) if isinstance(loaded, Flow) else plan, state)


def states_of(plan: Runnable, state: str | None, file: Path | None) -> dict[str, tuple[Plan, StatePath]]:
    """The plan, or those of a flow in the order of their turns, by name, with the roots of their states."""
    from ferryman.plan import Flow
    from ferryman.state.state import state_root

    plans = {plan.label(each): each for each in plan.order} if isinstance(plan, Flow) else {plan.name: plan}
    return {name: (each, state_root(each, state, file)) for name, each in plans.items()}


def status_of(plan: Plan, root: StatePath) -> dict[str, Any]:
    """What became of a plan's documents; zeros if it never ran."""
    from ferryman import account

    return account.status(root, plan) if has_run(root) else never_run(plan)


def _report(found: dict[str, Any], plan: Plan, root: StatePath, spec: str, state: str | None) -> None:
    """All about one plan."""
    from ferryman import account

    ran = has_run(root)
    _told(found, account.waves(root, plan=plan) if ran else [], ran)
    if any(numbers["pending"] for numbers in found["destinations"].values()):
        say_unread(plan, root)
    for name in LOOK_AT:
        if any(numbers[name] for numbers in found["destinations"].values()):
            say(f"Which are {name}, and why: {command('deliveries', spec, '--status', name, state=state)}")


def never_run(plan: Plan) -> dict[str, Any]:
    """The status of a plan that never ran: all is zero, and balanced."""
    from ferryman.account.logs import log_counts

    kinds = {n.name: n.kind for n in plan.nodes}
    return {
        "plan": plan.name,
        "version": plan.version,
        "waves": 0,
        "sources": {
            **{name: dict.fromkeys(SOURCE, 0) for name, kind in kinds.items() if kind == "source"},
            **log_counts(None, plan),
        },
        "destinations": {
            name: dict.fromkeys(DESTINATION, 0) for name, kind in kinds.items() if kind in ("destination", "tee")
        },
        "balanced": True,
    }


def _log(numbers: dict[str, Any]) -> tuple[str, int, str]:
    """Where it stands, entries read, and entries to come."""
    positions = numbers["positions"]
    one = len(positions) == 1
    places = ", ".join(str(place) if one else f"{partition} {place}" for partition, place in positions.items())
    return places, numbers["read"], "unknown" if numbers["lag"] is None else str(numbers["lag"])


def _told(found: dict[str, Any], waves: list[dict[str, Any]], ran: bool) -> None:
    waves_run = "1 wave" if found["waves"] == 1 else f"{found['waves']} waves"
    say(f"plan {found['plan']}, version {found['version']}: {waves_run}")
    say()
    listed = {name: numbers for name, numbers in found["sources"].items() if "lag" not in numbers}
    if listed:
        table(("source", *SOURCE), [(name, *(numbers[c] for c in SOURCE)) for name, numbers in listed.items()])
        say()
    logs = {name: numbers for name, numbers in found["sources"].items() if "lag" in numbers}
    if logs:
        table(("log", "next", "read", "to come"), [(name, *_log(numbers)) for name, numbers in logs.items()])
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
