"""``ferryman retry``, ``resolve`` and ``adopt``: an operator's decisions about deliveries, and about an older copy."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ferryman.cli.account import check_node_names, print_unread, relisting_advice
from ferryman.cli.options import (
    DestinationFilter,
    DocumentFilter,
    Json,
    PlanSpec,
    ReasonFilter,
    SourceFilter,
    StateDir,
    StatusFilter,
    Verbose,
    Why,
    load_with_state,
    status_name,
)
from ferryman.cli.terminal import next_command, print_json, print_line
from ferryman.cli.verify import as_json, print_repair, print_target


def retry(
    plan: PlanSpec,
    status: StatusFilter = None,
    document: DocumentFilter = None,
    destination: DestinationFilter = None,
    source: SourceFilter = None,
    reason: ReasonFilter = None,
    force: Annotated[bool, typer.Option("--force", help="Re-read and re-send everything, changed or not.")] = False,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Have the next scan read them, even if their fingerprints are unchanged.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Call steps that remember again: forget what they answered for these.")
    ] = False,
    why: Why = "",
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Make failed documents due again.

    Resets the attempts of pending, failed and rejected deliveries: they are due now, and the next run sends them. So it
    does for a message before which the plan has stopped.
    Starts no Spark. Without a filter: all of them. What was delivered is left alone unless --force asks for it.
    Steps that remember are not called again for what they have answered, not by --force either: --forget has it done.
    --dirty is for documents that have changed where no fingerprint shows it: they are read, and sent if they differ.
    While a run holds the state, the request is queued, and that run applies it.
    """
    from ferryman.operations import retry

    loaded, root = load_with_state(plan, state)
    check_node_names(f"plan {loaded.name}", [loaded], destination=destination, source=source)
    done = retry(
        loaded,
        state=root.parent,
        status=status_name(status),
        document=document,
        destination=destination,
        source=source,
        reason=reason,
        force=force,
        dirty=dirty,
        forget=forget,
        why=why,
    )
    again = next_command("run", plan, state=state)
    if done.queued:
        print_line(f"Queued: the current run, or the next one, will apply it: {again}")
        for name, advice in relisting_advice(loaded).items():
            if source in (None, name):
                print_line(f"source {name}: what has to be read again waits until it is listed. {advice}")
    elif done.count == 0:
        print_line("Nothing matches: nothing was changed.")
    elif done.count is None:
        print_line(f"What matches is due now. Next: {again}")
    else:
        print_line(f"{done.count} due now. Next: {again}")
        print_unread(loaded, root)


class Resolution(enum.StrEnum):
    """Status that an operator may record for a delivery in doubt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DROPPED = "dropped"
    PENDING = "pending"


def resolve(
    plan: PlanSpec,
    resolution: Annotated[
        Resolution,
        typer.Option(
            "--as",
            show_default=False,
            help="delivered: they took effect. failed: they did not, and must not be sent again. "
            "pending: they did not, send them. dropped: give them up, also those that failed or were rejected.",
        ),
    ],
    document: DocumentFilter = None,
    destination: DestinationFilter = None,
    source: SourceFilter = None,
    reason: ReasonFilter = None,
    why: Why = "",
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Record what became of deliveries in doubt; give up those that failed.

    Under at-most-once, what was in flight when a sender was killed is never sent again by itself: look whether the
    destination has it, and record that here. `ferryman deliveries PLAN --status in_doubt` lists them. Starts no Spark.
    An export of a keyed node that failed holds the later ones of its key: `--as dropped` lets them go on without it.
    While a run holds the state, the command is queued, and that run applies it.
    """
    from ferryman.operations import resolve

    loaded, root = load_with_state(plan, state)
    filters = {"document": document, "destination": destination, "source": source, "reason": reason}
    done = resolve(loaded, resolution.value, state=root.parent, **filters, why=why)
    again = next_command("run", plan, state=state)
    if done.queued:
        print_line(f"Queued: the current run, or the next one, will apply it: {again}")
    elif not done.count:
        what = "failed or is in doubt" if resolution is Resolution.DROPPED else "is in doubt"
        print_line(f"Nothing that matches {what}: nothing was changed.")
    elif resolution is Resolution.PENDING:
        print_line(f"{done.count} due now. Next: {again}")
    else:
        print_line(f"{done.count} recorded as {resolution.value}.")


# --- ``ferryman adopt``: goes on from a state that was put back from an older copy ---


def adopt(plan: PlanSpec, why: Why = "", state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Go on from a state, or with targets, that were put back from an older copy.

    For a run that said so. Everything that is sent from now on counts as newer than what the destinations have; then
    they are compared with the ledger as by `verify`, and the next run sends what differs. Deletes nothing: after that
    run, `ferryman verify PLAN --delete-extra` has removed what should not be there.

    Exit codes: 0 all is there; 3 something differs, and is due now; 4 a destination could not be read, or none can be.
    """
    from ferryman import verification

    loaded, root = load_with_state(plan, state)
    found = verification.adopt(loaded, state=root.parent, why=why)
    if json:
        print_json(as_json(found))
    else:
        for target in found.targets:
            print_target(target, verbose=verbose)
        print_repair(found, plan, state, asked=True)
    raise typer.Exit(found.exit)
