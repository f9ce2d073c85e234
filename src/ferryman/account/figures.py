"""Figures of a state that change over time, for metrics and dashboards: counts that only grow, ages, sizes.

They are computed from the state's tables, by the queries of ``status``. They cost less than all that it counts: of what
has arrived only the number of events is counted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ferryman.account import queries
from ferryman.account.snapshot import EndedRow
from ferryman.errors import StateDamaged
from ferryman.plan import CalledNode, DestinationNode, Plan, logs_read, sources_of
from ferryman.records.rows import Status, display_status
from ferryman.sources.log import Log
from ferryman.state.activity import find_activity
from ferryman.state.logs import log_counts
from ferryman.state.outbox import pending_rows
from ferryman.state.runs import PastRuns, load_runs
from ferryman.state.state import SETTLED, STEP_TIME, State
from ferryman.state.targets import load_targets, load_verified
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import count_by


class EndedCounts(NamedTuple):
    """Deliveries that ended, by the events of the ledger: a delivery counts each time that it ends, and nothing is
    taken away when its document changes.

    Attributes:
        by_status: (destination, status as shown) -> number of events.
        attempts: (destination, attempt) -> deliveries that arrived at that attempt.
    """

    by_status: Counter[tuple[str, str]]
    attempts: Counter[tuple[str, int]]

    def attempts_at(self, destination: str) -> Counter[int]:
        """Return attempt -> deliveries that arrived at it, of one destination."""
        return Counter({attempt: n for (name, attempt), n in self.attempts.items() if name == destination})


class Figures(NamedTuple):
    """Figures of a state.

    Attributes:
        outstanding: destination -> deliveries of current documents that are ``failed``, ``rejected``, ``in_doubt`` or
            ``pending``.
        remembered: step that remembers -> its totals, as in ``status``.
        ended: what has ended since the state was made.
        oldest_pending: when the delivery that has been pending longest was committed or first failed, in seconds since
            1970; None: nothing is pending, or it is not known.
        available: node -> whether it may be called, as of the current or last run.
        step_seconds: step -> seconds spent in its calls; calls at the same time add up.
        runs: the last runs.
        state_bytes: size of the files that the state's tables name.
        verified: destination -> when all of it was last found there, in seconds since 1970.
    """

    outstanding: dict[str, dict[str, int]]
    remembered: dict[str, dict[str, Any]]
    ended: EndedCounts
    oldest_pending: float | None
    available: dict[str, bool]
    step_seconds: dict[str, float]
    runs: PastRuns
    state_bytes: int
    verified: dict[str, float]


class UnreadFigures(NamedTuple):
    """Entries and jobs that wait in the logs and the intake queue that a plan reads.

    Attributes:
        logs: source that reads a log -> its counts, see ``state.logs.log_counts``.
        oldest_messages: source -> when the oldest entry that it has not processed was written.
        jobs: state of a job of the intake queue -> number of jobs; {}: the plan reads no such queue.
    """

    logs: dict[str, dict[str, Any]]
    oldest_messages: dict[str, float]
    jobs: dict[str, int]


def figures(root: StatePath, plan: Plan) -> Figures:
    """Return the figures of a state; nothing but its files is read.

    Raises:
        UsageError: there is no state yet.
        StateDamaged, StateForeign: with the path.
    """
    outstanding = queries.outstanding_by_destination(root, plan)
    state = queries.retry_read(root, lambda: queries.load_for_reading(root, plan))
    is_pending = any(counts["pending"] for counts in outstanding.values())
    return Figures(
        outstanding,
        queries.remembered_counts(root, plan).get("remembered", {}),
        ended(root, plan),
        oldest_pending(state) if is_pending else None,
        availability(root, plan),
        {name: state.outbox.transaction(f"{STEP_TIME}{name}") / 1e6 for name in _step_names(plan)},
        load_runs(root),
        sum(file.size for table in state.tables for file in table.files.values()),
        {
            name: dt.datetime.fromisoformat(each["clean"]["at"]).timestamp()
            for name, each in verifications(root, plan).items()
            if each["clean"] is not None
        },
    )


def backlog(root: StatePath, plan: Plan) -> UnreadFigures:
    """Return what waits for a plan, as its logs and its intake queue say now: they may be slow to answer.

    Raises:
        UsageError: there is no state yet.
        StateDamaged, StateForeign: with the path.
    """
    reads_logs = bool(logs_read(plan.nodes))
    state = queries.retry_read(root, lambda: queries.load_for_reading(root, plan)) if reads_logs else None
    logs = log_counts(state, plan)
    return UnreadFigures(logs, _oldest_messages(plan, logs), _job_counts(plan))


def _step_names(plan: Plan) -> list[str]:
    return [node.name for node in plan.nodes if node.kind in ("step", "join")]


def ended(root: StatePath, plan: Plan) -> EndedCounts:
    """Count what has ended since the state was made."""
    return _sum_up(queries.ended(root, plan))


def _sum_up(rows: Iterable[EndedRow]) -> EndedCounts:
    counts = EndedCounts(Counter(), Counter())
    for row in rows:
        counts.by_status[row.destination, display_status(row.status, row.operation)] += row.number
        if row.status == Status.INDEXED:
            counts.attempts[row.destination, row.attempt] += row.number
    return counts


def oldest_pending(state: State) -> float | None:
    """Return when the delivery that has been pending longest was committed, or failed first, in seconds since 1970;
    None: it is not known, as of a new state in an object store.

    Rows of the outbox are as old as their wave. Of a small state, deliveries that wait for a step count from their
    first failure; of a large one (``limits.COUNTED_EVENTS``) they do not count.
    """
    waves = [int(f.partition["wave"]) for f in state.outbox.files.values() if pending_rows(f)]
    times = [
        seconds
        for file in state.outbox.files.values()
        if waves and int(file.partition["wave"]) == min(waves)
        if (seconds := _modified(state.outbox.folder / file.path)) is not None
    ]
    if (first := queries.first_event_of_pending(state.root, state.plan, min(waves, default=None))) is not None:
        times.append(first)
    return min(times, default=None)


def _modified(path: StatePath) -> float | None:
    """Return when a local file was written."""
    with contextlib.suppress(OSError, AttributeError):  # an object's time is not asked for
        return float(path.stat().st_mtime)  # type: ignore[union-attr]
    return None


def availability(root: StatePath, plan: Plan) -> dict[str, bool]:
    """Return node -> whether it may be called, as of the current or last run."""
    _, noted = find_activity(root / "lock")
    away = {each.node for each in noted.troubles if not each.label.endswith(")")}  # one host of a step is not the step
    called = (node.name for node in plan.nodes if isinstance(node, CalledNode | DestinationNode))
    return {name: name not in away for name in called}


def _oldest_messages(plan: Plan, sources: Mapping[str, Any]) -> dict[str, float]:
    """Return source -> when the oldest entry that it has not processed was written, where its log says so."""
    found = {}
    for node in logs_read(plan.nodes):
        counts = sources.get(node.name, {})
        if isinstance(node.source, Log) and counts.get("lag"):
            with contextlib.suppress(Exception):  # a log that cannot be reached is reported by a run
                if (written := node.source.apart().written_at(counts["positions"])) is not None:
                    found[node.name] = written
    return found


def _job_counts(plan: Plan) -> dict[str, int]:
    """Return state -> number of jobs, of the queue whose jobs are a source of the plan."""
    counts: dict[str, int] = {}
    for node in sources_of(plan.nodes):
        with contextlib.suppress(Exception):  # a queue that cannot be reached is reported by a run
            counts |= node.source.job_counts()
    return counts


def done_between(
    root: StatePath, plan: Plan, after: int, upto: int, known: Collection[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Count what was done after a wave and up to another.

    Args:
        known: files of ``ledger`` and ``documents`` that have no rows of these waves: they are not read.

    Returns: destination -> what was delivered or deleted there; source, without logs -> documents that were
    processed.
    """

    def count() -> tuple[dict[str, int], dict[str, int]]:
        state = queries.load_for_reading(root, plan)
        arrived, processed = Counter[str](), Counter[str]()
        with state.readers.reading():
            state.load_consistently([SETTLED])
            ledger, documents = (
                table.paths(name for name in table.files if name not in known)
                for table in (state.ledger, state.documents)
            )
            for (destination, status, wave), rows in count_by(ledger, ["destination", "status", "wave"]).items():
                if destination and status == Status.INDEXED and after < wave <= upto:
                    arrived[destination] += rows
            for (source, wave), rows in count_by(documents, ["source", "wave"]).items():
                if after < wave <= upto:
                    processed[source] += rows
        return dict(arrived), dict(processed)

    return queries.retry_read(root, count)


def activity(root: StatePath, plan: Plan, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``status --json`` shows beside the counts: ``running``, ``pending_reasons``, ``stopped``,
    ``held``, ``verified``.

    Args:
        counts: the result of ``status``.
    """
    is_pending = any(numbers["pending"] for numbers in counts["destinations"].values())
    return {
        "running": queries.running(root),
        "pending_reasons": queries.pending_reasons(root, plan) if is_pending else [],
        "stopped": queries.retry_read(root, lambda: queries.stopped(root, plan)),
        "held": queries.held_deletes(root, plan, counts),
        "verified": verifications(root, plan),
    }


def verifications(root: StatePath, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return destination -> what is known of its target: ``through``, the last wave up to which everything was there
    (None: none); ``clean``, ``failed`` and ``sampled``, the last verifications (``wave``, ``at``, ``compared``,
    ``differing``) that found all of it, that found a difference, and that found all of a sample; ``target``, why it may
    differ now. Only destinations of which anything is known.
    """
    try:
        targets, verified = load_targets(root), load_verified(root)
    except StateDamaged:
        return {}  # ``fsck`` names the file
    found = {}
    for name in (node.name for node in plan.nodes):
        past, target = verified.get(name), targets.get(name)
        is_suspect = target is not None and target.needs_verification
        if past is None and not is_suspect:
            continue
        times = {kind: getattr(past, kind, None) for kind in ("clean", "failed", "sampled")}
        found[name] = {
            "through": None if times["clean"] is None else times["clean"].wave,
            **{
                kind: None if each is None else {**_NONE_DIFFERS, **msgspec.to_builtins(each)}
                for kind, each in times.items()
            },
            "target": target.describe() if target is not None and is_suspect else "",
        }
    return found


_NONE_DIFFERS: Final = {"differing": 0}
