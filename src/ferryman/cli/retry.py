"""``ferryman retry``: try again what failed."""

from __future__ import annotations

from typing import Annotated

import typer

from ferryman.cli.options import OfDestination, OfSource, OfStatus, PlanSpec, StateDir, Verbose, status_name
from ferryman.cli.terminal import command, say
from ferryman.cli.unlisted import say_unread, ways_back


def retry(
    plan: PlanSpec,
    status: OfStatus = None,
    document: Annotated[
        str | None, typer.Option("--doc", metavar="ID", show_default=False, help="Only this document.")
    ] = None,
    destination: OfDestination = None,
    source: OfSource = None,
    force: Annotated[bool, typer.Option("--force", help="Re-read and re-send everything, changed or not.")] = False,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Have the next scan read them, even if their fingerprints are unchanged.")
    ] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", show_default=False, help="Stored in the ledger.")] = "",
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Make failed documents due again.

    Resets the attempts of pending, failed and rejected deliveries: they are due now, and the next run sends them.
    Starts no Spark. Without a filter: all of them. What was delivered is left alone unless --force asks for it.
    --dirty is for documents that have changed where no fingerprint shows it: they are read, and sent if they differ.
    While a run holds the state, the request is queued, and that run applies it.
    """
    from ferryman.operations.retry import retry
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    done = retry(
        loaded,
        state=root.parent,
        status=status_name(status),
        document=document,
        destination=destination,
        source=source,
        force=force,
        dirty=dirty,
        why=why,
    )
    again = command("run", plan, state=state)
    if done.queued:
        say(f"Queued: the current run, or the next one, will apply it: {again}")
        for name, advice in ways_back(loaded).items():
            if source in (None, name):
                say(f"source {name}: what has to be read again waits until it is listed. {advice}")
    elif done.count == 0:
        say("Nothing matches: nothing was changed.")
    elif done.count is None:
        say(f"What matches is due now. Next: {again}")
    else:
        say(f"{done.count} due now. Next: {again}")
        say_unread(loaded, root)
