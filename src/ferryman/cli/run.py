"""``ferryman run``: waves until nothing is pending or nothing more can be done."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

import typer
from typer.core import TyperCommand

from ferryman import limits
from ferryman.cli import terminal
from ferryman.cli.options import (
    CacheDir,
    Conf,
    FlowSpec,
    Has,
    Json,
    LogFile,
    LogFormat,
    LogFormatOption,
    Master,
    PlanSpec,
    Preflight,
    StateDir,
    TakeOver,
    Verbose,
    cache_settings,
    has_run,
    load_with_state,
    notify_targets,
    option,
    resource_settings,
    seconds,
    size_bytes,
    spark_settings,
)
from ferryman.cli.terminal import CODE, Interrupt
from ferryman.errors import UsageError, message_of
from ferryman.limits import format_count, plural
from ferryman.observe import Forwarding, Observer, format_size
from ferryman.storage.files import StatePath, exists, list_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    States = Mapping[str, tuple["Plan", StatePath]]
    """Plans with the roots of their states, by name."""
    Typed = Mapping[str, tuple[str, str | None]]
    """The PLAN arguments and --state options of plans, by name."""

    from ferryman.engine.summary import FlowSummary, Summary
    from ferryman.operations import RunOptions
    from ferryman.plan import Flow, Plan
    from ferryman.plan.load import Runnable

Log = tuple[Path | None, str]
"""Path of the log file, and its format."""

_ALLOW = "--allow-deletes"
_EVERYWHERE = "*"


class RunCommand(TyperCommand):
    """Parses ``--allow-deletes``, which takes a value only after an equals sign; else the next word is an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{_ALLOW}={_EVERYWHERE}" if arg == _ALLOW else arg for arg in args])


EXIT_INCOMPLETE = 4

EXAMPLES = 3
"""Deliveries printed with their reason at the end of a run; `ferryman deliveries PLAN` lists them all."""

REASONS = 5
"""Reasons printed at the end of a run with more than EXAMPLES deliveries of a status. The command
`ferryman deliveries PLAN --by reason` lists them all."""


Wait = Annotated[
    str | None,
    option(
        "--wait",
        "TIME",
        "How long to wait for pending documents to come due: 60, 60s, 2m; 0 = not at all. "
        "Default: as long as the next comes due within 60 s.",
    ),
]
Every = Annotated[str | None, option("--every", "TIME", "Keep running; rescan at this interval: 30s, 5m.")]
WatchSources = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Keep running; process changes as soon as they are noticed, and rescan at the interval of --every, 10m by "
        "default.",
    ),
]
AllowDeletes = Annotated[
    list[str] | None,
    option(
        _ALLOW,
        "[=FOLDER]",
        "Delete even if more documents are missing than max_deleted allows; "
        "with =FOLDER only in this first-level folder. Repeatable.",
    ),
]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Continue under this version although the plan's structure changed."),
]
FromVersion = Annotated[
    int | None, option("--from-version", "N", "Migrate the state of this older version of the plan.", min=0)
]
ResetState = Annotated[
    list[str] | None,
    option(
        "--reset-state",
        "NODE",
        "Empty the state of this keyed node and of those below it, and read the logs that feed them again. Repeatable.",
    ),
]
MaxPending = Annotated[
    str | None,
    option(
        "--max-pending", "SIZE", "Read no more documents while more than this is pending: 500MB, 20GB. Default: 4GB."
    ),
]
VerifySample = Annotated[
    int,
    typer.Option(
        "--verify-sample",
        metavar="N",
        min=0,
        help="With --every: verify N documents of each destination, drawn at random, every hour; 0 = none.",
    ),
]
Notify = Annotated[
    list[str] | None,
    option(
        "--notify",
        "WHOM",
        "Notify this URL, mailto:ADDRESS or command when something is newly failed, rejected or in doubt, or "
        "a node is stopped. Repeatable.",
    ),
]


Metrics = Annotated[
    str | None,
    option(
        "--metrics",
        "FILE|ADDRESS",
        "Write metrics for Prometheus to this file, or offer them at this address: plays.prom, :9464.",
    ),
]
OpenLineage = Annotated[
    str | None,
    option("--openlineage", "URL|FILE", "Send events of OpenLineage to this server, or append them to this file."),
]


def run(
    plan: FlowSpec,
    state: StateDir = None,
    master: Master = "local[*]",
    conf: Conf = None,
    has: Has = None,
    preflight: Preflight = True,
    take_over: TakeOver = False,
    cache: CacheDir = None,
    wait: Wait = None,
    every: Every = None,
    watch: WatchSources = False,
    allow_deletes: AllowDeletes = None,
    accept_changes: AcceptChanges = False,
    from_version: FromVersion = None,
    reset_state: ResetState = None,
    max_pending: MaxPending = None,
    verify_sample: VerifySample = limits.VERIFY_SAMPLE,
    notify: Notify = None,
    metrics: Metrics = None,
    openlineage: OpenLineage = None,
    log_file: LogFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Deliver what is new, changed, deleted or still pending.

    After a kill, type the same again. Its exit code speaks of the whole state, not only of this run:

    \b
      0  all delivered
      1  a fault of Ferryman or Spark
      2  bad usage or a bad plan: nothing was done; or deletes wait for
         --allow-deletes: all else was done
      3  finished, but some documents are failed, rejected or in doubt
      4  incomplete: something is still pending (a destination is down)
    130  interrupted

    With --json the last line of the output is a JSON object: what this run did and what it left.

    If PLAN is a flow, its plans take turns until nothing is left to do. A plan that stops with an error does not stop
    the others. The exit code is the first of 1, 2, 4, 3, 0 that any plan has; the JSON object has flow, exit and plans:
    by name, each plan's own.
    """
    from ferryman.plan import Flow
    from ferryman.plan.load import load

    options: RunOptions = {
        "conf": {**resource_settings(has), **cache_settings(cache), **spark_settings(conf)},
        "wait": seconds("--wait", wait),
        "every": _interval(every),
        "watch": watch,
        "allow_deletes": _EVERYWHERE in (allow_deletes or ()) or allow_deletes or False,
        "accept_changes": accept_changes,
        "from_version": from_version,
        "reset_state": tuple(reset_state or ()),
        "master": master,
        "preflight": preflight,
        "take_over": take_over,
        "notify": notify_targets(notify),
        "metrics": metrics,
        "openlineage": openlineage,
        "verify_sample": verify_sample,
    }
    if max_pending is not None:
        options["max_pending"] = size_bytes("--max-pending", max_pending)
    if state is None and "PYSPARK_GATEWAY_PORT" in os.environ:  # by spark-submit
        from ferryman.engine.driver import check_default_state

        check_default_state()
    loaded = load(plan)
    log = (log_file, log_format)
    if isinstance(loaded, Flow):
        raise typer.Exit(run_flow(loaded, plan, state, options, json=json, verbose=verbose, log=log))
    root, summary = run_plan(loaded, plan, state, options, verbose=verbose, log=log)
    if json:
        terminal.print_json(summary.as_dict())
    else:
        print_summary(summary, root, loaded, plan, state)
    raise typer.Exit(summary.exit)


def _interval(every: str | None) -> float | None:
    """Parse the value of ``--every``.

    Raises:
        UsageError: not a duration, or 0.
    """
    every_s = seconds("--every", every)
    if every_s == 0:
        raise UsageError("--every 0: give a time above 0, as in --every 30s.")
    return every_s


def run_plan(
    plan: Plan,
    spec: str,
    state: str | None,
    options: RunOptions,
    *,
    verbose: bool = False,
    log: Log = (None, "text"),
) -> tuple[StatePath, Summary]:
    """Run a plan with progress on stderr; return the root of its state, and the summary.

    Args:
        spec: the PLAN argument.

    Raises:
        typer.Exit: with 130, when the user interrupts; a message says how to continue.
    """
    from ferryman.plan.load import plan_file
    from ferryman.state.state import state_root

    root = state_root(plan, state, plan_file(spec))
    return root, _run_with_progress(plan, {"": (plan, root)}, {"": (spec, state)}, verbose, log, options)


@overload
def _run_with_progress(
    plan: Plan, states: States, typed: Typed, verbose: bool, log: Log, options: RunOptions
) -> Summary: ...


@overload
def _run_with_progress(
    plan: Flow, states: States, typed: Typed, verbose: bool, log: Log, options: RunOptions
) -> FlowSummary: ...


def _run_with_progress(
    plan: Runnable, states: States, typed: Typed, verbose: bool, log: Log, options: RunOptions
) -> Summary | FlowSummary:
    """Run a plan or a flow with progress on stderr.

    Args:
        states: the plans with the roots of their states, by the names that messages have before them.
        typed: under these names, what an operator types for each.

    Raises:
        typer.Exit: with 130, when the user interrupts; a message says how to continue.
    """
    from ferryman.observe import logging_to, progress_observer

    for warning in plan.check():
        if verbose:
            terminal.print_note(f"warning: {warning}")
    folder = next(iter(states.values()))[1].parent
    with Interrupt() as interrupt:
        try:
            with progress_observer(sys.stderr, verbose, *log) as plain, logging_to(plain, verbose):
                observer = _CommandCompleter(plain, typed)
                from ferryman.engine.summary import FlowSummary
                from ferryman.operations import (
                    run as run_operation,
                )  # loads Spark: after everything that can be refused

                for name, (each, root) in states.items():
                    if not has_run(root) and not options.get("from_version"):
                        observer.about(name)
                        observer.message(describe_new_state(root, each.version))
                observer.about("")
                chosen: RunOptions = {**options, "state": folder, "observer": interrupt.interruptible(observer)}
                summary = run_operation(plan, **chosen)
                summaries = summary.plans if isinstance(summary, FlowSummary) else {"": summary}
                for name, each_summary in summaries.items():
                    observer.about(name)
                    observer.finished(each_summary.as_dict())
        except BaseException:
            if not interrupt.requested:
                raise
        if interrupt.requested:
            interrupt.print_note(
                "interrupted: nothing is lost. Run the same command again: it first sends what was committed."
            )
            raise typer.Exit(CODE)
    return summary


class _CommandCompleter(Forwarding):
    """Puts what an operator types into the commands of messages."""

    def __init__(self, observer: Observer, typed: Typed) -> None:
        super().__init__(observer)
        self._typed = typed
        self._plan = ""

    def message(self, text: str) -> None:
        super().message(terminal.complete_commands(text, *self._typed.get(self._plan, (None, None))))

    def about(self, plan: str) -> None:
        self._plan = plan
        super().about(plan)


def run_flow(
    flow: Flow, spec: str, state: str | None, options: RunOptions, *, json: bool, verbose: bool, log: Log
) -> int:
    """Run a flow, print what was done, and return its exit code."""
    from ferryman.cli.account import state_roots
    from ferryman.plan.load import plan_file, spec_of

    if options.pop("reset_state"):
        raise UsageError(f"--reset-state is for one plan of flow {flow.name}: run that plan alone with it first.")
    if options.pop("from_version") is not None:
        example = terminal.next_command("run", spec_of(spec, flow, flow.plans[0]), "--from-version", "N", state=state)
        raise UsageError(f"--from-version is for one plan of flow {flow.name}: migrate it first, as in {example}.")
    states = state_roots(flow, state, plan_file(spec))
    typed = {name: (spec_of(spec, flow, each), state) for name, (each, _) in states.items()}
    summary = _run_with_progress(flow, states, typed, verbose, log, options)
    if json:
        terminal.print_json(summary.as_dict())
        return summary.exit
    for name, each in summary.plans.items():
        plan, root = states[name]
        if (error := summary.errors.get(name)) is not None:
            terminal.print_line(f"{name}: it stopped: {message_of(error)}")
        print_summary(each, root, plan, spec_of(spec, flow, plan), state, name)
    return summary.exit


def rollback(plan: PlanSpec, state: StateDir = None, verbose: Verbose = False) -> None:
    """Go back to the code of an older version of a plan.

    PLAN is a plan file with the older code and its old version. It gets the next free version, which takes over the
    state of the newest one: what is known of each document, its history and what is pending. Starts no Spark and sends
    nothing. The next run reprocesses the documents whose path differs; what only the newer version made is deleted.
    """
    from ferryman.engine.migration import migrate

    loaded, root = load_with_state(plan, state)
    code = loaded.version
    newest = max(versions_beside(root, code), default=code)
    if newest <= code:
        raise UsageError(
            f"{root}: version {code} is the newest one here, and there is no newer one to go back from: give a plan "
            "file with the code and the version of an older one."
        )
    loaded.version = newest + 1
    loaded.freeze()
    migrate(root.parent / loaded.key, loaded, newest)
    terminal.print_line(
        f"Version {loaded.version} continues from version {newest} with the code of version {code}. Write "
        f"version={loaded.version} into the plan, then: {terminal.next_command('run', plan, state=state)}"
    )


def versions_beside(root: StatePath, version: int) -> list[int]:
    """Return the versions of a plan that have a state in the same folder as this one."""
    prefix = root.name.removesuffix(str(version))
    numbers = [name.removeprefix(prefix) for name in list_names(root.parent) if name.startswith(prefix)]
    return [
        int(number) for number in numbers if number.isdecimal() and exists(root.parent / f"{prefix}{number}/state.json")
    ]


def describe_new_state(root: StatePath, version: int) -> str:
    """Return a note that everything is sent from scratch, and which other states exist, since the plan may have been
    renamed."""
    others = sorted(name for name in list_names(root.parent) if exists(root.parent / name / "state.json"))
    listed = f"; others here: {', '.join(others)}" if others else ""
    older = [number for number in versions_beside(root, version) if number < version]
    migrate = f". To continue from an older version: --from-version {max(older)}" if older else ""
    return f"new state: {root}{listed}{migrate}. Every document is new to it, and is sent."


def print_summary(
    summary: Summary, root: StatePath, loaded: Plan, plan: str, state: str | None, name: str = ""
) -> None:
    """Print what this run did and what is left, and what to type next.

    Args:
        plan: the PLAN argument, for suggested commands.
        name: name of the plan in a flow.
    """
    from ferryman.remembered.bill import describe_bill

    terminal.print_line(f"{name}: {_describe_counts(summary)}" if name else _describe_counts(summary))
    for step, bill in summary.remembered.items():
        terminal.print_line(f"{describe_bill(step, bill)}. Store: {format_size(int(bill['bytes']))}")
    unfinished = (
        (summary.failed, "failed"),
        (summary.rejected, "rejected"),
        (summary.in_doubt, "in_doubt"),
        (summary.pending, "pending"),
    )
    for count, status in unfinished:
        if count:
            by_reason = terminal.next_command("deliveries", plan, "--status", status, "--by", "reason", state=state)
            heading = f"{format_count(count)} {_spaced(status)}"
            _print_examples(root, loaded, status, heading, by_reason, many=count > EXAMPLES)
    for count, status in unfinished[:3]:
        if count:
            listing = terminal.next_command("deliveries", plan, "--status", status, state=state)
            terminal.print_line(f"All {_spaced(status)}: {listing}")
    if summary.failed or summary.rejected:
        again = terminal.next_command("retry", plan, state=state)
        terminal.print_line(f"{_describe_automatic_retries(loaded)}to retry all: {again}")
    stopped = summary.exit == EXIT_INCOMPLETE and _print_stopped(root, loaded, plan, state)
    if summary.exit == EXIT_INCOMPLETE and not summary.pending and not stopped:
        terminal.print_line(
            "Exit code 4 although nothing is pending: not all that a source has could be listed. There may be more "
            "documents, and none of that source is deleted until a listing is complete. The messages above name the "
            "place: correct it, or wait until it is back, and run again."
        )
    if summary.pending:
        terminal.print_line(f"The next run sends what is pending: {terminal.next_command('run', plan, state=state)}")


def _print_stopped(root: StatePath, loaded: Plan, plan: str, state: str | None) -> bool:
    """Print before which messages the plan has stopped, and the commands for it; return whether there are any."""
    from ferryman import account
    from ferryman.cli.account import print_ways_on

    stopped = account.stopped(root, loaded)
    for entry in stopped:
        terminal.print_line(
            f"The plan has stopped before {entry['document']} of {entry['source']}, and what is behind it waits: "
            f"{entry['reason']}"
        )
    if stopped:
        print_ways_on(plan, state)
    return bool(stopped)


def _describe_automatic_retries(plan: Plan) -> str:
    """Return a sentence on what is retried without a command: documents that change, but not messages of a log."""
    from ferryman.plan import logs_read, sources_read

    logs = logs_read(plan.nodes)
    if logs == sources_read(plan.nodes):
        return "Messages do not change; "
    return f"A document that changes is retried automatically{', a message is not' if logs else ''}; "


def _spaced(status: str) -> str:
    return status.replace("_", " ")


def _describe_counts(summary: Summary) -> str:
    """Format the counts of deliveries: ``2 waves: 1 200 delivered, 4 deleted, made of 600 documents``."""
    if not summary.waves:
        unfinished = summary.exit in (1, 2, 4)  # messages named it: deletes, documents, an incomplete listing
        return "Nothing was delivered." if unfinished else "Nothing has changed since the last run."
    counts = [f"{format_count(summary.delivered)} delivered"]
    counts += [
        f"{format_count(n)} {word}" for n, word in ((summary.deleted, "deleted"), (summary.dropped, "dropped")) if n
    ]
    documents = plural(summary.documents, "document", "documents")
    origin = f", made of {documents}" if summary.delivered > summary.documents > 0 else ""
    return f"{plural(summary.waves, 'wave', 'waves')}: {', '.join(counts)}{origin}"


def _print_examples(root: StatePath, plan: Plan, status: str, heading: str, by_reason: str, *, many: bool) -> None:
    """Print the newest documents of a status, each with its reason; of many, the most frequent reasons.

    Args:
        by_reason: command that lists all reasons.
    """
    from ferryman import account
    from ferryman.records.rows import reason_of
    from ferryman.state.state import COUNTED

    if many and not exists(root / COUNTED):  # not for a large state: it would take seconds after each run
        reasons = account.reasons(root, status=status, limit=None, plan=plan)
        terminal.print_line(heading + (":" if reasons else ""))
        for row in reasons[:REASONS]:
            reason = row["reason"] or "committed, and not sent yet"
            terminal.print_line(f"  {format_count(row['deliveries'])}: {reason} (one of them: {row['example']})")
        if rest := reasons[REASONS:]:
            deliveries = plural(sum(row["deliveries"] for row in rest), "delivery", "deliveries")
            terminal.print_line(f"  and {plural(len(rest), 'more reason', 'more reasons')}, {deliveries}: {by_reason}")
        return
    rows = account.deliveries(root, status=status, limit=EXAMPLES, plan=plan)
    terminal.print_line(heading + (", the newest of them:" if rows else ""))
    for row in rows:
        target = f" for {row['destination']}" if row["destination"] else ""
        no_message = "committed, and not sent yet" if row["status"] == "BATCHED" else "no reason was given"
        reason = reason_of(row["message"] or no_message).removeprefix(f"{row['document']}: ")
        terminal.print_line(f"  {row['document']}{target}: {reason}")
