"""``ferryman deliveries`` and ``ferryman history``: what became of documents, and all that happened to one."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ferryman.cli.options import (
    FlowSpec,
    Json,
    OfDestination,
    OfSource,
    OfStatus,
    StateDir,
    Verbose,
    chosen,
    has_run,
    status_name,
)
from ferryman.cli.terminal import command, json_line, json_lines, note, say, table, when
from ferryman.cli.unlisted import say_unread, ways_back
from ferryman.errors import UsageError
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferryman.plan import Flow, Plan


class By(enum.StrEnum):
    """What deliveries can be counted by."""

    REASON = "reason"


LIMIT = 50
"""Rows shown at once on a terminal."""

PIPE_LIMIT = 1000
"""And in a pipe: more are hardly wanted as text, and all of a million take gigabytes to align."""


def deliveries(
    plan: FlowSpec,
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

    If PLAN is a flow, the deliveries of each of its plans are listed, of each at most --limit; with --json each has the
    name of its plan. A plan that has no such --source or --destination is left out.

    --json writes all of them as they come, however many there are. As text the last line says how many more there are.
    -v also prints the tracebacks of unexpected errors.
    """
    from ferryman.cli.status import states_of
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file, spec_of

    loaded = load(plan)
    if incomplete and (status is not None or destination is not None or by is not None):
        raise UsageError("--incomplete goes with --source and --family only.")
    filters = chosen(status=status_name(status), destination=destination, source=source, family=family)
    query = DeliveryQuery(filters, incomplete, by, limit, state, json, verbose)
    states = states_of(loaded, state, plan_file(plan))
    if not isinstance(loaded, Flow):
        _are_nodes(f"plan {loaded.name}", [loaded], destination=destination, source=source)
        _list_of_plan(loaded, states[loaded.name][1], plan, query)
        return
    _are_nodes(f"flow {loaded.name}", loaded.plans, destination=destination, source=source)
    nodes = {name for name in (destination, source) if name is not None}
    concerned = {name: each for name, each in states.items() if nodes <= {n.name for n in each[0].nodes}}
    if json:
        json_lines({"plan": name, **row} for name, each in concerned.items() for row in query.rows(*each))
        return
    for number, (name, (each, root)) in enumerate(concerned.items()):
        if number:
            say()
        say(f"{name}:")
        _list_of_plan(each, root, spec_of(plan, loaded, each), query)


class DeliveryQuery(NamedTuple):
    """What is asked of deliveries; see the options of the command."""

    filters: dict[str, Any]
    incomplete: bool
    by: By | None
    limit: int | None
    state: str | None
    json: bool
    verbose: bool

    def rows(self, plan: Plan, root: StatePath) -> Iterable[dict[str, Any]]:
        """As ``--json`` has them; none if the plan never ran."""
        from ferryman import account
        from ferryman.account import families

        if not has_run(root):
            return []
        if self.incomplete:
            found = families.incomplete(root, plan, self.filters.get("source"), self.filters.get("family"))
            return (each._asdict() for each in found[: self.limit])
        if self.by is not None:
            return account.reasons(root, **self.filters, limit=self.limit, plan=plan)
        return account.each_delivery(root, **self.filters, limit=self.limit, plan=plan)


def _list_of_plan(loaded: Plan, root: StatePath, spec: str, query: DeliveryQuery) -> None:
    """The deliveries of one plan, which an operator names so."""
    if not has_run(root):
        note(f"{root}: there is no state here yet: nothing has run. Next: {command('run', spec, state=query.state)}")
    if query.json:
        json_lines(query.rows(loaded, root))
    elif not has_run(root):
        note("There are none.")
    elif query.incomplete:
        _list_incomplete(root, loaded, spec, query)
    elif query.by is not None:
        _list_reasons(query.rows(loaded, root))
    else:
        _list_deliveries(root, loaded, spec, query)


def _list_deliveries(root: StatePath, loaded: Plan, spec: str, query: DeliveryQuery) -> None:
    """A line for each, and what there is to say of them all."""
    from ferryman import account
    from ferryman.records.statuses import shown

    at_most = query.limit or _most_lines()
    rows = account.deliveries(root, **query.filters, limit=at_most + 1, plan=loaded)
    said = [{**row, "status": shown(row["status"], row["operation"])} for row in rows[:at_most]]
    _table(said, ("document", "source", "destination", "status", "attempt", "wave", "message"))
    if query.verbose:
        _say_tracebacks(said)
    if query.limit is None and len(rows) > at_most:
        _note_more(f"the {at_most} newest", account.number_of_deliveries(root, **query.filters, plan=loaded))
    listed_by_work = ways_back(loaded)
    if any(row["status"] in _ASKED and row["source"] in listed_by_work for row in rows):
        say_unread(loaded, root)
    if (family := query.filters.get("family")) is not None:
        _say_whether_whole(root, family, loaded, spec, query.state)


def _most_lines() -> int:
    return LIMIT if sys.stdout.isatty() else PIPE_LIMIT


_ASKED = ("FORCE", "RESTART")
"""Statuses of what an operator has asked for again and no wave has processed yet."""


def _list_reasons(rows: Iterable[dict[str, Any]]) -> None:
    columns = ("deliveries", "status", "example", "reason")
    if found := [[row[c] for c in columns] for row in rows]:
        table(columns, found)
    else:
        note("None: everything is delivered.")


def _note_more(shown: str, of: int) -> None:
    note(f"These are {shown} of {of}; --limit {of} or --json shows all of them.")


def _list_incomplete(root: StatePath, loaded: Plan, spec: str, query: DeliveryQuery) -> None:
    """Families that have not ended, and how to see more of one."""
    limit = query.limit or _most_lines()
    found = list(query._replace(limit=None).rows(loaded, root))
    if not found:
        note("None: every family is complete.")
        return
    table(tuple(found[0]), [list(each.values()) for each in found[:limit]])
    if len(found) > limit:
        _note_more(str(limit), len(found))
    say(f"Of one: {command('deliveries', spec, '--family', found[0]['family'], state=query.state)}")


def _say_whether_whole(root: StatePath, family: str, loaded: Plan, plan: str, state: str | None) -> None:
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


def _are_nodes(of: str, plans: Iterable[Plan], **options: str | None) -> None:
    """A name that no plan has is a slip of the pen, not a filter that nothing passes."""
    names = {n.name for plan in plans for n in plan.nodes}
    for option, name in options.items():
        if name is not None and name not in names:
            raise UsageError(f"--{option} {name}: {of} has {', '.join(sorted(names))}; name one of these.")


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
