"""``ferryman run``: waves until nothing is pending or nothing more can be done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

import typer
from typer.core import TyperCommand

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
    Preflight,
    StateDir,
    TakeOver,
    Verbose,
    copies_in,
    has_run,
    machines_have,
    notify_targets,
    seconds,
    size_bytes,
    spark_settings,
)
from ferryman.cli.terminal import CODE, Interrupt
from ferryman.errors import UsageError, message_of
from ferryman.storage.files import StatePath, exists, list_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferryman.engine.summary import FlowSummary, Summary
    from ferryman.plan import Flow, Plan
    from ferryman.plan.load import Runnable

Log = tuple[Path | None, str]
"""Log file, and its format."""

_ALLOW = "--allow-deletes"
_EVERYWHERE = "*"


class RunCommand(TyperCommand):
    """``--allow-deletes`` takes a value only behind an equals sign: alone, what follows is the next argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{_ALLOW}={_EVERYWHERE}" if arg == _ALLOW else arg for arg in args])


EXIT_INCOMPLETE = 4

EXAMPLES = 3
"""Deliveries shown with their reason at the end of a run; `ferryman deliveries` lists them all."""


REASONS = 5
"""Reasons shown there, if there are more deliveries than that; `ferryman deliveries --by reason` lists them all."""


def run(
    plan: FlowSpec,
    state: StateDir = None,
    master: Master = "local[*]",
    conf: Conf = None,
    has: Has = None,
    preflight: Preflight = True,
    take_over: TakeOver = False,
    cache: CacheDir = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="TIME",
            show_default=False,
            help="How long to wait for pending documents to come due: 60, 60s, 2m; 0 = not at all. "
            "Default: as long as the next comes due within 60 s.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", show_default=False, help="Keep running; rescan at this interval: 30s, 5m."
        ),
    ] = None,
    allow_deletes: Annotated[
        list[str] | None,
        typer.Option(
            _ALLOW,
            metavar="[=FOLDER]",
            show_default=False,
            help="Delete even if more documents are missing than max_deleted allows; "
            "with =FOLDER only in this first-level folder. Repeatable.",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Continue under this version although the plan's structure changed."),
    ] = False,
    from_version: Annotated[
        int | None,
        typer.Option(
            "--from-version",
            metavar="N",
            min=0,
            show_default=False,
            help="Migrate the state of this older version of the plan.",
        ),
    ] = None,
    reset_state: Annotated[
        list[str] | None,
        typer.Option(
            "--reset-state",
            metavar="NODE",
            show_default=False,
            help="Empty the state of this keyed node and of those below it, and read the logs that feed them again. "
            "Repeatable.",
        ),
    ] = None,
    max_pending: Annotated[
        str | None,
        typer.Option(
            "--max-pending",
            metavar="SIZE",
            show_default=False,
            help="Read no more documents while more than this is pending: 500MB, 20GB. Default: 4GB.",
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="WHOM",
            show_default=False,
            help="Notify this URL, mailto:ADDRESS or command when something is newly failed, rejected or in doubt, or "
            "a node is stopped. Repeatable.",
        ),
    ] = None,
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
    from ferryman.plan.load import load, plan_file

    options: dict[str, Any] = {
        "conf": {**machines_have(has), **copies_in(cache), **spark_settings(conf)},
        "wait": seconds("--wait", wait),
        "every": seconds("--every", every),
        "allow_deletes": _EVERYWHERE in (allow_deletes or ()) or allow_deletes or False,
        "accept_changes": accept_changes,
        "from_version": from_version,
        "reset_state": tuple(reset_state or ()),
        "master": master,
        "preflight": preflight,
        "take_over": take_over,
        "notify": notify_targets(notify),
    }
    if max_pending is not None:
        options["max_pending"] = size_bytes("--max-pending", max_pending)
    if options["every"] == 0:
        raise UsageError("--every 0: give a time above 0, as in --every 30s.")
    loaded = load(plan)
    log = (log_file, log_format)
    if isinstance(loaded, Flow):
        raise typer.Exit(run_flow(loaded, plan, state, json=json, verbose=verbose, log=log, **options))
    root, summary = carried(loaded, plan_file(plan), state, verbose=verbose, log=log, **options)
    if json:
        terminal.json_line(summary.as_dict())
    else:
        tell(summary, root, loaded, plan, state)
    raise typer.Exit(summary.exit)


def carried(
    plan: Plan,
    file: Path | None,
    state: str | None,
    *,
    verbose: bool = False,
    log: Log = (None, "text"),
    **options: Any,
) -> tuple[StatePath, Summary]:
    """Run a plan with progress on stderr: (root of its state, what was done).

    Raises:
        typer.Exit: with 130, when the user interrupts; a message says how to continue.
    """
    from ferryman.state.state import state_root

    root = state_root(plan, state, file)
    return root, run_watched(plan, {"": (plan, root)}, verbose, log, options)


@overload
def run_watched(
    plan: Plan, states: Mapping[str, tuple[Plan, StatePath]], verbose: bool, log: Log, options: dict[str, Any]
) -> Summary: ...


@overload
def run_watched(
    plan: Flow, states: Mapping[str, tuple[Plan, StatePath]], verbose: bool, log: Log, options: dict[str, Any]
) -> FlowSummary: ...


def run_watched(
    plan: Runnable, states: Mapping[str, tuple[Plan, StatePath]], verbose: bool, log: Log, options: dict[str, Any]
) -> Summary | FlowSummary:
    """Run it with progress on stderr.

    Args:
        states: the plans with the roots of their states, by the names that messages have before them.

    Raises:
        typer.Exit: with 130, when the user interrupts; a message says how to continue.
    """
    from ferryman.observe import logging_to, watching

    for warning in plan.check():
        if verbose:
            terminal.note(f"warning: {warning}")
    folder = next(iter(states.values()))[1].parent
    with Interrupt() as interrupt:
        try:
            with watching(sys.stderr, verbose, *log) as observer, logging_to(observer, verbose):
                from ferryman.engine.summary import FlowSummary
                from ferryman.operations import run as run_plan  # loads Spark: after all that can be refused

                for name, (each, root) in states.items():
                    if not has_run(root) and not options.get("from_version"):
                        observer.about(name)
                        observer.message(new_state(root, each.version))
                observer.about("")
                summary = run_plan(plan, state=folder, observer=interrupt.heeding(observer), **options)
                ends = summary.plans if isinstance(summary, FlowSummary) else {"": summary}
                for name, end in ends.items():
                    observer.about(name)
                    observer.finished(end.as_dict())
        except BaseException:
            if not interrupt.asked:
                raise
        if interrupt.asked:
            interrupt.say(
                "interrupted: nothing is lost. Run the same command again: it first sends what was committed."
            )
            raise typer.Exit(CODE)
    return summary


def run_flow(flow: Flow, spec: str, state: str | None, *, json: bool, verbose: bool, log: Log, **options: Any) -> int:
    """Run a flow, and print what was done; its exit code."""
    from ferryman.cli.account import states_of
    from ferryman.plan.load import plan_file, spec_of

    if options.pop("reset_state"):
        raise UsageError(f"--reset-state is for one plan of flow {flow.name}: run that plan alone with it first.")
    if options.pop("from_version") is not None:
        one = terminal.command("run", spec_of(spec, flow, flow.plans[0]), "--from-version", "N", state=state)
        raise UsageError(f"--from-version is for one plan of flow {flow.name}: migrate it first, as in {one}.")
    states = states_of(flow, state, plan_file(spec))
    summary = run_watched(flow, states, verbose, log, options)
    if json:
        terminal.json_line(summary.as_dict())
        return summary.exit
    for name, each in summary.plans.items():
        plan, root = states[name]
        if (error := summary.errors.get(name)) is not None:
            terminal.say(f"{name}: it stopped: {message_of(error)}")
        tell(each, root, plan, spec_of(spec, flow, plan), state, name)
    return summary.exit


def new_state(root: StatePath, version: int) -> str:
    """That all is sent from scratch, and which other states there are: a plan may have been renamed."""
    others = sorted(name for name in list_names(root.parent) if exists(root.parent / name / "state.json"))
    here = f"; others here: {', '.join(others)}" if others else ""
    prefix = root.name.removesuffix(str(version))
    numbers = (other.removeprefix(prefix) for other in others if other.startswith(prefix))
    older = [int(number) for number in numbers if number.isdecimal() and int(number) < version]
    migrate = f". To continue from an older version: --from-version {max(older)}" if older else ""
    return f"new state: {root}{here}{migrate}. Every document is new to it, and is sent."


def tell(summary: Summary, root: StatePath, loaded: Plan, plan: str, state: str | None, name: str = "") -> None:
    """What this run did and left, and what to type next. (Its messages were told when they came up.)

    Args:
        name: the plan's, in a flow.
    """
    terminal.say(f"{name}: {_counts(summary)}" if name else _counts(summary))
    left = (
        (summary.failed, "failed"),
        (summary.rejected, "rejected"),
        (summary.in_doubt, "in_doubt"),
        (summary.pending, "pending"),
    )
    for count, status in left:
        if count:
            _examples(root, loaded, status, f"{count} {_in_words(status)}", many=count > EXAMPLES)
    for count, status in left[:3]:
        if count:
            listing = terminal.command("deliveries", plan, "--status", status, state=state)
            terminal.say(f"All {_in_words(status)}: {listing}")
    if summary.failed or summary.rejected:
        again = terminal.command("retry", plan, state=state)
        terminal.say(f"{_retried_automatically(loaded)}to retry all: {again}")
    if summary.exit == EXIT_INCOMPLETE and not summary.pending:
        terminal.say(
            "Exit code 4 although nothing is pending: not all that a source has could be listed. There may be more "
            "documents, and none of that source is deleted until a listing is complete. The messages above name the "
            "place: correct it, or wait until it is back, and run again."
        )
    if summary.pending:
        terminal.say(f"The next run sends what is pending: {terminal.command('run', plan, state=state)}")


def _retried_automatically(plan: Plan) -> str:
    """What is tried again without a word: messages never change."""
    from ferryman.plan import logs_read, sources_read

    logs = logs_read(plan.nodes)
    if logs == sources_read(plan.nodes):
        return "Messages do not change; "
    return f"A document that changes is retried automatically{', a message is not' if logs else ''}; "


def _in_words(status: str) -> str:
    return status.replace("_", " ")


def _counts(summary: Summary) -> str:
    """``2 waves: 1200 delivered, 4 deleted, 3 dropped``."""
    if not summary.waves:
        waits = summary.exit in (1, 2, 4)  # what that is was told: deletes, documents, a listing that is not whole
        return "Nothing was delivered." if waits else "Nothing has changed since the last run."
    waves = "1 wave" if summary.waves == 1 else f"{summary.waves} waves"
    deleted = f", {summary.deleted} deleted" if summary.deleted else ""
    dropped = f", {summary.dropped} dropped" if summary.dropped else ""
    return f"{waves}: {summary.delivered} delivered{deleted}{dropped}"


def _examples(root: StatePath, plan: Plan, status: str, heading: str, *, many: bool) -> None:
    """The first few documents of a status, with the reason of each; of many, the most frequent reasons."""
    from ferryman import account
    from ferryman.records.rows import reason_of
    from ferryman.state.state import COUNTED

    if many and not exists(root / COUNTED):  # of a large state that takes seconds after each run
        found = account.reasons(root, status=status, limit=REASONS, plan=plan)
        terminal.say(heading + (":" if found else ""))
        for row in found:
            terminal.say(f"  {row['deliveries']}: {row['reason'] or 'not sent yet'} (one of them: {row['example']})")
        return
    rows = account.deliveries(root, status=status, limit=EXAMPLES, plan=plan)
    terminal.say(heading + (", the newest of them:" if rows else ""))
    for row in rows:
        where = f" for {row['destination']}" if row["destination"] else ""
        silent = "not sent yet" if row["status"] == "BATCHED" else "no reason was given"
        reason = reason_of(row["message"] or silent).removeprefix(f"{row['document']}: ")
        terminal.say(f"  {row['document']}{where}: {reason}")
