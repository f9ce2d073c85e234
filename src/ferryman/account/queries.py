"""Queries about deliveries and documents, answered without Spark and without changing the state.

Readers see committed facts only. Between a wave's commit and its settling, the files that the commit names count too,
and rows of the outbox that have no event yet are BATCHED.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, Unpack

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.account.counts import WAVES, CachedCounts, load_cached, load_snapshot, save_cached
from ferryman.account.relations import (
    COUNTS,
    EVERYTHING,
    NOT_ARRIVED,
    UNSUCCESSFUL,
    Filter,
    FilterOptions,
    Selection,
    View,
    Wanted,
)
from ferryman.account.snapshot import EndedRow, Snapshot, SnapshotUnusable, WaveCounts
from ferryman.errors import EngineError, StateDamaged, UsageError
from ferryman.plan import (
    Plan,
    SourceNode,
    destinations_of_sources,
    errors_node,
    logs_read,
    remembering_steps,
    sources_of,
)
from ferryman.records.rows import (
    COUNTING_COLUMNS,
    DOCUMENTS,
    LEDGER,
    LEDGER_COLUMNS,
    STOPS,
    Status,
    display_status,
    named_statuses,
    reason_of,
)
from ferryman.sources.base import Retained, Source
from ferryman.state.activity import Trouble, find_activity
from ferryman.state.logs import RANGES, LogPositions, combined_counts, log_counts, reader_name
from ferryman.state.outbox import pending_rows
from ferryman.state.source_memory import load_memories
from ferryman.state.state import COUNTED, SETTLED, TABLES, WAVE, State, damaged_data, plan_of
from ferryman.storage import files, parquet
from ferryman.storage.delta import open_log
from ferryman.storage.files import StatePath, is_disk_full
from ferryman.storage.query import connect

OUTSTANDING: Final = ("failed", "rejected", "in_doubt", "pending")
"""Statuses of deliveries that have not ended successfully."""

_SAME_DAMAGE: Final = 20
"""How often a reader must find the same damage, beside a driver that commits all the time, before it raises: files that
the driver has removed differ from one attempt to the next."""

_RETRY_S: Final = 60.0
"""Seconds for which a read is retried while it finds different damage each time: on a busy machine a driver may
overtake every attempt."""

_PAUSE_S: Final = 0.05
"""Seconds between two attempts: a driver removes entries from its logs within moments."""

_T = TypeVar("_T")


def status(root: StatePath, plan: Plan) -> dict[str, Any]:
    """Return what ``status --json`` shows. ``balanced``: every delivery of every document is accounted for."""
    return status_with_waves(root, plan, 0)[0]


def status_with_waves(root: StatePath, plan: Plan, limit: int) -> tuple[dict[str, Any], list[WaveCounts]]:
    """Return the results of ``status`` and of ``waves``, of one look at the state; at most ``counts.WAVES`` waves."""
    if (cached := _load_cached(root, plan)) is None:
        found, last = _count(root, plan, lambda view: (view.status(), view.waves(limit) if limit else []))
    else:
        found, last = cached.status, cached.waves[:limit]
    logs = retry_read(root, lambda: log_counts(State(root, plan), plan))  # not cached: logs grow while no run commits
    zero = dict.fromkeys(COUNTS, 0)
    combined = {name: {**zero, "delivered": number} for name, number in combined_counts(plan, logs).items()}
    all_of_it = {
        **found,
        "sources": {**found["sources"], **logs},
        "destinations": {**found["destinations"], **combined},
        **remembered_counts(root, plan),
        **retained_counts(root, plan),
        **unseen_deletes(root, plan),
    }
    return all_of_it, last


def retained_counts(root: StatePath, plan: Plan) -> dict[str, Any]:
    """Return ``retained``: for each source what other systems keep for it; {} if there is nothing."""
    found = {
        name: [each._asdict() for each in kept] for name, kept in retained(root, plan, skip_errors=True).items() if kept
    }
    return {"retained": found} if found else {}


def unseen_deletes(root: StatePath, plan: Plan) -> dict[str, Any]:
    """Return ``unseen_deletes``: source -> which deletes it does not see, as of its last scan; {} if it sees all."""
    names = [node.name for node in sources_of(plan.nodes) if node.source.may_not_see_deletes]
    memories = retry_read(root, lambda: load_memories(root, plan, names))
    found = {name: memory.unseen_deletes for name, memory in memories.items() if memory.unseen_deletes}
    return {"unseen_deletes": found} if found else {}


def remembered_counts(root: StatePath, plan: Plan) -> dict[str, Any]:
    """Return ``remembered``: for each step that remembers, what its store has and what became of all inputs so far; {}
    if no step does."""
    if not (steps := remembering_steps(plan.nodes)):
        return {}
    from ferryman.remembered.upkeep import store_of  # it would make each start slower

    totals = {step.name: store_of(step.name, step.remember, root.parent).totals() for step in steps}
    return {"remembered": {name: each._asdict() for name, each in totals.items()}}


def outstanding(root: StatePath, plan: Plan) -> dict[str, int]:
    """Count the deliveries of current documents that are ``failed``, ``rejected``, ``in_doubt`` or ``pending``."""
    if (cached := _load_cached(root, plan)) is None:
        return query_view(root, plan, View.outstanding)
    destinations = cached.status["destinations"].values()
    return {name: sum(counts[name] for counts in destinations) for name in OUTSTANDING}


def outstanding_by_destination(root: StatePath, plan: Plan) -> dict[str, dict[str, int]]:
    """Return destination -> status -> the same for each destination; quick if there are none."""
    if (cached := _load_cached(root, plan)) is not None:
        destinations = cached.status["destinations"]
    elif (rows := retry_read(root, lambda: _outstanding_rows(load_for_reading(root, plan)))) is not None:
        names = {name for names in destinations_of_sources(plan.nodes).values() for name in names} | rows.keys()
        if (errors := errors_node(plan.nodes)) is not None:
            names.add(errors.name)
        return {name: {**dict.fromkeys(OUTSTANDING, 0), "pending": rows[name]} for name in sorted(names)}
    else:
        destinations = _count(root, plan, View.status)["destinations"]
    return {name: {status: counts[status] for status in OUTSTANDING} for name, counts in destinations.items()}


def _outstanding_rows(state: State) -> Counter[str] | None:
    """Return destination -> rows that are pending in the outbox, if nothing else is outstanding; None: there may be
    something."""
    if not _only_rows_outstanding(state):
        return None
    rows: Counter[str] = Counter()
    for file in state.outbox.files.values():
        rows[file.partition["destination"]] += pending_rows(file)
    return rows


def load_for_reading(root: StatePath, plan: Plan) -> State:
    """Return a state with its tables as they are now.

    Raises:
        UsageError: there is no state yet.
    """
    state = _find_state(root, plan)
    with state.readers.reading():
        state.load()
    return state


def _find_state(root: StatePath, plan: Plan | None) -> State:
    """Return a state without its tables.

    Raises:
        UsageError: there is none yet.
    """
    state = State(root, plan if plan is not None else plan_of(root))
    if not state.exists:
        raise UsageError(
            f"{root}: there is no state of this plan yet. Run it first, or give the --state that it ran with."
        )
    return state


def outstanding_for_driver(state: State) -> dict[str, int]:
    """Count the outstanding deliveries for the state's driver; quick if there are none."""
    return dict.fromkeys(OUTSTANDING, 0) if _none_outstanding(state) else outstanding(state.root, state.plan)


def _none_outstanding(state: State) -> bool:
    """Return True if statistics alone show that nothing is outstanding, which they do for most files; False: there may
    be something."""
    return not state.outbox.files and _only_rows_outstanding(state)


def _only_rows_outstanding(state: State) -> bool:
    """Return True if statistics alone show that nothing is outstanding but rows of the outbox; False: there may be
    something."""
    if state.outbox.transaction(RANGES):
        return False
    unsuccessful, waits = pc.field("status").isin(UNSUCCESSFUL), pc.field("due").is_valid() | pc.field("forced")
    try:
        return not any(
            parquet.scan(table.paths(), schema).count_rows(filter=which)
            for table, schema, which in ((state.ledger, LEDGER, unsuccessful), (state.documents, DOCUMENTS, waits))
            if table.files
        )
    except (StateDamaged, OSError, pa.ArrowException):
        return False  # counting will raise, and name the damage


def all_errors_queued(root: StatePath, plan: Plan) -> bool:
    """Return whether the plan has an error queue that has taken all its messages."""
    if (node := errors_node(plan.nodes)) is None:
        return False
    wanted = Filter(frozenset((Status.DEAD, Status.ERROR_DOC)), destination=node.name)
    selection = partial(wanted.selection, COUNTING_COLUMNS)
    return not query_view(root, plan, lambda view: view.count_deliveries(wanted), selection)


def unread(root: StatePath, plan: Plan) -> dict[str, tuple[int, str]]:
    """Return the documents that an operator wants repeated and that no listing has contained since: source -> (number,
    example).

    Only sources that do not list all documents (``Source.lists_all``) have any.
    """
    sources = [n.name for n in sources_of(plan.nodes) if not n.source.lists_all]
    return query_view(root, plan, lambda view: view.unread(sources)) if sources else {}


def waves(root: StatePath, limit: int = 5, plan: Plan | None = None) -> list[WaveCounts]:
    """Return the last waves, newest first."""
    if limit > WAVES:
        return query_view(root, plan, lambda view: view.waves(limit))
    cached = _load_cached(root, plan)
    return _count(root, plan, lambda view: view.waves(limit)) if cached is None else cached.waves[:limit]


def ended(root: StatePath, plan: Plan) -> list[EndedRow]:
    """Count the events by which deliveries ended."""
    cached = _load_cached(root, plan)
    known = None if cached is None else cached.ended
    if known is None and load_snapshot(root) is None:
        return query_view(root, plan, View.ended, _scan)
    return _count(root, plan, View.ended) if known is None else known


def first_event_of_pending(root: StatePath, plan: Plan, wave: int | None) -> float | None:
    """Return the time of the first event of any delivery that is pending after an event, and of any delivery since a
    wave; None: there is none. Of a large state, whose counts are cached, only of deliveries since the wave.

    Args:
        wave: the first wave with pending rows; None: there are none.
    """
    is_large = _load_cached(root, plan) is not None
    return query_view(root, plan, lambda view: view.first_event_of_pending(wave, failed=not is_large))


def wave_times(root: StatePath, limit: int = 20, plan: Plan | None = None) -> dict[int, tuple[Any, Any]]:
    """Return wave -> the times of its first and its last event, for the last waves that have any."""
    return query_view(root, plan, lambda view: view.wave_times(limit), _scan)


def wave_events(root: StatePath, wave: int, plan: Plan | None = None, *, limit: int = 200) -> list[dict[str, Any]]:
    """Return the events of a wave, with the ledger's columns: first those of what has not arrived."""
    of_wave = f"FROM ledger WHERE wave = {int(wave)} ORDER BY status IN {_NOT_NOTABLE}, ordinal, document, destination"

    def query(view: View) -> tuple[list[dict[str, Any]], bool]:
        return view.rows(f"SELECT {', '.join(LEDGER_COLUMNS)} {of_wave} LIMIT {int(limit)}"), view.is_whole

    def first_documents(view: View) -> list[str]:
        return [row["document"] for row in view.rows(f"SELECT document {of_wave} LIMIT {int(limit)}")]

    def notable(documents: Sequence[str] = ()) -> Selection:
        is_wanted = ~pc.field("status").isin(_NOT_NOTABLE)
        if documents:
            is_wanted |= pc.field("document").isin(documents)
        return Selection((pc.field("wave") == int(wave)) & is_wanted, ("wave", "status", "document"), waits=False)

    found, is_whole = query_view(root, plan, query, notable)
    if not is_whole and len(found) < limit:
        documents = query_view(root, plan, first_documents, _scan)
        found, _ = query_view(root, plan, query, partial(notable, documents))
    return found


_NOT_NOTABLE: Final = (Status.INDEXED.value, Status.PROCESSING.value, Status.DROPPED.value)
"""Stored statuses of the events that the list of a wave ends with."""


def _scan() -> Selection:
    """Return everything, of which a query reads few columns, or few rows that a plain condition on a column tells."""
    return Selection(None, ())


def outcomes(
    root: StatePath, message: str, plan: Plan | None = None, *, limit: int = 200
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return what has become of the deliveries that an operator's command concerned: how many there are of each status
    (as shown); and some of them, first those that have not arrived: ``document``, ``destination``, ``status``,
    ``operation``, ``message``, ``attempt``, ``wave``, ``created``.

    Args:
        message: of the command's events, see ``state.commands.Command.message``.
    """
    return query_view(root, plan, lambda view: view.outcomes(message, limit), _scan)


def cache_counts(state: State, *, replace: bool) -> None:
    """Store the counts that ``status`` shows of a large state. For its driver, between waves.

    Args:
        replace: count again even if current counts are stored.
    """
    if sum(f.rows for f in state.ledger.files.values()) <= limits.COUNTED_EVENTS:
        return
    reached = destinations_of_sources(state.plan.nodes)
    with contextlib.suppress(StateDamaged):
        if not replace and load_cached(state, reached) is not None:
            return
    try:
        _cache_counts(state, reached, load_snapshot(state.root))
    except SnapshotUnusable:
        _cache_counts(state, reached, None)


def _cache_counts(state: State, reached: Mapping[str, Sequence[str]], snapshot: Snapshot | None) -> None:
    with open_view(state.root, state.plan, snapshot) as view, contextlib.ExitStack() as unfinished:
        snapshot = view.snapshot
        if (writer := view.next_snapshot(state)) is not None:
            unfinished.callback(writer.abandon)
        counts = view.count(reached, writer)
        status, last_waves, ended = view.status(reached, counts), view.waves(WAVES), view.ended()
        if writer is not None:
            snapshot = view.finish(writer, counts, last_waves, ended)
            unfinished.pop_all()
        held = _count_held(view) if _may_hold_deletes(status) else 0
    save_cached(
        state, reached, status, last_waves, has_not_read=counts.unread, held=held, ended=ended, snapshot=snapshot
    )
    if writer is not None and snapshot is not None:
        writer.publish(snapshot)


def cache_differs(root: StatePath, plan: Plan) -> bool:
    """Count all events, and return whether the stored counts are current and yet different, or whether counting from
    the snapshot gives something different."""
    if (cached := _load_cached(root, plan, by_plan=False)) is None:
        return False
    status = query_view(root, plan, lambda view: view.status(cached.reached))
    from_snapshot = status if cached.snapshot is None else _count(root, plan, lambda view: view.status(cached.reached))
    return not (status == cached.status == from_snapshot) and _load_cached(root, plan, by_plan=False) == cached


def deliveries(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **options: Unpack[FilterOptions]
) -> list[dict[str, Any]]:
    """Return the deliveries of current documents, each by its latest event, newest first, with the ledger's columns.

    Before them, the entries of logs that the plan stops before: with status ``stopped``, and no destination. Then
    deletes that wait because a step failed for a part of the newer version: with status ``held``.

    Raises:
        UsageError: there is no such status; there is no state yet.
    """
    if limit is None:
        return list(iter_deliveries(root, plan=plan, **options))
    wanted = Filter.from_options(options)
    return query_view(root, plan, lambda view: _newest_deliveries(view, wanted, limit), wanted.selection)


def _newest_deliveries(view: View, wanted: Filter, limit: int) -> list[dict[str, Any]]:
    uncounted = [*itertools.islice(_uncounted(view, wanted), limit)]
    return [*uncounted, *view.deliveries(wanted, limit=limit)][:limit]


def iter_deliveries(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **options: Unpack[FilterOptions]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``deliveries`` one by one; only a few are in memory at a time."""
    wanted = Filter.from_options(options)

    def rows() -> Iterator[dict[str, Any]]:
        with open_view(root, plan, wanted=wanted.selection) as view:
            left = limit
            for row in itertools.islice(_uncounted(view, wanted), limit):
                left = None if left is None else left - 1
                yield row
            yield from view.iter_deliveries(wanted, left)

    def read_first() -> tuple[dict[str, Any] | None, Iterator[dict[str, Any]]]:
        found = rows()
        return next(found, None), found  # sorting has read all files before the first row, so later rows need no retry

    first, others = retry_read(root, read_first)
    if first is not None:
        yield first
        yield from others


def count_deliveries(root: StatePath, *, plan: Plan | None = None, **options: Unpack[FilterOptions]) -> int:
    """Count the rows of ``deliveries``."""
    wanted = Filter.from_options(options)

    def count(view: View) -> int:
        return view.count_deliveries(wanted) + sum(1 for _ in _uncounted(view, wanted))

    return query_view(root, plan, count, partial(wanted.selection, COUNTING_COLUMNS))


def _uncounted(view: View, wanted: Filter) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``deliveries`` that are in no count: entries that the plan stops before, and held deletes. No
    other query may run until the last row."""
    for row in view.stopped(wanted):
        yield {name: row[name] for name in LEDGER_COLUMNS}
    yield from view.held(wanted)


def stopped(root: StatePath, plan: Plan) -> list[dict[str, Any]]:
    """Return the entries of logs that the plan stops before: ``source``, ``document``, ``reason``, ``since`` (ISO 8601)
    and ``attempt``, the number of attempts made."""
    if not any(LogPositions(State(root, plan), node.name).stopped() for node in logs_read(plan.nodes)):
        return []
    return [
        {
            "source": row["source"],
            "document": row["document"],
            "reason": reason_of(row["message"]).removeprefix(STOPS),
            "since": row["created"],
            "attempt": row["attempt"],
        }
        for row in query_view(root, plan, lambda view: view.stopped(EVERYTHING))
    ]


def reasons(
    root: StatePath,
    *,
    limit: int | None = None,
    plan: Plan | None = None,
    among: Collection[str] = (),
    **options: Unpack[FilterOptions],
) -> list[dict[str, Any]]:
    """Count deliveries that have not arrived by reason, the most frequent first: ``status`` (as shown), ``deliveries``
    (how many), ``reason`` (of one of them) and ``example``, its document.

    Reasons that differ only in numbers and in what they quote are counted together. Without a ``status``, all
    deliveries count that are neither delivered nor deleted.

    Args:
        among: statuses as shown, instead of ``status``.
    """
    wanted = Filter.from_options(options)
    if among:
        wanted = wanted._replace(statuses=_stored_statuses(among))
    wanted = wanted._replace(statuses=wanted.statuses or NOT_ARRIVED)
    return query_view(
        root, plan, lambda view: _reasons(view, wanted, limit), partial(wanted.selection, COUNTING_COLUMNS)
    )


def _stored_statuses(names: Collection[str]) -> frozenset[str]:
    return frozenset[str]().union(*(named_statuses(each)[0] for each in names))


def _reasons(view: View, wanted: Filter, limit: int | None) -> list[dict[str, Any]]:
    return [
        {
            "status": display_status(each["status"], each["operation"]),
            "deliveries": each["deliveries"],
            "reason": each["reason"],
            "example": each["example"],
        }
        for each in view.reasons(wanted, limit)
    ]


def deliveries_with_reasons(
    root: StatePath, reasons_limit: int, *, limit: int, plan: Plan | None = None, **options: Unpack[FilterOptions]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the results of ``deliveries`` and of ``reasons``, of one look at the state."""
    wanted = Filter.from_options(options)

    def query(view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return _newest_deliveries(view, wanted, limit), _reasons(view, wanted, reasons_limit)

    return query_view(root, plan, query, wanted.selection)


def not_read(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **options: Unpack[FilterOptions]
) -> list[dict[str, Any]]:
    """Count what was delivered by the words in its field ``unread``, the most frequent first: ``deliveries`` (how
    many), ``unread`` (what their documents have and their texts have not) and ``example``, the document of one.

    A document of which several things were not read counts for each.

    Raises:
        UsageError: there is no state yet; the filters have a status.
    """
    if options.get("status") is not None:
        raise UsageError("by unread: it counts what is delivered; leave the status out.")
    wanted = Filter.from_options(options)
    return query_view(root, plan, lambda view: view.not_read(wanted, limit))


def has_not_read(root: StatePath, plan: Plan) -> bool:
    """Return whether ``not_read`` counts any delivery."""
    cached = _load_cached(root, plan)
    known = None if cached is None else cached.has_not_read
    return query_view(root, plan, View.has_not_read) if known is None else known


def held_deletes(root: StatePath, plan: Plan, counts: Mapping[str, Any]) -> int:
    """Count deletes that wait because a step failed for a part of the newer version.

    Args:
        counts: the result of ``status``.
    """
    if not _may_hold_deletes(counts):
        return 0
    cached = _load_cached(root, plan)
    known = None if cached is None else cached.held
    return query_view(root, plan, _count_held) if known is None else known


def _count_held(view: View) -> int:
    return sum(1 for _ in view.held(EVERYTHING))


def _may_hold_deletes(counts: Mapping[str, Any]) -> bool:
    """Return whether something has not ended well, or not yet: then a step may hold deletes."""
    return any(
        numbers[name] for numbers in counts["destinations"].values() for name in ("failed", "rejected", "pending")
    )


def running(root: StatePath) -> dict[str, Any] | None:
    """Return what the active run of a state is doing; None: no run is active.

    Returns:
        ``host``, ``pid`` and ``since`` (ISO 8601) of its process; ``wave``, ``phase`` ("": it waits), ``phase_since``
        and ``until`` (ISO 8601; None: unknown); ``done`` of ``expected`` documents of the phase; ``delivered``,
        ``pending`` and ``failed`` deliveries of the run so far.
    """
    holder, now = find_activity(root / "lock")
    if holder is None or not holder.is_active:
        return None
    return {
        "host": holder.host,
        "pid": holder.pid,
        "since": holder.since,
        "wave": now.wave,
        "phase": now.phase,
        "phase_since": _iso(now.since),
        "until": _iso(now.until),
        **{name: getattr(now, name) for name in ("done", "expected", "delivered", "pending", "failed")},
    }


def pending_reasons(root: StatePath, plan: Plan, *, limit: int = 20) -> list[dict[str, Any]]:
    """Count pending deliveries by what they wait for, the most frequent first: ``node`` (a step, router, source or
    destination), ``deliveries``, ``reason``, ``since`` and ``next_try`` (ISO 8601; None: unknown, and for ``next_try``
    the next run), and ``example``, a document.

    Of a large state, whose counts are cached, only what is known without a look at its rows: the nodes that are not
    called for now, with the pending deliveries of those that are destinations.
    """
    holder, noted = find_activity(root / "lock")
    is_active = holder is not None and holder.is_active
    troubles = {each.node: each for each in noted.troubles}
    if (cached := _load_cached(root, plan)) is not None:
        numbers = {name: counts["pending"] for name, counts in cached.status["destinations"].items()}
        return [
            _pending_reason(each.node, numbers.get(each.node), each.why, "", None, None, each, is_active=is_active)
            for each in troubles.values()
            if numbers.get(each.node) != 0
        ][:limit]
    return [
        _pending_reason(
            row["node"],
            row["deliveries"],
            row["reason"],
            row["example"],
            row["since"],
            row["due"],
            troubles.get(row["node"]),
            is_active=is_active,
        )
        for row in query_view(root, plan, lambda view: view.pending_reasons(limit))
    ]


def _pending_reason(
    node: str,
    deliveries: int | None,
    reason: str,
    example: str,
    since: Any,
    due_us: int | None,
    trouble: Trouble | None,
    *,
    is_active: bool,
) -> dict[str, Any]:
    """Return a row of ``pending_reasons``; a node that is not called for now is the reason, whatever came before."""
    if trouble is not None:
        reason, since = trouble.why, _iso(trouble.since)
        next_try = _iso(trouble.next_try or 0.0) if is_active else None
    else:
        next_try = _iso(due_us / 1e6) if due_us else None
        since = since.isoformat() if hasattr(since, "isoformat") else since
    return {
        "node": node,
        "deliveries": deliveries,
        "reason": reason or NOT_SENT,
        "since": since,
        "next_try": next_try,
        "example": example,
    }


NOT_SENT: Final = "committed, and not sent yet"
"""Reason of a delivery that waits for nothing but its turn."""


def _iso(seconds: float) -> str | None:
    """Return a time in seconds since 1970 as ISO 8601; None for 0."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds") if seconds else None


def by_node(root: StatePath, plan: Plan) -> dict[str, dict[str, int]]:
    """Count deliveries that have not arrived by the step or router that their reason names.

    Returns: node -> status (as shown) -> deliveries.
    """
    if not _has_reasons(plan):
        return {}
    return query_view(root, plan, _by_node, _not_arrived)


def by_node_and_reasons(
    root: StatePath, plan: Plan, among: Collection[str], limit: int
) -> tuple[dict[str, dict[str, int]], list[dict[str, Any]]]:
    """Return the results of ``by_node`` and of ``reasons`` among some statuses, of one look at the state."""
    wanted = Filter(_stored_statuses(among))

    def query(view: View) -> tuple[dict[str, dict[str, int]], list[dict[str, Any]]]:
        return _by_node(view) if _has_reasons(plan) else {}, _reasons(view, wanted, limit)

    return query_view(root, plan, query, _not_arrived)


_not_arrived: Final = partial(Filter(NOT_ARRIVED).selection, COUNTING_COLUMNS)


def _by_node(view: View) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for each in view.by_node():
        counts = found.setdefault(each["node"], {})
        word = display_status(each["status"], each["operation"])
        counts[word] = counts.get(word, 0) + each["deliveries"]
    return found


def _has_reasons(plan: Plan) -> bool:
    """Return whether reasons may name a step or router."""
    return bool({node.kind for node in plan.nodes} & {"step", "router", "join", "alts", "keyed"})


class StateTables(NamedTuple):
    """Open tables of a state, as stored; the reference of the state directory describes their columns."""

    ledger: pa.Table
    """One row for each event of a delivery."""
    documents: pa.Table
    """One row for each document and wave that changed it; the row of the highest wave counts."""


def tables(root: StatePath, plan: Plan) -> StateTables:
    """Read a consistent snapshot of a state's open tables into memory."""
    return query_view(root, plan, lambda view: StateTables(view.ledger(), view.documents()))


@contextlib.contextmanager
def open_view(
    root: StatePath, plan: Plan | None, snapshot: Snapshot | None = None, wanted: Wanted | None = None
) -> Iterator[View]:
    """Open the state's tables for queries.

    Args:
        snapshot: for counts only, see ``View``.
        wanted: makes what the queries need, if the state is large; None: everything.

    Raises:
        UsageError: there is no state yet.
        StateDamaged, StateForeign: with the path.
    """
    with _open_database(root, plan) as (state, db, spill):
        state.verify()
        yield View(db, state, spill, snapshot, wanted)


@contextlib.contextmanager
def _open_database(root: StatePath, plan: Plan | None) -> Iterator[tuple[State, duckdb.DuckDBPyConnection, Path]]:
    """Open a database for queries on a state; yield the state without its tables, the database, and a folder for
    intermediate results.

    Raises: the errors of ``open_view``.
    """
    state = _find_state(root, plan)
    with (
        state.readers.reading(),
        tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as spill,
        explain_query_errors(state, Path(spill)),
        connect(Path(spill)) as db,
    ):
        yield state, db, Path(spill)


@contextlib.contextmanager
def explain_query_errors(state: State, spill: Path) -> Iterator[None]:
    """Find the damaged file when a query fails, since DuckDB does not name it.

    Args:
        spill: folder for intermediate results that do not fit into memory.

    Raises:
        StateDamaged: a file is damaged; it is named.
        EngineError: no file is damaged, the query lacks memory and disk space.
    """
    try:
        yield
    except FileNotFoundError as e:
        raise StateDamaged(str(e.filename or e), "the file is missing") from e
    except (duckdb.Error, OSError) as e:
        if isinstance(e, duckdb.OutOfMemoryException) or is_disk_full(e):
            raise EngineError(
                f"{state.root}: this query needs more than {limits.QUERY_MEMORY} of memory, and there is no room for "
                f"the rest in {spill}: make room there, or set TMPDIR."
            ) from e
        if isinstance(e, OSError):
            raise
        found = damaged_data(state) if state.exists else None
        raise found or StateDamaged(str(state.root), f"cannot be queried ({str(e).splitlines()[0]})") from e


def retry_read(root: StatePath, read: Callable[[], _T]) -> _T:
    """Read a state; retry if it looks damaged, since a running driver may have replaced files meanwhile.

    Raises:
        StateDamaged: two attempts found the same damage with no commit in between, or many attempts found the same.
    """
    previous: tuple[object, ...] = ()
    seen: Counter[tuple[str, str]] = Counter()
    deadline = time.monotonic() + _RETRY_S
    while True:
        logs = last_entries(root)
        try:
            return read()
        except StateDamaged as e:
            damage = (Path(e.path).name, e.what)  # the name only: a preview links the files into a new folder each time
            seen[damage] += 1
            if (*damage, logs) == previous or seen[damage] >= _SAME_DAMAGE or time.monotonic() >= deadline:
                raise
            previous = (*damage, last_entries(root))
        time.sleep(_PAUSE_S)


def last_entries(root: StatePath) -> tuple[int, ...]:
    """Return the last log version of each table, which changes whenever a driver commits."""
    with files.cached_listing(root):
        return tuple(open_log(root / name).last() for name in TABLES)


def _load_cached(root: StatePath, plan: Plan | None, *, by_plan: bool = True) -> CachedCounts | None:
    """Return the stored counts if they are current; a damaged file counts as none.

    Args:
        by_plan: only if they were counted for this plan.

    Raises:
        StateDamaged: a table's log is damaged, or a data file is missing.
    """
    state = State(root, plan if plan is not None else plan_of(root))
    if not state.exists or not files.exists(root / COUNTED):
        return None
    reached = destinations_of_sources(plan.nodes) if by_plan and plan is not None else None

    def read() -> CachedCounts | None:
        with state.readers.reading():
            state.verify()
            state.load_consistently([WAVE, SETTLED])
            for table in state.tables:
                table.verify_sizes()
            with contextlib.suppress(StateDamaged):
                return load_cached(state, reached)
            return None

    return retry_read(root, read)


def query_view(root: StatePath, plan: Plan | None, query: Callable[[View], _T], wanted: Wanted | None = None) -> _T:
    """Return the result of a query on the state's tables as they are at one moment; it may be run several times.

    Args:
        wanted: what the query needs; None: everything.

    Raises: the errors of ``open_view``.
    """

    def read() -> _T:
        with open_view(root, plan, wanted=wanted) as view:
            return query(view)

    return retry_read(root, read)


def query_tables(root: StatePath, plan: Plan, query: Callable[[State, duckdb.DuckDBPyConnection], _T]) -> _T:
    """Return the result of a query that loads and registers the tables it needs; it may be run several times.

    Raises: the errors of ``open_view``.
    """

    def read() -> _T:
        with _open_database(root, plan) as (state, db, _):
            return query(state, db)

    return retry_read(root, read)


def _count(root: StatePath, plan: Plan | None, query: Callable[[View], _T]) -> _T:
    """Answer a query that a snapshot helps to answer."""

    def read() -> _T:
        with open_view(root, plan, load_snapshot(root)) as view:
            return query(view)

    try:
        return retry_read(root, read)
    except SnapshotUnusable:
        return query_view(root, plan, query)


# --- what other systems keep for a plan ---


def retained(root: StatePath, plan: Plan, *, skip_errors: bool = False) -> dict[str, list[Retained]]:
    """Return for each source what other systems keep for it, as of now.

    Args:
        skip_errors: leave out a source that does not answer.

    Raises:
        DeliveryError: another system does not answer.
    """
    found = {}
    for node, bookmarks in retaining_sources(root, plan):
        try:
            found[node.name] = node.source.retained(reader_name(State(root, plan), node.name), bookmarks)
        except Exception:
            if not skip_errors:
                raise
    return found


def retaining_sources(root: StatePath, plan: Plan) -> list[tuple[SourceNode, dict[str, Any]]]:
    """Return the sources for which other systems may keep something, with the bookmarks of the last commit."""
    nodes = [n for n in sources_of(plan.nodes) if type(n.source).retained is not Source.retained]
    memories = retry_read(root, lambda: load_memories(root, plan, [node.name for node in nodes]))
    return [(node, memories[node.name].bookmarks) for node in nodes]
