"""``ferryman deliveries`` and ``ferryman history``: what became of documents, and all that happened to one."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import (
    FlowSpec,
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
from ferryman.cli.terminal import command, json_line, json_lines, note, say, table, when
from ferryman.cli.unlisted import say_unread, ways_back
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ferryman.plan import Flow, Plan


class By(enum.StrEnum):
    """What deliveries can be counted by."""

    REASON = "reason"


LIMIT = 50
"""Rows shown at once on a terminal."""

PIPE_LIMIT = 1000
"""And in a pipe: more are hardly wanted as text, and all of a million take gigabytes to align."""


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
            help="Only this document and everything made from it, or the rows of this file.",
        ),
    ] = None,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="List documents (or files of rows) with deliveries that have not ended."),
    ] = False,
    by: Annotated[
        By | None,
        typer.Option("--by", show_default=False, help="Count by reason what has not arrived, with an example of each."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            show_default=False,
            help=f"At most this many. Default: {LIMIT} on a terminal, {PIPE_LIMIT} in a pipe, with --json all.",
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

    --by reason counts: why deliveries have failed, were rejected or dropped, are pending or in doubt, the most frequent
    reason first, each with the id of one document. Reasons that differ only in numbers and quoted words are one.

    --json writes all of them as they come, however many there are. As text the last line says how many more there are.
    -v also prints the tracebacks of unexpected errors.
    """
    from ferryman import account
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.records.statuses import shown
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    _are_nodes(loaded, destination=destination, source=source)
    if incomplete and (status is not None or destination is not None or by is not None):
        raise UsageError("--incomplete goes with --source and --family only.")
    filters = chosen(status=status_name(status), destination=destination, source=source, family=family)
    root = state_root(loaded, state, plan_file(plan))
    at_most = limit or (LIMIT if sys.stdout.isatty() else PIPE_LIMIT)
    rows: list[dict[str, Any]] = []
    if not has_run(root):
        note(f"{root}: there is no state here yet: nothing has run. Next: {command('run', plan, state=state)}")
    elif incomplete:
        _list_incomplete(root, loaded, source, family, plan, state, limit if json else at_most, json=json)
        return
    elif by is not None:
        _list_reasons(account.reasons(root, **filters, limit=limit, plan=loaded), json=json)
        return
    elif json:
        json_lines(account.each_delivery(root, **filters, limit=limit, plan=loaded))
        return
    else:
        rows = account.deliveries(root, **filters, limit=at_most + 1, plan=loaded)
    if json:
        json_line(rows)
        return
    said = [{**row, "status": shown(row["status"], row["operation"])} for row in rows[:at_most]]
    _table(said, ("document", "source", "destination", "status", "attempt", "wave", "message"))
    if verbose:
        _say_tracebacks(said)
    if limit is None and len(rows) > at_most:
        _note_more(f"the {at_most} newest", account.number_of_deliveries(root, **filters, plan=loaded))
    listed_by_work = ways_back(loaded)
    if any(row["status"] in _ASKED and row["source"] in listed_by_work for row in rows):
        say_unread(loaded, root)
    if family is not None and has_run(root):
        _say_whether_whole(root, family, loaded, plan, state)


_ASKED = ("FORCE", "RESTART")
"""Statuses of what an operator has asked for again and no wave has processed yet."""


def _list_reasons(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        json_line(found)
    elif found:
        columns = ("deliveries", "status", "example", "reason")
        table(columns, [[row[c] for c in columns] for row in found])
    else:
        note("None: everything is delivered.")


def _note_more(shown: str, of: int) -> None:
    note(f"These are {shown} of {of}; --limit {of} or --json shows all of them.")


def _list_incomplete(
    root: Path,
    loaded: Plan,
    source: str | None,
    family: str | None,
    plan: str,
    state: Path | None,
    limit: int | None,
    *,
    json: bool,
) -> None:
    """Families that have not ended, and how to see more of one."""
    from ferryman.account import families

    found = families.incomplete(root, loaded, source, family)
    if json:
        json_lines(each._asdict() for each in found[:limit])
        return
    if not found:
        note("None: every family is complete.")
        return
    table(found[0]._fields, [list(each) for each in found[:limit]])
    if limit is not None and len(found) > limit:
        _note_more(str(limit), len(found))
    say(f"Of one: {command('deliveries', plan, '--family', found[0].family, state=state)}")


def _say_whether_whole(root: Path, family: str, loaded: Plan, plan: str, state: Path | None) -> None:
    """Has all of a family ended, and if not, how are its deliveries found?"""
    from ferryman.account import families

    for found in families.of_family(root, family, loaded):
        say(f"{found.family} of source {found.source} is {found.told()}")
        for word in ("pending", "in_doubt", "failed", "rejected"):
            if getattr(found, word):
                listing = command("deliveries", plan, "--family", family, "--status", word, state=state)
                say(f"Which are {word.replace('_', ' ')}: {listing}")


def history(
    plan: FlowSpec,
    document: Annotated[str, typer.Argument(metavar="DOC", show_default=False, help="Id of a document.")],
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Tell all that happened to a document.

    Every event of it and its family, oldest first. Starts no Spark. If PLAN is a flow, it is followed: through each
    plan that knows it, and the messages made of it through the plans behind.
    """
    from ferryman import account
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file
    from ferryman.state.state import state_root

    loaded = load(plan)
    if isinstance(loaded, Flow):
        _followed(loaded, plan, document, state, json)
        return
    root = state_root(loaded, state, plan_file(plan))
    events = account.history(root, document, plan=loaded) if has_run(root) else []
    if json:
        json_line(events)
    if not events:
        listing = command("deliveries", plan, state=state)
        raise UsageError(f"{document}: there is no such document in the state {root}. `{listing}` lists its documents.")
    if not json:
        _table(events, ("created", "wave", "document", "destination", "operation", "status", "attempt", "message"))
        _say_tracebacks(events)
        say()
        last = events[-1]
        version = last["version"] or "unknown"
        say(f"{document}: version {version}, revision {last['revision']}, from source {last['source']}")
        origin = last["origin"] if document in (last["document"], last["origin"]) else document
        _say_whether_whole(root, origin, loaded, plan, state)


def _followed(flow: Flow, spec: str, document: str, state: StateDir, json: bool) -> None:
    """Its history in all plans of a flow."""
    from ferryman.operations.follow import follow
    from ferryman.plan.load import plan_file
    from ferryman.state.state import state_root

    events = follow(flow, {flow.label(p): state_root(p, state, plan_file(spec)) for p in flow.plans}, document)
    if json:
        json_line(events)
    if not events:
        raise UsageError(f"{document}: no plan of flow {flow.name} knows such a document.")
    if not json:
        columns = ("created", "plan", "wave", "document", "destination", "operation", "status", "attempt", "message")
        _table(events, columns)
        _say_tracebacks(events)


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
        table(columns, [[_cell(row, c) for c in columns] for row in rows])
    else:
        note("There are none.")


def _cell(row: dict[str, Any], column: str) -> Any:
    from ferryman.records.reasons import reason_of

    value = row[column]
    if column == "created":
        return when(value)
    return reason_of(value) if column == "message" and value else value


def _say_tracebacks(rows: list[dict[str, Any]]) -> None:
    """Of errors that nobody foresaw, each traceback once."""
    from ferryman.records.reasons import reason_of, traceback_of

    said = set()
    for row in rows:
        trace = traceback_of(row["message"] or "")
        if trace and trace not in said:
            said.add(trace)
            say()
            say(f"{row['document']}: {reason_of(row['message'])}")
            for line in trace.splitlines():
                say(line)
