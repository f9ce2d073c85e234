"""The operations of the public API: run, fsck, status, deliveries, history, tables, resolve and retry."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, Unpack, overload

from ferryman import account, limits
from ferryman.account.queries import cache_differs, last_entries
from ferryman.destinations.base import Destination, DestinationContext
from ferryman.engine import driver
from ferryman.engine.at_most_once import open_once_wave
from ferryman.engine.commands import apply, must_wait
from ferryman.engine.deliver.sending import context_of
from ferryman.engine.flow import FlowRun, take_plans
from ferryman.engine.migration import migrate
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings, SparkSettings
from ferryman.engine.summary import FlowSummary, Summary
from ferryman.engine.targets import ask_target
from ferryman.errors import StateDamaged, StateForeign, StateHeld, UsageError
from ferryman.observe import Observer, default_observer
from ferryman.plan import (
    DestinationNode,
    Flow,
    JoinNode,
    Joint,
    NotifyTarget,
    Plan,
    SourceNode,
    logs_read,
    remembering_steps,
)
from ferryman.records.rows import Status, named_statuses
from ferryman.sources.base import Retained
from ferryman.sources.log import Log
from ferryman.state.commands import SKIP, VERBS, Command, current_user, queue_command, queued_commands
from ferryman.state.logs import LogPositions, reader_name
from ferryman.state.state import (
    COUNTED,
    IDENTITY,
    READERS,
    RUNS,
    SETTLED,
    SNAPSHOTS,
    TABLES,
    WAVE,
    State,
    plan_of,
    remembered_files,
    sealed_files,
    sender_of,
    state_root,
)
from ferryman.state.targets import load_targets, settle_targets
from ferryman.storage import files, parquet
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, exists, explain_errors_of_state
from ferryman.storage.locks import Readers
from ferryman.storage.tables import Table

if TYPE_CHECKING:
    from ferryman.engine.watch import EventWatch


class RunOptions(TypedDict, total=False):
    """Options of ``run``, all of which may be left out."""

    state: str | StatePath | None
    """folder of states, or the URL of one in an object store, such as s3://bucket/states; this plan's is
    ``<state>/<plan>-v<version>``. Default ``.ferryman``."""
    spark: Any
    """a SparkSession to use; without one the program's own, of whatever thread, and else a new one with ``master`` and
    ``conf``. Only a new one is stopped at the end: runs in other threads share it, the last ends it, and it stays if
    the program has asked for a session meanwhile."""
    master: str
    """URL of Spark's master for a new session."""
    conf: Mapping[str, str] | None
    """Spark's settings for a new session."""
    wait: float | None
    """seconds to wait for pending deliveries to come due; None: as long as the next is due within 60 s; 0: not at
    all."""
    every: float | None
    """keep scanning, with this many seconds from start to start; None: one scan."""
    watch: bool
    """look at what changes as soon as that is noticed, and scan all of it ``every`` so many seconds, 600 by default."""
    allow_deletes: bool | Collection[str]
    """let a scan delete more than a source's ``max_deleted``: of everything, or of these first-level folders."""
    accept_changes: bool
    """go on under this version although the plan's structure has changed."""
    from_version: int | None
    """continue from the state of this older version of the plan, if that was not done before. Not for a flow."""
    reset_state: Collection[str]
    """before anything is read, empty the states of these keyed nodes and of those below them, and read the logs that
    feed them again: from where they were moved, else from their beginning. Not for a flow."""
    max_pending: int | None
    """bytes on the disk, 4 GiB if None. While more is pending in the outbox, no more documents are read; what is
    pending is sent."""
    verify_sample: int
    """documents of each target, drawn at random, that a run with ``every`` verifies now and then; 0: none."""
    notify: Sequence[str]
    """who is notified of what goes wrong, beside those that the plan names: see ``Plan.notify``."""
    preflight: bool
    """before anything is read, see whether each executor on another machine sees the folders that the driver sees: the
    state, what sources read, what destinations write to. One that comes later and does not is given no task."""
    take_over: bool
    """be the driver of a state in an object store at once, although another one seems to hold it, which you know to be
    dead."""
    metrics: str | None
    """a file for node exporter, or an address such as ``:9464``, where Prometheus finds this run's metrics: see
    ``ferryman.metrics``."""
    openlineage: str | None
    """URL of a lineage server, or a file, for OpenLineage's events of this run."""
    observer: Observer | None
    """receives the progress; by default lines on stderr in a notebook, and nothing elsewhere."""


_DEFAULTS: Final[RunOptions] = {
    "state": None,
    "spark": None,
    "master": "local[*]",
    "conf": None,
    "wait": None,
    "every": None,
    "watch": False,
    "allow_deletes": False,
    "accept_changes": False,
    "from_version": None,
    "reset_state": (),
    "max_pending": None,
    "verify_sample": limits.VERIFY_SAMPLE,
    "notify": (),
    "preflight": True,
    "take_over": False,
    "metrics": None,
    "openlineage": None,
    "observer": None,
}


def _with_named_options(function: Any) -> Any:
    """Give a function that takes ``RunOptions`` a signature that names each of them, for ``help`` and notebooks."""
    plain = inspect.signature(function)
    named = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS[name],  # type: ignore[literal-required]
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in RunOptions.__annotations__.items()
    ]
    positional = [each for each in plain.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = plain.replace(parameters=[*positional, *named])
    return function


@overload
def run(plan: Plan, **options: Unpack[RunOptions]) -> Summary: ...


@overload
def run(plan: Flow, **options: Unpack[RunOptions]) -> FlowSummary: ...


@_with_named_options
@explain_errors_of_state
def run(plan: Plan | Flow, **options: Unpack[RunOptions]) -> Summary | FlowSummary:
    """Run a plan until all is delivered, or nothing more can be done now; a flow until that is so of all its plans.

    The plans of a flow take turns, first those that others read from. One that stops with an error does not stop the
    others: its ``exit`` and the flow's say so, and ``FlowSummary.errors`` has the error. What is said of a plan
    holds for each plan of a flow.

    Args:
        options: see ``RunOptions``.

    Raises:
        PlanError, UsageError: nothing was done.
        StateError: the state is held, damaged or foreign; nothing was touched.
        EngineError: Spark or the disk failed; start again and it goes on.
    """
    if unknown := options.keys() - _DEFAULTS.keys():
        raise TypeError(f"run() got an unexpected keyword argument {min(unknown)!r}")
    chosen: RunOptions = {**_DEFAULTS, **options}
    observer, state = chosen["observer"] or default_observer(), chosen["state"]
    targets = [NotifyTarget(to) for to in chosen["notify"]]
    if findings := [finding for target in targets for finding in target.findings()]:
        raise UsageError("\n".join(findings))
    if state is None:
        driver.check_default_state(chosen["spark"])
    from ferryman.monitoring.run import monitor_of  # it would make each start of a question slower

    roots = _roots_of(plan, state)
    endless = _period_of(chosen) is not None
    monitored = monitor_of(plan, roots, chosen["metrics"], chosen["openlineage"], endless=endless)
    with monitored(observer) as run:
        if isinstance(plan, Flow):
            flow_summary = _run_flow(plan, chosen, targets, run)
            run.ended(flow_summary.plans, flow_summary.errors)
            return flow_summary
        summary = _run_one(plan, chosen, targets, run)
        run.ended({"": summary})
        return summary


def _roots_of(plan: Plan | Flow, state: str | StatePath | None) -> StatePath | dict[str, StatePath]:
    if isinstance(plan, Flow):
        return {plan.label(each): state_root(each, state) for each in plan.plans}
    return state_root(plan, state)


def _run_one(plan: Plan, options: RunOptions, targets: Sequence[NotifyTarget], observer: Observer) -> Summary:
    state = options["state"]
    if (older := options["from_version"]) is not None:
        plan.freeze()
        migrate(state_root(plan, state), plan, older)
    with (
        _watch({"": plan}, options, observer) as watch,
        driver.drive(
            plan,
            state,
            _spark_of(options),
            accept_changes=options["accept_changes"],
            preflight=options["preflight"],
            take_over=options["take_over"],
            observer=observer,
        ) as (locked_state, runner),
    ):
        return Run(
            locked_state,
            runner,
            observer,
            _settings_of(options, targets),
        ).run(_period_of(options), watch)


def _period_of(options: RunOptions) -> float | None:
    """Return the seconds between two full scans; None: there is one only."""
    if options["every"] is None and options["watch"]:
        return limits.WATCH_EVERY_S
    return options["every"]


@contextlib.contextmanager
def _watch(plans: Mapping[str, Plan], options: RunOptions, observer: Observer) -> Iterator[EventWatch | None]:
    """Watch the sources of the plans within the block, if that was asked for."""
    every = _period_of(options)
    if not options["watch"] or every is None:
        yield None
        return
    from ferryman.engine.watch import EventWatch

    def report(plan: str, message: str) -> None:
        if plan:
            observer.about(plan)
        observer.message(message)
        if plan:
            observer.about("")

    with EventWatch(plans, every, report) as watch:
        yield watch


def _spark_of(options: RunOptions) -> SparkSettings:
    return SparkSettings.of(options["spark"], options["master"], options["conf"])


def _settings_of(options: RunOptions, targets: Sequence[NotifyTarget]) -> RunSettings:
    return RunSettings(
        wait=0 if options["watch"] else options["wait"],
        allow_deletes=options["allow_deletes"],
        notify=targets,
        max_pending=options["max_pending"],
        verify_sample=options["verify_sample"],
        reset=options["reset_state"],
    )


def _run_flow(flow: Flow, options: RunOptions, targets: Sequence[NotifyTarget], observer: Observer) -> FlowSummary:
    if options["from_version"] is not None:
        raise UsageError(
            f"flow {flow.name}: from_version={options['from_version']} is for one plan: run that plan alone with it "
            "first, then the flow."
        )
    if options["reset_state"]:
        raise UsageError(f"flow {flow.name}: reset_state is for one plan: run that plan alone with it first.")
    with (
        _watch({flow.label(plan): plan for plan in flow.plans}, options, observer) as watch,
        take_plans(flow, options["state"], options["accept_changes"], take_over=options["take_over"]) as plans,
        driver.open_runner(
            flow.name,
            flow.plans,
            _spark_of(options),
            observer,
            start_early=any(driver.needs_executors(each.state) for each in plans),
        ) as runner,
        driver.check_executors(runner, [each.state for each in plans], options["preflight"], observer) as trusted,
    ):
        return FlowRun(
            flow.name,
            plans,
            trusted,
            observer,
            _settings_of(options, targets),
        ).run(_period_of(options), watch)


# --- follow a document through the plans of a flow ---


def follow(flow: Flow, roots: Mapping[str, StatePath], document: str) -> list[dict[str, Any]]:
    """Return every event of a document in the plans that know it, and of the messages made of it, in the plans that
    read them. Rows of ``account.history``, with ``plan``; plan by plan, oldest first.

    Args:
        roots: label of a plan -> its state, which need not exist.
    """
    plans = {flow.label(plan): plan for plan in flow.order}
    pending = [(label, document) for label in plans]
    seen: set[tuple[str, str]] = set()
    events: list[dict[str, Any]] = []
    for label, id in pending:  # grows inside the loop
        if (label, id) in seen or not exists(roots[label] / IDENTITY):
            continue
        seen.add((label, id))
        in_plan = account.history(roots[label], id, plans[label])
        events += [{"plan": label, **event} for event in in_plan]
        for joint in flow.joints:
            if joint.writer == label and (hashes := _delivered_hashes(in_plan, joint.destination)):
                reader = plans[joint.reader]
                pending += [
                    (joint.reader, made) for made in _documents_made_of(reader, roots[joint.reader], joint, hashes)
                ]
    return events


def _delivered_hashes(events: list[dict[str, Any]], destination: str) -> set[str]:
    """Return the hashes of deliveries that a destination received."""
    return {e["delivery_hash"] for e in events if e["destination"] == destination and e["status"] == Status.INDEXED}


def _documents_made_of(reader: Plan, root: StatePath, joint: Joint, hashes: Collection[str]) -> Iterator[str]:
    """Yield the ids, in the reading plan, of what was made of these deliveries."""
    [source] = (n.source for n in reader.nodes if isinstance(n, SourceNode) and n.name == joint.source)
    if not isinstance(source, Log):
        return
    join = next((n for n in reader.nodes if isinstance(n, JoinNode) and joint.source in n.after), None)
    for id in source.entries_of(hashes):
        if join is None:
            yield id
        elif exists(root / IDENTITY):
            yield from account.joined_documents(root, join.name, id, reader)


# --- fsck: read and verify every file of a state, and check the cached counts; changes nothing ---


class Finding(NamedTuple):
    """A damaged or missing file."""

    path: str
    what: str
    remedy: str


_ATTEMPTS: Final = 5
"""How often a file that looks damaged is read beside a driver that commits all the time."""

_COPY = "restore this file from a copy of the state directory"
_REMOVE = "remove this file: everything is then counted again"
_FORGET = "remove this file: it lists past runs, and only questions read it"


@explain_errors_of_state
def fsck(plan: Plan, *, state: str | StatePath | None = None) -> list[Finding]:
    """Verify every file of the plan's state: return what is damaged or missing, and what can be done."""
    return check(state_root(plan, state))


def check(root: StatePath) -> list[Finding]:
    """Return everything that is wrong with a state, not only the first.

    Raises:
        UsageError: there is no state here.
    """
    if not any(files.exists(root / name) or files.is_folder(root / name) for name in ("state.json", *TABLES)):
        raise UsageError(f"{root}: there is no state here. Give the --state that the plan ran with.")
    try:
        with Readers(root / READERS).reading():
            findings = _inspect(root)
            for _ in range(_ATTEMPTS - 1):  # a concurrent run may have replaced files meanwhile
                if not findings:
                    break
                before = last_entries(root)
                again = _inspect(root)
                findings = [f for f in findings if f in again]
                if last_entries(root) == before:
                    break
    except StateForeign as e:
        return [Finding(str(root), str(e), "use the Ferryman and the plan that wrote it")]
    return findings


def _inspect(root: StatePath) -> list[Finding]:
    findings: dict[str, Finding] = {}
    for problem in _problems(root):
        findings.setdefault(problem.path, Finding(problem.path, problem.what, problem.remedy or _COPY))
    path = root / COUNTED
    try:
        if files.exists(path):
            files.unseal(path)
        findings |= {e.path: Finding(e.path, e.what, _REMOVE) for e in _damaged_snapshots(root)}
        if not findings and cache_differs(root, plan_of(root)):
            findings[str(path)] = Finding(str(path), "it does not match the tables, counted again", _REMOVE)
    except StateDamaged as e:
        findings[e.path] = Finding(e.path, e.what, _REMOVE if e.path == str(path) else e.remedy or _COPY)
    try:
        if files.exists(root / RUNS):
            files.unseal(root / RUNS)
    except StateDamaged as e:
        findings[e.path] = Finding(e.path, e.what, _FORGET)
    return list(findings.values())


def _damaged_snapshots(root: StatePath) -> Iterator[StateDamaged]:
    """Yield the problems of the snapshots that counts begin with; a missing one is none, for then all is counted."""
    if files.is_folder(root / SNAPSHOTS):
        names = [name for name in files.list_names(root / SNAPSHOTS) if not name.startswith(TEMPORARY)]
        yield from _damaged_files(root / SNAPSHOTS, names)


def _problems(root: StatePath) -> Iterator[StateDamaged]:
    try:
        plan = plan_of(root)
    except StateDamaged:
        plan = Plan(root.name)  # enough to read the files
    state = State(root, plan)
    yield from state.problems()
    for table in state.tables:
        yield from _problems_of_data(state, table)
    for path in sealed_files(state):
        try:
            files.unseal(path)
        except StateDamaged as e:
            yield e
    yield from _damaged_files(root, [name for name in remembered_files(root) if name.endswith(".parquet")])


def _problems_of_data(state: State, table: Table) -> Iterator[StateDamaged]:
    """Yield the problems of a table's live and staged files; of all its files if the log that lists them is damaged."""
    try:
        table.log.verify()
        table.load([WAVE, SETTLED])
        names = [f.path for f in (*table.files.values(), *state.staged_files(table))]
    except (
        StateDamaged,
        KeyError,
    ) as e:  # KeyError: the outbox, which lists staged files of other tables, was not loaded
        if isinstance(e, StateDamaged):
            yield e
        names = [n for n in files.walk_names(table.folder) if n.endswith(".parquet") and not n.startswith("_")]
    yield from _damaged_files(table.folder, names)


def _damaged_files(folder: StatePath, names: Iterable[str]) -> Iterator[StateDamaged]:
    """Yield the problems of data files in a folder."""
    for name in names:
        try:
            problem = parquet.find_damage(files.fresh_copy(folder / name))
        except FileNotFoundError:
            problem = "the file is missing"
        if problem is not None:
            yield StateDamaged(str(folder / name), problem)


# --- queries: status, deliveries, history, tables ---


@explain_errors_of_state
def status(plan: Plan, *, state: str | StatePath | None = None) -> dict[str, Any]:
    """Return the counts of the plan's documents and deliveries, the active run, and what pending deliveries wait for,
    as ``ferryman status --json`` shows them."""
    root = state_root(plan, state)
    counts = account.status(root, plan)
    return {**counts, **account.activity(root, plan, counts)}


@explain_errors_of_state
def deliveries(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    status: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    family: str | None = None,
    incomplete: bool = False,
    by: Literal["reason", "unread"] | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Return deliveries of current documents, each by its latest event, newest first, with the ledger's columns.

    Args:
        status: a status as shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case.
        family: an origin, with all that was made of it; or a file, with its rows.
        incomplete: return not deliveries but families with some pending or in doubt: ``source``, ``family``, and how
            many ``deliveries`` it has, ``ended``, ``pending``, ``in_doubt``, ``failed``, ``rejected``. Goes with
            ``source`` and ``family`` only.
        by: ``"reason"``: return not deliveries but the reasons why they have not arrived, the most frequent first:
            ``status`` (as shown), ``deliveries`` (how many), ``reason`` (of one of them) and ``example``, its document.
            ``"unread"``: return what was not read of delivered documents, by the words in their field ``unread``:
            ``deliveries`` (how many), ``unread`` and ``example``. Goes without ``status``.

    Raises:
        UsageError: there is no such status or no state yet; these arguments do not go together.
    """
    root = state_root(plan, state)
    if incomplete:
        if status is not None or destination is not None or by is not None:
            raise UsageError("incomplete: it goes with source and family only.")
        return [each._asdict() for each in account.incomplete_families(root, plan, source, family)[:limit]]
    queries = {None: account.deliveries, "reason": account.reasons, "unread": account.not_read}
    if (query := queries.get(by)) is None:
        raise UsageError(f"by={by!r}: give 'reason' or 'unread'.")
    return query(root, status=status, destination=destination, source=source, family=family, limit=limit, plan=plan)


@explain_errors_of_state
def history(
    plan: Plan, document: str, *, state: str | StatePath | None = None, limit: int | None = None, page: int = 1
) -> list[dict[str, Any]]:
    """Return the events of a document and its family, oldest first, with the ledger's columns.

    Args:
        limit: number of events of a page; None: return all events.
        page: 1: the newest events; 2: those before them; and so on.
    """
    return account.history(state_root(plan, state), document, plan, limit=limit, page=page)


@explain_errors_of_state
def tables(plan: Plan, *, state: str | StatePath | None = None) -> account.StateTables:
    """Return the plan's ``ledger`` and ``documents`` as Arrow tables, for pandas, Polars, DuckDB or Spark.

    Everything is read into memory, some 200 bytes a row. Query a larger state where it is stored: its tables are open
    Delta tables.
    """
    return account.tables(state_root(plan, state), plan)


# --- resolve: record what an operator found out about deliveries in doubt ---

_RESOLVE: Final = "resolve --as "

RESOLUTIONS: Final = tuple(verb.removeprefix(_RESOLVE) for verb in VERBS if verb.startswith(_RESOLVE))
"""Statuses that may be recorded for a delivery in doubt."""


@explain_errors_of_state
def resolve(
    plan: Plan,
    word: str,
    *,
    state: str | StatePath | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    reason: str | None = None,
    why: str = "",
) -> Retried:
    """Record what became of deliveries in doubt (at-most-once, killed in flight), or give up what failed.

    Args:
        word: "delivered": they took effect. "failed": they did not, and must not be sent again.
            "pending": they did not, send them. "dropped": they are given up; also those that failed or were rejected.

    Raises:
        UsageError: there is no state yet, or no such word.
    """
    if word.lower() not in RESOLUTIONS:
        raise UsageError(f"resolve as {word!r}: choose one of {', '.join(RESOLUTIONS)}.")
    command = Command(_RESOLVE + word.lower(), current_user(), why, None, document, destination, source, reason=reason)
    return submit_command(plan, state, command)


# --- retry, and how an operator's command reaches the state ---


@dataclass(frozen=True, slots=True)
class Retried:
    """Result of a command."""

    count: int | None
    """Deliveries (with ``force`` and ``dirty``: documents) that it concerns; None while it is queued."""
    queued: bool
    """A run holds the state, or was killed in the middle of a wave: the next wave applies it."""


@explain_errors_of_state
def retry(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    status: str | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    reason: str | None = None,
    force: bool = False,
    dirty: bool = False,
    forget: bool = False,
    why: str = "",
) -> Retried:
    """Make failed deliveries due now, with attempts from zero (RESTART).

    With ``force`` documents are read again, changed or not, as a new revision (FORCE). With ``dirty`` the next scan
    reads them, whatever their fingerprints, and they are processed if they have changed (DIRTY). With ``forget`` steps
    that remember are called again for them: what was answered for these documents is forgotten first. The filters
    select the deliveries.

    ``force`` without a filter, or with ``destination`` alone, also accepts the targets as they are now, such as one
    that was recreated on purpose.

    Raises:
        UsageError: there is no state yet, or no such status.
    """
    if force and dirty:
        raise UsageError("force and dirty: force reads again in any case, give one of them.")
    verb = "retry --force" if force else "dirty" if dirty else "retry"
    if forget:
        _forget_answers(plan, existing_state(plan, state, "retry"), status, document, destination, source, reason)
    statuses = None if status is None else frozenset(named_statuses(status)[0])
    command = Command(verb, current_user(), why, statuses, document, destination, source, reason=reason)
    done = submit_command(plan, state, command)
    if force and not (status or document or source or reason):
        _accept_target(plan, existing_state(plan, state, "retry"), destination)
    return done


def _accept_target(plan: Plan, root: StatePath, destination: str | None) -> None:
    """Accept the target of a destination, or of all of them, as it is now, if it is not the one that the state knows:
    all that was delivered to it is pending."""
    targets = load_targets(root)
    nodes = {n.name: n for n in plan.nodes if isinstance(n, DestinationNode) and destination in (None, n.name)}
    state = State(root, plan)
    with state.readers.reading():
        state.open_for_reading()
    for name in nodes.keys() & targets.keys():
        known, now = targets[name], ask_target(nodes[name], nodes[name].destination.identity)
        if now is None:
            now = known.found
        if known.needs_verification or now not in (None, known.id):
            settle_targets(root, {name: now}, state.wave)


def _forget_answers(plan: Plan, root: StatePath, *which: str | None) -> None:
    """Forget what steps of the plan that remember answered for documents.

    Args:
        which: status, document, destination, source and reason of their deliveries; None: any.
    """
    from ferryman.remembered.upkeep import store_of  # it would make each start slower

    status, document, destination, source, reason = which
    ids = set() if document is None else {document}
    if document is None or status or destination or source or reason:
        rows = account.deliveries(root, plan=plan, status=status, destination=destination, source=source, reason=reason)
        ids = {row["origin"] for row in rows if document in (None, row["document"], row["origin"])}
    for step in remembering_steps(plan.nodes):
        keeper = store_of(step.name, step.remember, root.parent)
        keeper.forget(keeper.keys_of_documents(ids))


@explain_errors_of_state
def skip(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    document: str | None = None,
    source: str | None = None,
    why: str = "",
) -> Retried:
    """Have the plan pass the entries of logs that it stops before now: the next run tries each once more, and counts it
    as failed if it fails again, as with ``on_error="continue"``. What a current run stops before later is not passed.

    Raises:
        UsageError: there is no state yet.
    """
    named = None
    if document is None:
        stops, rows = _current_stops(plan, existing_state(plan, state, "skip"), source)
        if not stops:
            return Retried(0, queued=False)
        if len(rows) == stops:  # fewer until a wave is settled: nothing gets past its stops before a command is applied
            named = frozenset(rows)
    command = Command(SKIP, current_user(), why, document=document, source=source, documents=named)
    return submit_command(plan, state, command)


def _current_stops(plan: Plan, root: StatePath, source: str | None) -> tuple[int, list[str]]:
    """Return the number of entries of a log that a plan stops before, and those whose event is in the ledger."""
    state = State(root, plan)
    names = [node.name for node in logs_read(plan.nodes) if source in (None, node.name)]
    stops = sum(len(LogPositions(state, name).stopped()) for name in names)
    return stops, [stop["document"] for stop in account.stopped(root, plan) if stop["source"] in names]


def existing_state(plan: Plan, state: str | StatePath | None, verb: str) -> StatePath:
    """Return the root of a plan's state.

    Raises:
        UsageError: there is no state yet, so that there is nothing to do for this verb.
    """
    root = state_root(plan, state)
    if not exists(root / IDENTITY):
        raise UsageError(f"{root}: there is no state of this plan yet: nothing to {verb}.")
    return root


def remove_retained(plan: Plan, *, state: str | StatePath | None = None) -> list[Retained]:
    """Have other systems keep nothing for a plan any more, and return what they kept. Sources that need it cannot go on
    from where they were.

    Raises:
        UsageError: there is no state yet.
        StateHeld: a run is active.
        DeliveryError: another system does not answer, or refuses it.
    """
    plan.freeze()
    root = existing_state(plan, state, "remove")
    removed: list[Retained] = []
    with State.take(root, plan) as held:
        for node, bookmarks in account.retaining_sources(root, plan):
            reader = reader_name(held, node.name)
            removed += node.source.retained(reader, bookmarks)
            node.source.remove_retained(reader, bookmarks)
        for destination, context in _retaining_destinations(root, plan):
            removed += [Retained(place, 0) for place in destination.retained(context)]
            destination.remove_retained(context)
    return removed


@explain_errors_of_state
def list_retained(plan: Plan, *, state: str | StatePath | None = None) -> list[Retained]:
    """Return what other systems keep for a plan: for its sources until it was read, and of its destinations beside what
    was delivered.

    Raises:
        UsageError: there is no state yet.
        DeliveryError: another system does not answer.
    """
    plan.freeze()
    root = existing_state(plan, state, "remove")
    found = [each for kept in account.retained(root, plan).values() for each in kept]
    places = [place for node, context in _retaining_destinations(root, plan) for place in node.retained(context)]
    return [*found, *(Retained(place, 0) for place in places)]


def _retaining_destinations(root: StatePath, plan: Plan) -> Iterator[tuple[Destination, DestinationContext]]:
    """Yield the destinations that may keep something in other systems, each with its context."""
    for node in plan.nodes:
        if isinstance(node, DestinationNode) and type(node.destination).retained is not Destination.retained:
            yield node.destination, context_of(plan, node, 0, sender_of(root))


def submit_command(plan: Plan, state: str | StatePath | None, command: Command) -> Retried:
    """Queue a command; apply all queued commands, unless a run holds the state.

    Raises:
        UsageError: there is no state yet.
    """
    root = existing_state(plan, state, command.verb.split()[0])
    name = queue_command(root / "commands", command)
    try:
        with State.take(root, plan) as held:
            if held.wave > held.settled or open_once_wave(held) is not None:
                return Retried(None, queued=True)  # the next run recovers first
            counts = {c.file: apply(held, c) for c in queued_commands(held) if not must_wait(held, c)}
            return Retried(counts.get(name, len(command.extra)), queued=False)
    except StateHeld:
        return Retried(None, queued=True)
