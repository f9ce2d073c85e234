"""``ferryman plan`` checks and draws plans; ``ferryman preview`` shows what a run would do."""

from __future__ import annotations

import enum
import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli import terminal
from ferryman.cli.options import (
    Conf,
    FlowSpec,
    Has,
    Json,
    Master,
    PlanSpec,
    StateDir,
    Verbose,
    load_with_state,
    option,
    resource_settings,
    spark_settings,
)
from ferryman.cli.terminal import CODE, Interrupt, next_command, print_block, print_json, print_line
from ferryman.errors import UsageError, message_of
from ferryman.observe import one_line

if TYPE_CHECKING:
    from ferryman.engine.preview import Expected, Preview
    from ferryman.plan import DestinationNode
    from ferryman.plan.load import Runnable


app = typer.Typer(name="plan", help="Check or draw a plan.", no_args_is_help=True, rich_markup_mode=None)


class Format(enum.StrEnum):
    """Output format of a drawn plan."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


@app.command()
def check(
    plan: FlowSpec,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Ask each destination, too, as a run does first: tables and indexes are made if missing."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Say what is wrong with a plan.

    Reads no documents, starts no Spark. Every reason for which it cannot run is an error, and the command ends with
    2. Warnings refuse nothing. Of a flow all plans are checked, and what joins them.
    With --connect it ends with 4 if a destination cannot be written to now.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load

    loaded = load(plan)
    warnings = loaded.check()
    for warning in warnings:
        print_line(f"warning: {warning}")
    result = f"{len(warnings)} {'warning' if len(warnings) == 1 else 'warnings'}" if warnings else "all well"
    if isinstance(loaded, Flow):
        order = ", ".join(f"{loaded.label(each)} ({len(each.nodes)} nodes)" for each in loaded.order)
        print_line(f"flow {loaded.name}: {order}: {result}")
    else:
        print_line(f"plan {loaded.name}, version {loaded.version}: {len(loaded.nodes)} nodes, {result}")
    if not connect:
        print_line("The destinations were not asked: --connect asks them.")
    elif not _ask_destinations(loaded):
        raise typer.Exit(4)


@app.command()
def remove(
    plan: PlanSpec,
    state: StateDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without, it is only listed.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List what a plan has left in other systems, such as replication slots; with --yes, remove it.

    For a plan that will not run again: its sources could not go on from where they were, and what it still had to
    deliver might come twice. What was delivered stays. The state is not touched; once this is done, its folder may be
    deleted.
    """
    from ferryman.operations import list_retained, remove_retained

    loaded, root = load_with_state(plan, state)
    loaded.check()
    found = (remove_retained if yes else list_retained)(loaded, state=root.parent)
    if json:
        print_json({"removed": yes, "retained": [each._asdict() for each in found]})
        return
    for each in found:
        print_line(f"{'removed' if yes else 'there is'} {each.place}")
    if not found:
        print_line("There is nothing of this plan in other systems.")
    elif yes:
        print_line(f"The state is still there: {root}")
    else:
        print_line(f"To remove it: {next_command('plan remove', plan, '--yes', state=state)}")


def print_retained(status: dict[str, Any]) -> None:
    """Print what other systems keep for a plan's sources, as ``status --json`` shows it."""
    from ferryman.observe import format_size

    for name, kept in status.get("retained", {}).items():
        for each in kept:
            print_line(f"{name}: {each['place']} holds {format_size(each['bytes'])}.")
            if each["warning"]:
                print_line(f"warning: {each['warning']}")
        print_line()


def _ask_destinations(plan: Runnable) -> bool:
    """Print of each destination whether it can be written to now; return whether all can."""
    from ferryman.plan import DestinationNode, Flow

    all_well = True
    for each in plan.order if isinstance(plan, Flow) else [plan]:
        label = f"{plan.label(each)}: " if isinstance(plan, Flow) else ""
        for node in each.nodes:
            if isinstance(node, DestinationNode):
                try:
                    node.destination.check()
                    print_line(f"{label}destination {node.name}: it can be written to")
                    if risk := node.destination.durability_risk():
                        print_line(f"warning: {label}destination {node.name}: {_where_it_ends(node)} {risk}")
                except Exception as e:
                    all_well = False
                    print_line(f"{label}destination {node.name}: {message_of(e)}")
    return all_well


def _where_it_ends(node: DestinationNode) -> str:
    """Return the beginning of a warning that a target may lose what it has confirmed."""
    if node.policy.guarantee.value == "exactly-once":
        return "exactly-once ends where the server loses what it has confirmed:"
    return "the server may lose what it has confirmed:"


@app.command()
def show(
    plan: FlowSpec,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,  # noqa: A002 - the option's name
    counts: Annotated[
        bool, typer.Option("--counts", help="In an SVG picture, also what became of the documents.")
    ] = False,
    fingerprint: Annotated[str | None, option("--fingerprint", "NODE", "List what counts as this node's code.")] = None,
    state: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Draw a plan.

    From its sources, through its steps, to its destinations: as a tree of lines, as a Mermaid flowchart (GitHub draws
    it), as an SVG picture, or as JSON. A plan that `plan check` refuses is drawn too. Of a flow all plans are drawn, in
    the order of their turns, and what joins them.

    With --fingerprint, list instead what a run compares with the run before, to notice that a node's code has changed:
    its own code, and what that reaches, each with a hash or a version; then what it reads and a run cannot see.
    """
    from ferryman.plan import picture
    from ferryman.plan.load import load

    loaded = load(plan)
    if fingerprint is not None:
        _print_fingerprint(loaded, fingerprint)
        return
    if counts and format is not Format.SVG:
        raise UsageError("--counts goes with --format svg; `ferryman status PLAN` shows them as text.")
    match format:
        case Format.TEXT:
            print_block(picture.text(loaded))
        case Format.MERMAID:
            print_block(picture.mermaid(loaded))
        case Format.SVG:
            drawn = _with_counts(loaded, state, plan) if counts else picture.svg(loaded)
            print_block(drawn.rstrip("\n"))
        case Format.JSON:
            print_json(picture.as_json(loaded))


def _print_fingerprint(loaded: Runnable, name: str) -> None:
    from ferryman.plan import Flow
    from ferryman.plan.reach import reach_of
    from ferryman.plan.structure import CODE, structure

    plans = loaded.plans if isinstance(loaded, Flow) else [loaded]
    found = [(plan, node) for plan in plans for node in plan.nodes if node.name == name]
    if not found:
        names = ", ".join(node.name for plan in plans for node in plan.nodes)
        raise UsageError(f"--fingerprint: there is no node {name}; there are {names}.")
    for plan, node in found:
        record = structure(plan)[name]
        if record.reaches is None:
            raise UsageError(f"--fingerprint: {name} is a {node.kind}, of which the class counts: {record.type}.")
        print_line(f"{CODE}: {record.code}")
        for fact, value in record.reaches.items():
            print_line(f"{fact}: {value}" if not fact.startswith("package ") else f"{fact} {value}")
        for unseen in reach_of(node).unseen:
            print_line(f"not covered: {unseen}")


def _with_counts(plan: Runnable, state: str | None, spec: str) -> str:
    from ferryman.cli.account import plan_status, state_roots
    from ferryman.counted_picture import svg_with_counts
    from ferryman.plan.load import plan_file

    plan.check()
    states = state_roots(plan, state, plan_file(spec))
    return svg_with_counts(plan, states, {name: plan_status(*each) for name, each in states.items()})


# --- ferryman preview: what a run would do, shown on a few documents ---

LIMIT = 20
"""Documents transformed by default: as many as a user reads."""

REASONS = {
    "new": "new",
    "changed": "changed",
    "retry": "to be tried again",
    "forced": "asked for by `retry --force`",
    "again": "processed in every run",
    "gone": "deleted at the source",
    "unchanged": "unchanged",
    "later": "failed, not due yet",
}


Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Transform at most this many documents.")]
OnlyDocument = Annotated[
    str | None, option("--doc", "ID", "Transform only the document with this id, even if a run would skip it.")
]


OnlyText = Annotated[
    bool,
    typer.Option("--text", help="With --doc: print only the text that destinations get, and what was not read of it."),
]


def preview(
    plan: FlowSpec,
    limit: Limit = LIMIT,
    document: OnlyDocument = None,
    text: OnlyText = False,
    state: StateDir = None,
    master: Master = "local[*]",
    conf: Conf = None,
    has: Has = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show what a run would do, on a few documents.

    Lists the sources and runs the steps. Says of each destination what it would get, what would be dropped, refused or
    fail, and why. Writes nothing, calls no destination, and may be used beside a run. Its scratch files go where TMPDIR
    says (on a cluster: a folder that executors see, too) and are removed.

    Of a flow each plan is previewed by itself, with what its queues have now.

    Steps that remember are not called. Of all documents that the run would process it is counted how many need a call,
    and what these cost: for that all of them go through the steps before.

    With --json the output is one JSON object, of a flow {"flow", "plans": {NAME: such an object}}:

    \b
    plan, version    of the plan
    limit, document  as asked for; limit is null with --doc
    documents        those that were transformed: source, document (the id), and
                     reason: new, changed, retry, forced, again, gone; with
                     --doc, if a run would leave it alone, unchanged or later
    destinations     by name: the lists gets, dropped, refused, errors, and
                     uncalled (what needs a paid call first); and
                     waiting, how many rows of earlier waves it gets first
    calls            of each step that remembers: step, documents (that come to
                     it), need (a call), calls (of different inputs), cost ($)
    more             how many more documents the run would process, by reason
    unread           how many more it would read, to see if they have changed
    stopped          why it would stop: the plan has changed; the rest is what
                     it would do if told to go on
    complete         false if a listing is incomplete
    messages         what else you should know

    \b
    Each row of the lists has source, document, parent, origin, version,
    revision, operation, route, branches, delivery_hash and attempt, as the
    ledger would. What a destination gets has fields, text (null if there is
    none, or if it is not UTF-8) and bytes (its size), too; the others have
    status and message, and errors have attempts, the most that there can be.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load, plan_file, spec_of

    settings = {**resource_settings(has), **spark_settings(conf)}
    loaded = load(plan)
    if document is not None and isinstance(loaded, Flow):
        example = terminal.next_command(
            "preview", spec_of(plan, loaded, loaded.plans[0]), "--doc", document, state=state
        )
        raise UsageError(f"--doc is for one plan of flow {loaded.name}, as in {example}.")
    if text and document is None:
        raise UsageError("--text is for one document: give its id with --doc.")
    previews = _run_preview(
        loaded, plan_file(plan), state, verbose=verbose, limit=limit, document=document, master=master, conf=settings
    )
    if json:
        objects = {name: each.as_dict() for name, each in previews.items()}
        terminal.print_json(
            {"flow": loaded.name, "plans": objects} if isinstance(loaded, Flow) else objects[loaded.name]
        )
        return
    for name, each in previews.items():
        if isinstance(loaded, Flow):
            terminal.print_line(f"plan {name}")
        if text:
            _print_texts(each)
        else:
            _print_preview(each, verbose)
    if text:
        return
    terminal.print_line(f"Nothing was written. To do it: {terminal.next_command('run', plan, state=state)}")


def _run_preview(
    plan: Runnable, file: Path | None, state: str | None, *, verbose: bool = False, **options: Any
) -> dict[str, Preview]:
    """Preview a plan, or each of a flow, with progress on stderr; return the previews by plan name.

    Raises:
        typer.Exit: with 130, when the user interrupts.
    """
    from ferryman.observe import logging_to, progress_observer
    from ferryman.plan import Flow
    from ferryman.state.state import state_root

    for warning in plan.check():
        if verbose:
            terminal.print_note(f"warning: {warning}")
    folder = state_root(plan.plans[0] if isinstance(plan, Flow) else plan, state, file).parent
    with Interrupt() as interrupt:
        try:
            with progress_observer(sys.stderr, verbose) as observer, logging_to(observer, verbose):
                options |= {"state": folder, "observer": interrupt.interruptible(observer)}
                if isinstance(plan, Flow):  # the import loads Spark: after everything that can be refused without it
                    from ferryman.engine.preview import preview_flow

                    del options["document"]
                    return preview_flow(plan, **options)
                from ferryman.engine.preview import preview

                return {plan.name: preview(plan, **options)}
        except BaseException:
            if not interrupt.requested:
                raise
            interrupt.print_note("interrupted: nothing was written.")
            raise typer.Exit(CODE) from None


def _print_preview(found: Preview, verbose: bool) -> None:
    """Print a preview as text; ``verbose`` adds tracebacks."""
    from ferryman.remembered.bill import describe_need

    print_text = _print_styled if sys.stdout.isatty() else terminal.print_line
    terminal.print_line(_heading(found))
    for call in found.calls:
        terminal.print_line(describe_need(call))
    for name, expected in found.destinations.items():
        for text in _destination_lines(name, expected, verbose):
            print_text(text)
    if found.more:
        more = ", ".join(f"{count} {REASONS[reason]}" for reason, count in found.more.items())
        terminal.print_line(f"A run would process {sum(found.more.values())} more: {more}")
    if found.unread:
        terminal.print_line(f"It would read {found.unread} more known documents, to see whether they have changed.")


def _print_texts(found: Preview) -> None:
    """Print the texts of a document and its children, with what was not read of them; then what is refused, and why."""
    from ferryman.steps.formats import clean

    printed: set[tuple[str, str | None]] = set()
    for expected in found.destinations.values():
        for row in expected.gets:
            if row["operation"] == "delete" or (row["document"], row["text"]) in printed:
                continue
            printed.add((row["document"], row["text"]))
            terminal.print_line(f"--- {row['document']}")
            if unread := _unread(row["fields"] or {}):
                terminal.print_line(f"--- not read: {', '.join(unread)}")
            if row["text"]:
                terminal.print_block(clean(row["text"], verbatim=True))  # without codes for the terminal
            elif row["bytes"]:
                terminal.print_line(f"{row['bytes']} bytes that are not UTF-8 text")
    for reason in dict.fromkeys(
        f"--- {row['document']}: {_reason(row)}"
        for expected in found.destinations.values()
        for rows in (expected.dropped, expected.refused, expected.errors)
        for row in rows
    ):
        terminal.print_line(reason)


def _unread(fields: dict[str, Any]) -> list[str]:
    """Return what ``extract_text`` has left out, whatever prefix its fields have."""
    lists = (value for name, value in fields.items() if name.endswith("unread") and isinstance(value, list))
    return [str(each) for values in lists for each in values]


def _heading(found: Preview) -> str:
    """Format the heading: ``3 documents: 2 new, 1 changed``."""
    if not found.documents:
        return "A run would process nothing: nothing has changed since the last one, and nothing is due."
    counts: dict[str, int] = {}
    for each in found.documents:
        counts[each["reason"]] = counts.get(each["reason"], 0) + 1
    what = ", ".join(f"{count} {REASONS[reason]}" for reason, count in counts.items())
    number = len(found.documents)
    return f"{number} {'document' if number == 1 else 'documents'}: {what}"


def _destination_lines(name: str, expected: Expected, verbose: bool) -> Iterator[str]:
    """Yield lines on what a destination would get, and on what would be dropped, refused or fail."""
    if expected.waiting:
        yield f"{name} first gets what is pending: {expected.waiting} from earlier waves"
    deliveries = "1 delivery" if len(expected.gets) == 1 else f"{len(expected.gets)} deliveries"
    yield f"{name} would get {deliveries}{':' if expected.gets else ''}"
    for row in expected.gets:
        yield f"  {row['operation']} {_describe_delivery(row)}"
        if row["fields"]:
            yield f"    fields: {json_text.dumps(row['fields'], ensure_ascii=False)}"
        if row["text"]:
            yield f"    text: {row['text']}"
        elif row["bytes"]:
            yield f"    {row['bytes']} bytes that are not UTF-8 text"
    for rows, what in ((expected.dropped, "dropped"), (expected.refused, "refused")):
        if rows:
            yield f"{name}: {len(rows)} {what}:"
            for row in rows:
                yield f"  {_describe_delivery(row)}: {_reason(row)}"
                yield from _traceback_lines(row) if verbose else ()
    if expected.uncalled:
        yield f"{name}: {len(expected.uncalled)} need a paid call first, which a preview does not make:"
        yield from (f"  {_describe_delivery(row)}" for row in expected.uncalled)
    if expected.errors:
        yield f"{name}: {len(expected.errors)} would fail, and be tried again:"
        for row in expected.errors:
            yield f"  {_describe_delivery(row)} (attempt {row['attempt']} of {row['attempts']}): {_reason(row)}"
            yield from _traceback_lines(row) if verbose else ()


def _describe_delivery(row: dict[str, Any]) -> str:
    """Return a delivery's document, and its route if it has one."""
    return f"{row['document']} by {row['route']}" if row["route"] else str(row["document"])


def _reason(row: dict[str, Any]) -> str:
    from ferryman.records.rows import reason_of

    return reason_of(row["message"] or "no reason was given").removeprefix(f"{row['document']}: ")


def _traceback_lines(row: dict[str, Any]) -> Iterator[str]:
    from ferryman.records.rows import traceback_of

    yield from (f"    {line}" for line in traceback_of(row["message"] or "").splitlines())


def _print_styled(text: str) -> None:
    """Print a line on a terminal: content is cut at the right edge, headings are bold."""
    from rich.console import Console
    from rich.text import Text

    styled = Text(one_line(text), style="" if text.startswith(" ") else "bold")
    is_content = text.startswith(("    fields: ", "    text: "))
    if is_content:
        styled.stylize("dim")
    Console().print(styled, no_wrap=is_content, overflow="ellipsis" if is_content else "fold", crop=is_content)
