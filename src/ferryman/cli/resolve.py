"""``ferryman resolve``: record what became of deliveries in doubt."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ferryman.cli.options import OfDestination, OfSource, PlanSpec, StateDir, Verbose
from ferryman.cli.terminal import command, say


class Word(enum.StrEnum):
    """What may have become of a delivery."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DROPPED = "dropped"
    PENDING = "pending"


def resolve(
    plan: PlanSpec,
    word: Annotated[
        Word,
        typer.Option(
            "--as",
            show_default=False,
            help="delivered: they took effect. failed: they did not, and must not be sent again. "
            "pending: they did not, send them. dropped: give them up, also those that failed or were rejected.",
        ),
    ],
    document: Annotated[
        str | None, typer.Option("--doc", metavar="ID", show_default=False, help="Only this document.")
    ] = None,
    destination: OfDestination = None,
    source: OfSource = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", show_default=False, help="Stored in the ledger.")] = "",
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Record what became of deliveries in doubt; give up those that failed.

    Under at-most-once, what was in flight when a sender was killed is never sent again by itself: look whether the
    destination has it, and record that here. `ferryman deliveries PLAN --status in_doubt` lists them. Starts no Spark.
    An export of a keyed node that failed holds the later ones of its key: `--as dropped` lets them go on without it.
    While a run holds the state, the command is queued, and that run applies it.
    """
    from ferryman.operations.resolve import resolve
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    done = resolve(
        loaded, word.value, state=root.parent, document=document, destination=destination, source=source, why=why
    )
    again = command("run", plan, state=state)
    if done.queued:
        say(f"Queued: the current run, or the next one, will apply it: {again}")
    elif not done.count:
        what = "failed or is in doubt" if word is Word.DROPPED else "is in doubt"
        say(f"Nothing that matches {what}: nothing was changed.")
    elif word is Word.PENDING:
        say(f"{done.count} due now. Next: {again}")
    else:
        say(f"{done.count} recorded as {word.value}.")
