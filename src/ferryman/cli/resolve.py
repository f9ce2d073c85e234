"""``ferryman resolve``: a person's word on deliveries whose outcome is unknown."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ferryman.cli.options import OfDestination, OfSource, PlanSpec, StateDir, Verbose
from ferryman.cli.terminal import command, say


class Word(enum.StrEnum):
    """What may have become of a delivery."""

    INDEXED = "indexed"
    DEAD = "dead"
    OWED = "owed"


def resolve(
    plan: PlanSpec,
    word: Annotated[
        Word,
        typer.Option(
            "--as",
            show_default=False,
            help="indexed: they took effect. dead: they did not, and shall not. owed: they did not, send them.",
        ),
    ],
    document: Annotated[
        str | None, typer.Option("--doc", metavar="ID", show_default=False, help="Only this document.")
    ] = None,
    destination: OfDestination = None,
    source: OfSource = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", show_default=False, help="Kept in the ledger.")] = "",
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Say what became of unknown deliveries.

    Under at-most-once, what was in flight when a sender was killed is never sent again by itself: look at the
    destination whether it has them, and say so here. `ferryman docs PLAN --status indexing` lists them. Starts no
    Spark. While a run holds the state, the word is queued and its next wave takes it up.
    """
    from ferryman.ledger import commands
    from ferryman.ledger.state import state_root
    from ferryman.plan.load import load_plan, plan_file

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    done = commands.resolve(
        loaded, word.value, state=root.parent, document=document, destination=destination, source=source, why=why
    )
    again = command("run", plan, state=state)
    if done.queued:
        say(f"Your word is queued: the run that holds the state takes it up, or the next one: {again}")
    elif not done.count:
        say("Nothing that matches is unknown: nothing was changed.")
    elif word is Word.OWED:
        say(f"{done.count} due now. Next: {again}")
    else:
        say(f"{done.count} noted as {word.value}.")
