"""Verbs that query the ledger: ``deliveries``, ``history``, ``status``, ``fsck`` and ``state``."""

from __future__ import annotations

import enum
import json as json_text
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ferryman.cli.options import (
    DestinationFilter,
    FlowSpec,
    Json,
    PlanSpec,
    ReasonFilter,
    SourceFilter,
    StateDir,
    StatusFilter,
    Verbose,
    argument,
    bounded,
    drop_unset,
    has_run,
    load_with_state,
    option,
    status_name,
)
from ferryman.cli.plan import print_retained
from ferryman.cli.terminal import (
    format_time,
    next_command,
    print_json,
    print_json_array,
    print_line,
    print_note,
    print_table,
)
from ferryman.errors import UsageError
from ferryman.limits import format_count, plural
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferryman.plan import Flow, Plan
    from ferryman.plan.load import Runnable


class By(enum.StrEnum):
    """Property that deliveries can be counted by."""

    REASON = "reason"
    UNREAD = "unread"


LIMIT = 50
"""Rows printed on a terminal by default."""

PIPE_LIMIT = 1000
"""Rows printed into a pipe by default: aligning the columns of a million rows takes gigabytes."""


FamilyFilter = Annotated[
    str | None, option("--family", "ID", "Only this document and everything made from it, or the rows of this file.")
]
Incomplete = Annotated[
    bool,
    typer.Option(
        "--incomplete",
        help="List documents (or files of rows) that are not complete.",
    ),
]
CountBy = Annotated[
    By | None,
    typer.Option(
        "--by",
        show_default=False,
        help="Count by reason what has not arrived; or what was not read of what has. With an example of each.",
    ),
]
Limit = Annotated[
    int | None,
    option(
        "--limit",
        "N",
        f"At most this many. Default: {LIMIT} on a terminal, {PIPE_LIMIT} in a pipe, with --json all.",
        min=1,
        callback=bounded,
    ),
]


def deliveries(
    plan: FlowSpec,
    status: StatusFilter = None,
    destination: DestinationFilter = None,
    source: SourceFilter = None,
    family: FamilyFilter = None,
    reason: ReasonFilter = None,
    incomplete: Incomplete = False,
    by: CountBy = None,
    limit: Limit = None,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List deliveries, newest first.

    One line for each delivery of a current document, with its latest event. Starts no Spark. Before them, as stopped,
    messages before which the plan has stopped: they have no deliveries yet. Then, as held, deletes that wait because a
    step failed for a part of the newer version: what they would delete was delivered, and is counted as that.

    A document with all that was made of it is a family; so are the rows of a file. With --family the last line says
    whether all of it has ended: complete, ended with so many failed or rejected, or incomplete, with how many are
    pending or in doubt. --incomplete lists the families that are not complete.

    --by reason counts: why deliveries have failed, were rejected or dropped, are pending or in doubt, the most frequent
    reason first, each with the id of one document. Reasons that differ only in numbers and quoted words are one.

    --by unread counts what was not read of delivered documents, such as comments or pages that are pictures: the words
    in their field unread, which extract_text sets. A document of which several things were not read counts for each.

    If PLAN is a flow, the deliveries of each of its plans are listed, of each at most --limit; with --json each has the
    name of its plan. A plan that has no such --source or --destination is left out.

    --json writes all of them as they come, however many there are. As text the last line says how many more there are.
    -v also prints the tracebacks of unexpected errors.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file, spec_of

    loaded = load(plan)
    if incomplete and any(each is not None for each in (status, destination, by, reason)):
        raise UsageError("--incomplete goes with --source and --family only.")
    if by is By.UNREAD and status is not None:
        raise UsageError("--by unread counts what is delivered: leave --status out.")
    filters = drop_unset(
        status=status_name(status), destination=destination, source=source, family=family, reason=reason
    )
    query = DeliveryQuery(filters, incomplete, by, limit, state, json, verbose)
    states = state_roots(loaded, state, plan_file(plan))
    if not isinstance(loaded, Flow):
        check_node_names(f"plan {loaded.name}", [loaded], destination=destination, source=source)
        _print_deliveries_of_plan(loaded, states[loaded.name][1], plan, query)
        return
    check_node_names(f"flow {loaded.name}", loaded.plans, destination=destination, source=source)
    nodes = {name for name in (destination, source) if name is not None}
    selected = {name: each for name, each in states.items() if nodes <= {n.name for n in each[0].nodes}}
    if json:
        print_json_array({"plan": name, **row} for name, each in selected.items() for row in query.rows(*each))
        return
    for number, (name, (each, root)) in enumerate(selected.items()):
        if number:
            print_line()
        print_line(f"{name}:")
        _print_deliveries_of_plan(each, root, spec_of(plan, loaded, each), query)


class DeliveryQuery(NamedTuple):
    """Options of ``ferryman deliveries``."""

    filters: dict[str, Any]
    incomplete: bool
    by: By | None
    limit: int | None
    state: str | None
    json: bool
    verbose: bool

    def rows(self, plan: Plan, root: StatePath) -> Iterable[dict[str, Any]]:
        """Yield the rows that ``--json`` prints; none if the plan never ran."""
        from ferryman import account
        from ferryman.account import families

        if not has_run(root):
            return []
        if self.incomplete:
            found = families.incomplete_families(root, plan, self.filters.get("source"), self.filters.get("family"))
            return (each._asdict() for each in found[: self.limit])
        if self.by is not None:
            count = account.reasons if self.by is By.REASON else account.not_read
            return count(root, **self.filters, limit=self.limit, plan=plan)
        return account.iter_deliveries(root, **self.filters, limit=self.limit, plan=plan)


def _print_deliveries_of_plan(loaded: Plan, root: StatePath, spec: str, query: DeliveryQuery) -> None:
    """Print the deliveries of one plan.

    Args:
        spec: the PLAN argument that names it, for suggested commands.
    """
    if not has_run(root):
        print_note(
            f"{root}: there is no state here yet: nothing has run. Next: {next_command('run', spec, state=query.state)}"
        )
    if query.json:
        print_json_array(query.rows(loaded, root))
    elif not has_run(root):
        print_note("There are none.")
    elif query.incomplete:
        _print_incomplete(root, loaded, spec, query)
    elif query.by is not None:
        _print_counts(query.rows(loaded, root), query.by)
    else:
        _print_deliveries(root, loaded, spec, query)


def _print_deliveries(root: StatePath, loaded: Plan, spec: str, query: DeliveryQuery) -> None:
    """Print a line for each delivery, then notes on all of them."""
    from ferryman import account
    from ferryman.records.rows import display_status

    at_most = query.limit or _default_limit()
    rows = account.deliveries(root, **query.filters, limit=at_most + 1, plan=loaded)
    listed = [{**row, "status": display_status(row["status"], row["operation"])} for row in rows[:at_most]]
    _print_rows(listed, ("document", "source", "destination", "status", "attempt", "wave", "message"))
    if query.verbose:
        _print_tracebacks(listed)
    if query.limit is None and len(rows) > at_most:
        _note_more(f"the {at_most} newest", account.count_deliveries(root, **query.filters, plan=loaded))
    listed_by_work = relisting_advice(loaded)
    if any(row["status"] in _REQUESTED and row["source"] in listed_by_work for row in rows):
        print_unread(loaded, root)
    if (family := query.filters.get("family")) is not None:
        _print_family_status(root, family, loaded, spec, query.state)


def _default_limit() -> int:
    return LIMIT if sys.stdout.isatty() else PIPE_LIMIT


_REQUESTED = ("FORCE", "RESTART")
"""Statuses of deliveries that an operator wants repeated and no wave has processed yet."""


def _print_counts(rows: Iterable[dict[str, Any]], by: By) -> None:
    columns = ("deliveries", "status", "example", "reason") if by is By.REASON else ("deliveries", "unread", "example")
    if cells := [[row[c] for c in columns] for row in rows]:
        print_table(columns, cells)
    else:
        print_note(f"None: everything is {'delivered' if by is By.REASON else 'read'}.")


def _note_more(printed: str, total: int) -> None:
    print_note(f"These are {printed} of {total}; --limit {total} or --json shows all of them.")


def _print_incomplete(root: StatePath, loaded: Plan, spec: str, query: DeliveryQuery) -> None:
    """Print the families that have not ended, and the command that shows one of them."""
    from ferryman.account.families import FamilyStatus

    limit = query.limit or _default_limit()
    families = list(query._replace(limit=None).rows(loaded, root))
    if not families:
        print_note("None: every family is complete.")
        return
    outcomes = [FamilyStatus(**each).outcome for each in families[:limit]]
    rows = [[*each.values(), outcome] for each, outcome in zip(families, outcomes, strict=False)]
    print_table((*families[0], "outcome"), rows)
    if len(families) > limit:
        _note_more(str(limit), len(families))
    print_line(f"Of one: {next_command('deliveries', spec, '--family', families[0]['family'], state=query.state)}")


_MOST_OLDER = 5
"""Deliveries of older versions that are named."""


def _print_family_status(root: StatePath, family: str, loaded: Plan, plan: str, state: str | None) -> None:
    """Print whether all deliveries of a family have ended, and the commands that list those that have not."""
    from ferryman import account
    from ferryman.account import families

    for status in families.family_statuses(root, family, loaded):
        verb = "has" if status.complete and status.unsuccessful else "is"
        print_line(f"{status.family} of source {status.source} {verb} {status.describe()}")
        for word in ("pending", "in_doubt", "failed", "rejected"):
            if getattr(status, word):
                listing = next_command("deliveries", plan, "--family", family, "--status", word, state=state)
                print_line(f"Which are {word.replace('_', ' ')}: {listing}")
    for each in account.stopped(root, loaded):
        if each["document"] == family:
            print_line(f"{family} of source {each['source']} has stopped the plan: what is behind it waits.")
            print_ways_on(plan, state)
    if older := families.older_deliveries(root, family, loaded):
        shown = ", ".join(f"{each.document} at {each.destination}" for each in older[:_MOST_OLDER])
        more = f" and {len(older) - _MOST_OLDER} more" if len(older) > _MOST_OLDER else ""
        print_line(
            f"Held from an older version, since a part of the newer one has failed: {shown}{more}. "
            "`ferryman retry PLAN`, or a later version, replaces or deletes them."
        )


def history(
    plan: FlowSpec,
    document: Annotated[str, argument("DOC", "Id of a document.")],
    limit: Limit = None,
    page: Annotated[
        int,
        typer.Option("--page", metavar="N", min=1, callback=bounded, help="1: the newest events; 2: those before."),
    ] = 1,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Tell all that happened to a document.

    Events of it and its family, oldest first: the newest --limit of them, with --page 2 those before. Starts no Spark.
    If PLAN is a flow, it is followed: through each plan that knows it, and the messages made of it through the plans
    behind.
    """
    from ferryman import account
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file
    from ferryman.state.state import state_root

    loaded = load(plan)
    if isinstance(loaded, Flow):
        _print_flow_history(loaded, plan, document, EventPage(limit, page), state, json)
        return
    root = state_root(loaded, state, plan_file(plan))
    of_page = EventPage(limit or (None if json and page == 1 else _default_limit()), page)
    found = account.history(root, document, plan=loaded, limit=of_page.needed) if has_run(root) else []
    events = of_page.select(found)
    if json:
        print_json(events)
    if not found:
        nearest = account.nearest_documents(root, document, loaded) if has_run(root) else []
        commands = ", ".join(f"`{next_command('history', plan, each, state=state)}`" for each in nearest)
        meant = f" Nearest: {commands}." if nearest else ""
        listing = next_command("deliveries", plan, state=state)
        raise UsageError(
            f"{document}: there is no such document in the state {root}.{meant} `{listing}` lists its documents."
        )
    if not events:
        raise UsageError(f"{document}: page {page} is empty: it has {len(found)} events.")
    if not json:
        _print_rows(events, ("created", "wave", "document", "destination", "operation", "status", "attempt", "message"))
        _print_tracebacks(events)
        of_page.note_earlier(found)
        print_line()
        last = found[-1]
        version = last["version"] or "unknown"
        print_line(f"{document}: version {version}, revision {last['revision']}, from source {last['source']}")
        origin = last["origin"] if document in (last["document"], last["origin"]) else document
        _print_family_status(root, origin, loaded, plan, state)


class EventPage(NamedTuple):
    """Page of a document's events: ``--limit`` and ``--page``; without a limit all of them."""

    limit: int | None
    number: int

    @property
    def needed(self) -> int | None:
        """Number of the newest events to read: one more than all pages so far have."""
        return None if self.limit is None else self.limit * self.number + 1

    def select(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the events of this page.

        Args:
            events: the newest events, oldest first.
        """
        if self.limit is None:
            return events
        end = len(events) - self.limit * (self.number - 1)
        return events[max(0, end - self.limit) : max(0, end)]

    def note_earlier(self, events: list[dict[str, Any]]) -> None:
        """Say how to see the events before this page, if there are any."""
        if self.needed is not None and len(events) >= self.needed:
            print_note(f"There are earlier events: --page {self.number + 1} shows them, --json all.")


def _print_flow_history(flow: Flow, spec: str, document: str, of_page: EventPage, state: StateDir, json: bool) -> None:
    """Print a document's history in all plans of a flow."""
    from ferryman.operations import follow
    from ferryman.plan.load import plan_file
    from ferryman.state.state import state_root

    found = follow(flow, {flow.label(p): state_root(p, state, plan_file(spec)) for p in flow.plans}, document)
    of_page = of_page._replace(limit=of_page.limit or (None if json and of_page.number == 1 else _default_limit()))
    events = of_page.select(found)
    if json:
        print_json(events)
    if not found:
        raise UsageError(f"{document}: no plan of flow {flow.name} knows such a document.")
    if not json:
        columns = ("created", "plan", "wave", "document", "destination", "operation", "status", "attempt", "message")
        _print_rows(events, columns)
        _print_tracebacks(events)
        of_page.note_earlier(found)


def check_node_names(owner: str, plans: Iterable[Plan], **filters: str | None) -> None:
    """Raise UsageError for a name that no plan has: it is a typo, not a filter that nothing passes."""
    names = {n.name for plan in plans for n in plan.nodes}
    for name_of_option, name in filters.items():
        if name is not None and name not in names:
            raise UsageError(f"--{name_of_option} {name}: {owner} has {', '.join(sorted(names))}; name one of these.")


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if any(row["route"] for row in rows):  # it distinguishes copies of one document at one destination
        at = columns.index("destination") + 1
        columns = (*columns[:at], "route", *columns[at:])
    if rows:
        print_table(columns, [[_cell(row, c) for c in columns] for row in rows])
    else:
        print_note("There are none.")


def _cell(row: dict[str, Any], column: str) -> Any:
    from ferryman.records.rows import reason_of

    value = row[column]
    if column == "created":
        return format_time(value)
    return reason_of(value) if column == "message" and value else value


def _print_tracebacks(rows: list[dict[str, Any]]) -> None:
    """Print the tracebacks of unexpected errors, each once."""
    from ferryman.records.rows import reason_of, traceback_of

    printed = set()
    for row in rows:
        trace = traceback_of(row["message"] or "")
        if trace and trace not in printed:
            printed.add(trace)
            print_line()
            print_line(f"{row['document']}: {reason_of(row['message'])}")
            for line in trace.splitlines():
                print_line(line)


# --- ferryman fsck ---


def fsck(plan: PlanSpec, state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Verify every file of the state.

    What a large state keeps for `status` is counted again. Changes nothing, starts no Spark. Names what is damaged or
    missing and what can be done. Ends with 1 if there is any.
    """
    from ferryman.operations import check

    _, root = load_with_state(plan, state)
    findings = check(root)
    if json:
        print_json([{"path": str(f.path), "what": f.what, "remedy": f.remedy} for f in findings])
    else:
        for finding in findings:
            print_line(f"{finding.path}: {finding.what}; {finding.remedy}")
        print_line(f"{root}: {len(findings)} damaged or missing" if findings else f"{root}: all well")
    if findings:
        raise typer.Exit(1)


# --- ferryman state: the states of keyed nodes ---

app = typer.Typer(
    name="state",
    help="The states of keyed nodes: show, get.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Node = Annotated[str, argument("NAME", "The keyed node.")]


@app.command()
def show(
    plan: PlanSpec,
    name: Annotated[str | None, argument("[NAME]", "A keyed node. Default: how many keys each has.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many keys.")] = 20,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show how many keys each keyed node has, or the first keys of one with their states."""
    from ferryman.account.families import key_counts, key_states

    loaded, root = load_with_state(plan, state)
    if name is None:
        counts = key_counts(root, loaded)
        if json:
            print_json(counts)
        elif counts:
            print_table(["node", "keys"], list(counts.items()))
        else:
            print_line("no keyed nodes")
        return
    rows = key_states(root, loaded, name, limit)
    if json:
        print_json([{**row, "value": json_text.loads(row["value"])} for row in rows])
    else:
        print_table(["key", "state", "sequence", "wave"], [list(row.values()) for row in rows])


@app.command()
def get(
    plan: PlanSpec,
    name: Node,
    key: Annotated[str, argument("KEY", "The key, exactly.")],
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print the state of a key as JSON. Ends with 1 if it has none."""
    loaded, root = load_with_state(plan, state)
    entry = loaded.state(name, str(root.parent)).entry(key)
    if json:
        print_json(None if entry is None else entry._asdict())
    elif entry is None:
        print_line(f"{key}: no state")
    else:
        print_line(json_text.dumps(entry.value, ensure_ascii=False))
    if entry is None:
        raise typer.Exit(1)


# --- ferryman status: counts for each source and destination, and whether they balance ---

SOURCE = ("documents", "deleted", "again")
DESTINATION = ("delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt")
NEEDS_OPERATOR = ("failed", "rejected", "in_doubt")
"""Counts that need an operator's attention."""


def status(
    plan: FlowSpec,
    state: StateDir = None,
    svg: Annotated[Path | None, option("--svg", "FILE", "Also draw the plan into this file, with the counts.")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Count what became of all documents.

    Per destination: delivered, deleted, dropped, failed, rejected, pending, in_doubt. Starts no Spark. Counts are of
    deliveries of the current version of each document. pending is everything that still has to be sent, tried or not;
    in_doubt was in flight, at-most-once, when it was killed: sent or not, the destination did not say.

    The first lines say whether a run is active, and what it is doing. What is pending is counted by what it waits for:
    which step or destination, why, since when, and when it is tried again.

    If PLAN is a flow, this is said of each of its plans; with --json the object has flow and plans: by name, each
    plan's own.

    With --svg the picture has the documents of each source, what became of them at each destination, and at each step
    and router the deliveries of which the reason names it.
    """
    from ferryman.counted_picture import svg_with_counts
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file, spec_of

    loaded = load(plan)
    loaded.check()
    states = state_roots(loaded, state, plan_file(plan))
    for _, root in states.values():
        if not has_run(root):
            print_note(
                f"{root}: there is no state here yet: nothing has run. Next: {next_command('run', plan, state=state)}"
            )
    statuses = {name: plan_status(each, root) for name, (each, root) in states.items()}
    if svg is not None:
        svg.write_text(svg_with_counts(loaded, states, statuses), "ascii")
    if json:
        print_json({"flow": loaded.name, "plans": statuses} if isinstance(loaded, Flow) else statuses[loaded.name])
        return
    for number, (name, (each, root)) in enumerate(states.items()):
        if number:
            print_line()
        _print_report(
            statuses[name], each, root, spec_of(plan, loaded, each) if isinstance(loaded, Flow) else plan, state
        )


def state_roots(plan: Runnable, state: str | None, file: Path | None) -> dict[str, tuple[Plan, StatePath]]:
    """Return the plan, or those of a flow in the order of their turns, by name, with the roots of their states."""
    from ferryman.plan import Flow
    from ferryman.state.state import state_root

    plans = {plan.label(each): each for each in plan.order} if isinstance(plan, Flow) else {plan.name: plan}
    return {name: (each, state_root(each, state, file)) for name, each in plans.items()}


def plan_status(plan: Plan, root: StatePath) -> dict[str, Any]:
    """Return the status of a plan; zeros if it never ran."""
    from ferryman import account

    if not has_run(root):
        return empty_status(plan)
    counts = account.status(root, plan)
    return {**counts, **account.activity(root, plan, counts)}


def _print_report(found: dict[str, Any], plan: Plan, root: StatePath, spec: str, state: str | None) -> None:
    """Print the status of one plan, and commands for what needs attention."""
    from ferryman import account

    ran = has_run(root)
    _print_status(found, account.waves(root, plan=plan) if ran else [], ran, spec, state)
    if any(numbers["pending"] for numbers in found["destinations"].values()):
        print_unread(plan, root)
        again = next_command("run" if found["running"] is None else "retry", spec, state=state)
        print_line(f"To try what is pending now: {again}")
    if found["stopped"]:
        print_ways_on(spec, state)
    if found["held"]:
        held = plural(found["held"], "delete is held", "deletes are held")
        listing = next_command("deliveries", spec, "--status", "held", state=state)
        print_line(f"{held}, since a step failed for a part of the newer version. Which, and why: {listing}")
    for name in NEEDS_OPERATOR:
        if any(numbers[name] for numbers in found["destinations"].values()):
            print_line(f"Which are {name}, and why: {next_command('deliveries', spec, '--status', name, state=state)}")
    if ran:
        print_targets(plan, root, spec, state)
    if ran and account.has_not_read(root, plan):
        listing = next_command("deliveries", spec, "--by", "unread", state=state)
        print_line(f"Some documents were delivered without all of their content. What was not read: {listing}")


def print_ways_on(spec: str, state: str | None) -> None:
    """Print the commands for a plan that has stopped before a message."""
    print_line(f"Once what failed is fixed, the next run tries it again: {next_command('run', spec, state=state)}")
    print_line(
        f"To count it as failed if it fails again, and go on: {next_command('queue', 'skip', spec, state=state)}"
    )


def print_targets(plan: Plan, root: StatePath, spec: str, state: str | None) -> None:
    """Print which targets are not those that were delivered to, and which were verified."""
    from ferryman.errors import StateDamaged
    from ferryman.state.targets import AHEAD, load_targets, load_verified

    try:
        targets, verified = load_targets(root), load_verified(root)
    except StateDamaged as e:
        print_note(e)
        return
    names = {node.name for node in plan.nodes}
    for name in sorted(names & targets.keys()):
        if (target := targets[name]).needs_verification:
            ahead = target.trouble == AHEAD and target.found is None
            repair = next_command(*(("adopt", spec) if ahead else ("verify", spec, "--repair")), state=state)
            since = format_time(target.noticed_first)
            print_line(f"The target of {name} {target.describe()} (found {since} UTC). Next: {repair}")
    for name in sorted(names & verified.keys()):
        if (clean := verified[name].clean) is not None:
            print_line(
                f"{name} was verified up to wave {clean.wave} ({format_time(clean.at)} UTC): nothing was missing."
            )
        failed = verified[name].failed
        if failed is not None and (clean is None or clean.at < failed.at):
            print_line(
                f"{name}: {format_count(failed.differing)} of {format_count(failed.compared)} deliveries differed at "
                f"{format_time(failed.at)} UTC. Next: {next_command('verify', spec, state=state)}"
            )
        if (sampled := verified[name].sampled) is not None and (clean is None or clean.at < sampled.at):
            print_line(
                f"{name}: a sample of {format_count(sampled.compared)} was all there ({format_time(sampled.at)} UTC)."
            )


def empty_status(plan: Plan) -> dict[str, Any]:
    """Return the status of a plan that never ran: all counts are zero, and it is balanced."""
    from ferryman.state.logs import log_counts

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
        "running": None,
        "pending_reasons": [],
        "stopped": [],
        "held": 0,
        "verified": {},
    }


def _log_columns(numbers: dict[str, Any]) -> tuple[str, int, int | str]:
    """Return a log's position, the number of entries read, and the number to come."""
    positions = numbers["positions"]
    single = len(positions) == 1
    places = ", ".join(str(place) if single else f"{partition} {place}" for partition, place in positions.items())
    return places, numbers["read"], "unknown" if numbers["lag"] is None else numbers["lag"]


def print_unseen_deletes(status: dict[str, Any]) -> None:
    """Print which sources do not see every delete, as ``status --json`` shows it."""
    for name, which in status.get("unseen_deletes", {}).items():
        print_line(f"{name} does not see every delete: {which}")
        print_line()


def describe_run(running: Mapping[str, Any]) -> str:
    """Return which run is active, and what it is doing.

    Args:
        running: ``running`` of ``status --json``.
    """
    process = f"process {running['pid']} on {running['host']} since {format_time(running['since'])} UTC"
    if running["phase"]:
        total = f" of {format_count(running['expected'])}" if running["expected"] else ""
        done = f", {format_count(running['done'])}{total} done" if running["done"] else ""
        doing = f"wave {running['wave']}, {running['phase']} since {format_time(running['phase_since'])}{done}"
    elif running["until"]:
        doing = f"it waits until {format_time(running['until'])}"
    else:
        doing = "it is between two waves"
    numbers = [format_count(running[name]) for name in ("delivered", "pending", "failed")]
    so_far = "{} delivered, {} pending, {} failed or rejected".format(*numbers)
    return f"A run is active: {process}: {doing}. So far: {so_far}."


def _print_pending(reasons: list[dict[str, Any]], is_active: bool) -> None:
    """Print what pending deliveries wait for."""
    columns = ("waits for", "deliveries", "since", "next try", "reason")
    rows = [
        (
            row["node"],
            row["deliveries"],
            format_time(row["since"]),
            format_time(row["next_try"]) or ("soon" if is_active else "the next run"),
            row["reason"],
        )
        for row in reasons
    ]
    print_table(columns, rows)
    print_line()


def _print_stopped(stopped: list[dict[str, Any]]) -> None:
    """Print the messages that the plan has stopped before."""
    columns = ("log", "stops before", "attempt", "since", "reason")
    print_table(
        columns, [(s["source"], s["document"], s["attempt"], format_time(s["since"]), s["reason"]) for s in stopped]
    )
    print_line()


def _print_status(
    found: dict[str, Any], waves: Sequence[Mapping[str, Any]], ran: bool, spec: str, state: str | None
) -> None:
    waves_text = "1 wave" if found["waves"] == 1 else f"{format_count(found['waves'])} waves"
    print_line(f"plan {found['plan']}, version {found['version']}: {waves_text}")
    if (running := found["running"]) is not None:
        print_line(describe_run(running))
    elif ran:
        print_line(f"No run is active. Next: {next_command('run', spec, state=state)}")
    print_line()
    listed = {name: numbers for name, numbers in found["sources"].items() if "lag" not in numbers}
    if listed:
        print_table(("source", *SOURCE), [(name, *(numbers[c] for c in SOURCE)) for name, numbers in listed.items()])
        print_line()
    logs = {name: numbers for name, numbers in found["sources"].items() if "lag" in numbers}
    if logs:
        print_table(
            ("log", "next", "read", "to come"), [(name, *_log_columns(numbers)) for name, numbers in logs.items()]
        )
        print_line()
    print_retained(found)
    print_unseen_deletes(found)
    print_table(
        ("destination", *DESTINATION),
        [(name, *(numbers[c] for c in DESTINATION)) for name, numbers in found["destinations"].items()],
    )
    print_line()
    if found.get("remembered"):
        kept = ("answers", "bytes", "calls", "hits", "in_doubt", "spent", "saved")
        print_table(
            ("step remembers", *kept[:5], "spent, $", "saved, $"),
            [(name, *(counts[c] for c in kept)) for name, counts in found["remembered"].items()],
        )
        print_line()
    if found["pending_reasons"]:
        print_line("Pending, and why:")
        _print_pending(found["pending_reasons"], running is not None)
    if found["stopped"]:
        print_line("The plan has stopped before a message that failed; those behind it wait:")
        _print_stopped(found["stopped"])
    if waves:
        print_line("The last waves:")
        columns = list(waves[0])
        print_table(columns, [[format_time(w[c]) if c == "created" else w[c] for c in columns] for w in waves])
        print_line()
    if not ran:
        print_line("Nothing has run yet: there is nothing to balance.")
    elif found["balanced"]:
        pending = sum(numbers["pending"] for numbers in found["destinations"].values())
        but = "" if not pending else f" {plural(pending, 'delivery is', 'deliveries are')} still pending."
        print_line(f"Balanced: every document is accounted for at every destination that its source reaches.{but}")
    else:
        print_line(
            "NOT BALANCED: some deliveries are unaccounted for. If a destination was added with --accept-changes, "
            f"`{next_command('retry', spec, '--force', state=state)}` sends it the existing documents; otherwise "
            f"`{next_command('fsck', spec, state=state)}` looks for damage."
        )


# --- documents that an operator wants repeated and that no source lists ---


def print_unread(plan: Plan, root: StatePath) -> None:
    """Print a line for each source with documents that wait to be listed again; see ``account.unread``."""
    from ferryman import account

    advice = relisting_advice(plan)
    for name, (documents, example) in account.unread(root, plan).items() if advice else ():
        several = f"{format_count(documents)} documents wait until they are listed again, such as"
        single = "1 document waits until it is listed again:"
        print_line(f"source {name}: {several if documents > 1 else single} {example}. {advice[name]}")


def relisting_advice(plan: Plan) -> dict[str, str]:
    """Return, for each source that lists only work: source -> how to have it list a document again."""
    from ferryman.plan import sources_of

    sources = [n for n in sources_of(plan.nodes) if not n.source.lists_all]
    return {n.name: n.source.comes_again for n in sources}
