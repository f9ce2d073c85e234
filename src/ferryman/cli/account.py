"""``ferryman deliveries`` and ``ferryman history``: what became of documents, and all that happened to one."""

from __future__ import annotations

import enum
import json as json_text
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

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
from ferryman.errors import UsageError
from ferryman.observe import counted, plural
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferryman.plan import Flow, Plan
    from ferryman.plan.load import Runnable
    from ferryman.plan.picture import BoxCounts


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
    from ferryman.records.rows import shown

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
    from ferryman.operations import follow
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
    from ferryman.records.rows import reason_of

    value = row[column]
    if column == "created":
        return when(value)
    return reason_of(value) if column == "message" and value else value


def _say_tracebacks(rows: list[dict[str, Any]]) -> None:
    """Of errors that nobody foresaw, each traceback once."""
    from ferryman.records.rows import reason_of, traceback_of

    said = set()
    for row in rows:
        trace = traceback_of(row["message"] or "")
        if trace and trace not in said:
            said.add(trace)
            say()
            say(f"{row['document']}: {reason_of(row['message'])}")
            for line in trace.splitlines():
                say(line)


# The picture of a plan, or of a flow, with what became of the documents in each box.

_GOOD: Final = ("delivered", "deleted", "dropped")
_BAD: Final = ("failed", "rejected", "in_doubt", "pending")


def svg_with_counts(
    plan: Runnable, states: Mapping[str, tuple[Plan, StatePath]], statuses: Mapping[str, Mapping[str, Any]]
) -> str:
    """The picture.

    Args:
        states: the plan, or those of a flow, by name, with the roots of their states.
        statuses: of each, as ``ferryman status --json`` shows it.
    """
    from ferryman.cli.options import has_run
    from ferryman.plan import Flow, picture

    boxes: dict[str, BoxCounts] = {}
    for name, (each, root) in states.items():
        for node, counts in _boxes(each, root, statuses[name]).items():
            boxes[picture.box_name(name, node) if isinstance(plan, Flow) else node] = counts
    waves = plural(sum(status["waves"] for status in statuses.values()), "wave", "waves")
    balanced = all(status["balanced"] for status in statuses.values())
    ran = any(has_run(root) for _, root in states.values())
    words = f"{waves}, {'balanced' if balanced else 'NOT BALANCED'}" if ran else "nothing has run yet"
    return picture.svg(plan, boxes, words)


def _boxes(plan: Plan, root: StatePath, status: Mapping[str, Any]) -> dict[str, BoxCounts]:
    """What stands in the boxes of a plan, by node."""
    from ferryman import account
    from ferryman.cli.options import has_run

    boxes = {name: _counts(numbers) for name, numbers in status["destinations"].items()}
    boxes |= {name: _of_source(numbers) for name, numbers in status["sources"].items()}
    if has_run(root):
        boxes |= {name: _counts(numbers) for name, numbers in account.by_node(root, plan).items()}
    return boxes


def _of_source(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    if "lag" in numbers:
        waiting = "" if not numbers["lag"] else f", {counted(numbers['lag'])} to come"
        return BoxCounts(f"{counted(numbers['read'])} read{waiting}")
    deleted = f", {counted(numbers['deleted'])} deleted" if numbers["deleted"] else ""
    return BoxCounts(plural(numbers["documents"], "document", "documents") + deleted)


def _counts(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    return BoxCounts(_words(numbers, _GOOD), _words(numbers, _BAD))


def _words(numbers: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counted(n)} {name.replace('_', ' ')}" for name in names if (n := numbers.get(name, 0)))


# ``ferryman fsck``: is every file of the state what was written?


def fsck(plan: PlanSpec, state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Verify every file of the state.

    What a large state keeps for `status` is counted again. Changes nothing, starts no Spark. Names what is damaged or
    missing and what can be done. Ends with 1 if there is any.
    """
    from ferryman.operations import check
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    findings = check(root)
    if json:
        json_line([{"path": str(f.path), "what": f.what, "remedy": f.remedy} for f in findings])
    else:
        for finding in findings:
            say(f"{finding.path}: {finding.what}; {finding.remedy}")
        say(f"{root}: {len(findings)} damaged or missing" if findings else f"{root}: all well")
    if findings:
        raise typer.Exit(1)


# ``ferryman state``: what keyed nodes hold.

app = typer.Typer(
    name="state",
    help="The states of keyed nodes: show, get.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Node = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The keyed node.")]


@app.command()
def show(
    plan: PlanSpec,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", show_default=False, help="A keyed node. Default: how many keys each has."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many keys.")] = 20,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show how many keys each keyed node has, or the first keys of one with their states."""
    from ferryman.account.families import key_counts, key_states

    loaded, root = _plan_and_root(plan, state)
    if name is None:
        counts = key_counts(root, loaded)
        if json:
            json_line(counts)
        elif counts:
            table(["node", "keys"], list(counts.items()))
        else:
            say("no keyed nodes")
        return
    rows = key_states(root, loaded, name, limit)
    if json:
        json_line([{**row, "value": json_text.loads(row["value"])} for row in rows])
    else:
        table(["key", "state", "sequence", "wave"], [list(row.values()) for row in rows])


@app.command()
def get(
    plan: PlanSpec,
    name: Node,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The key, exactly.")],
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print the state of a key as JSON. Ends with 1 if it has none."""
    loaded, root = _plan_and_root(plan, state)
    found = loaded.state(name, root.parent).entry(key)
    if json:
        json_line(None if found is None else found._asdict())
    elif found is None:
        say(f"{key}: no state")
    else:
        say(json_text.dumps(found.value, ensure_ascii=False))
    if found is None:
        raise typer.Exit(1)


def _plan_and_root(plan: str, state: Any) -> tuple[Any, Any]:
    """The plan, and the folder of its state."""
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    return loaded, state_root(loaded, state, plan_file(plan))


# ``ferryman status``: what became of everything, per destination, and whether the counts balance.

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
    from ferryman.account.questions import log_counts

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


# Says why documents wait that an operator has asked for again: nothing lists them.


def say_unread(plan: Plan, root: StatePath) -> None:
    """A line a source of which documents wait; see ``account.unread``."""
    from ferryman import account

    advice = ways_back(plan)
    for name, (documents, example) in account.unread(root, plan).items() if advice else ():
        many = f"{documents} documents wait until they are listed again, such as"
        one = "1 document waits until it is listed again:"
        say(f"source {name}: {many if documents > 1 else one} {example}. {advice[name]}")


def ways_back(plan: Plan) -> dict[str, str]:
    """Source -> how a document comes again that it does not list any more; of those that list only work."""
    from ferryman.plan import sources_of

    sources = [n for n in sources_of(plan.nodes) if not n.source.lists_all]
    return {n.name: n.source.comes_again for n in sources}
