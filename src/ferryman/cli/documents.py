"""``ferryman deliveries`` and ``ferryman history``: what became of documents, and all that happened to one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import (
    Json,
    OfDestination,
    OfSource,
    OfStatus,
    PlanSpec,
    StateDir,
    Verbose,
    chosen,
    has_run,
    status_name,
)
from ferryman.cli.terminal import command, json_line, note, say, table, when
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ferryman.ledger.wholeness import Wholeness
    from ferryman.plan import Plan

LIMIT = 50
"""Deliveries shown at once on a terminal; a pipe gets all."""


def deliveries(
    plan: PlanSpec,
    status: OfStatus = None,
    destination: OfDestination = None,
    source: OfSource = None,
    family: Annotated[
        str | None,
        typer.Option(
            "--family",
            metavar="ID",
            show_default=False,
            help="Only of this document and what was made of it; or of the rows of this file.",
        ),
    ] = None,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="List documents (files of rows) of which not every delivery has ended."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            show_default=False,
            help=f"At most so many. Default: {LIMIT} on a terminal, else all.",
        ),
    ] = None,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List deliveries, newest first.

    One line for each delivery of a current document, with its latest event. Starts no Spark.

    A document with all that was made of it is a family; so are the rows of a file. With --family the last line says
    whether all of it has ended: complete, or incomplete, and how many deliveries are pending, in doubt, failed or
    rejected. --incomplete lists families of which some are pending or in doubt; what failed has ended.
    """
    from ferryman.ledger import account
    from ferryman.ledger.state import state_root
    from ferryman.ledger.statuses import shown
    from ferryman.plan.load import load_plan, plan_file

    loaded = load_plan(plan)
    _are_nodes(loaded, destination=destination, source=source)
    if incomplete and (status is not None or destination is not None):
        raise UsageError("--incomplete goes with --source and --family only.")
    filters = chosen(status=status_name(status), destination=destination, source=source, family=family)
    root = state_root(loaded, state, plan_file(plan))
    rows: list[dict[str, Any]] = []
    more = False
    if not has_run(root):
        note(f"{root}: there is no state here yet: nothing has run. Next: {command('run', plan, state=state)}")
    elif incomplete:
        from ferryman.ledger import wholeness

        _list_incomplete(wholeness.incomplete(root, loaded, source, family)[:limit], plan, state, json=json)
        return
    else:
        on_terminal = sys.stdout.isatty() and not json
        rows = account.deliveries(
            root, **filters, limit=LIMIT + 1 if limit is None and on_terminal else limit, plan=loaded
        )
        more = limit is None and on_terminal and len(rows) > LIMIT
    if json:
        json_line(rows)
        return
    if more:
        del rows[LIMIT:]
    said = [{**row, "status": shown(row["status"], row["operation"])} for row in rows]
    _table(said, ("document", "source", "destination", "status", "attempt", "wave", "message"))
    if more:
        note(f"These are the {LIMIT} newest; --limit shows more.")
    if family is not None and has_run(root):
        _say_whether_whole(root, family, loaded, plan, state)


def _list_incomplete(found: list[Wholeness], plan: str, state: Path | None, *, json: bool) -> None:
    """Families that have not ended, and how to see more of one."""
    if json:
        json_line([each._asdict() for each in found])
        return
    if not found:
        note("There are none: every family is complete.")
        return
    table(found[0]._fields, [list(each) for each in found])
    say(f"Of one: {command('deliveries', plan, '--family', found[0].family, state=state)}")


def _say_whether_whole(root: Path, family: str, loaded: Plan, plan: str, state: Path | None) -> None:
    """Has all of a family ended, and if not, how are its deliveries found?"""
    from ferryman.ledger import wholeness

    for found in wholeness.of_family(root, family, loaded):
        say(f"{found.family} of source {found.source} is {found.told()}")
        for word in ("pending", "in_doubt", "failed", "rejected"):
            if getattr(found, word):
                listing = command("deliveries", plan, "--family", family, "--status", word, state=state)
                say(f"Which are {word.replace('_', ' ')}: {listing}")


def history(
    plan: PlanSpec,
    document: Annotated[str, typer.Argument(metavar="DOC", show_default=False, help="Id of a document.")],
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Tell all that happened to a document.

    Every event of it and its family, oldest first. Starts no Spark.
    """
    from ferryman.ledger import account
    from ferryman.ledger.state import state_root
    from ferryman.plan.load import load_plan, plan_file

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    events = account.history(root, document, plan=loaded) if has_run(root) else []
    if json:
        json_line(events)
    if not events:
        listing = command("deliveries", plan, state=state)
        raise UsageError(f"{document}: the state {root} knows no such document. `{listing}` lists those it knows.")
    if not json:
        _table(events, ("created", "wave", "document", "destination", "operation", "status", "attempt", "message"))
        say()
        last = events[-1]
        version = last["version"] or "unknown"
        say(f"{document}: version {version}, revision {last['revision']}, from source {last['source']}")
        origin = last["origin"] if document in (last["document"], last["origin"]) else document
        _say_whether_whole(root, origin, loaded, plan, state)


def _are_nodes(plan: Plan, **options: str | None) -> None:
    """A name that the plan does not have is a slip of the pen, not a filter that nothing passes."""
    names = {n.name for n in plan.nodes}
    for option, name in options.items():
        if name is not None and name not in names:
            raise UsageError(f"--{option} {name}: plan {plan.name} has {', '.join(sorted(names))}; name one of these.")


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if any(row["route"] for row in rows):  # copies of one document at one destination are told apart by it
        at = columns.index("destination") + 1
        columns = (*columns[:at], "route", *columns[at:])
    if rows:
        table(columns, [[when(row[c]) if c == "created" else row[c] for c in columns] for row in rows])
    else:
        note("There are none.")
