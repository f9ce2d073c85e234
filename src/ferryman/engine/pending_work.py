"""Pending work of a state, and when it can be done."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ferryman import limits
from ferryman.engine.breakers import NodeBreakers
from ferryman.engine.deliver.dispatch import Dispatcher
from ferryman.engine.logs import Logs
from ferryman.engine.results import Listing, PendingRetries, WantedIds
from ferryman.observe import format_size
from ferryman.plan import Plan, keyed_nodes, sources_of
from ferryman.records.rows import latest_us, now_us, wait_s
from ferryman.state.maintenance import DOCUMENT, Columns, last_rows, rows_by_document
from ferryman.state.outbox import pending_rows
from ferryman.state.state import State
from ferryman.storage.query import connect, hash_texts, quote_list, stream, verify


class PendingWork:
    """Pending work of a run: rows of the outbox, documents that failed at steps, unavailable sources.

    Attributes:
        unlisted: failed documents that scans need not look for now.
        unlisted_sources: keys of sources that were unavailable while they were listed, or while their known documents
            were read, so that another full scan is needed.
    """

    def __init__(
        self, state: State, dispatcher: Dispatcher, nodes: NodeBreakers, logs: Logs, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._nodes = nodes
        self.unlisted = UnlistedDocuments(state.plan, clock)
        self._logs = logs
        self._longest_s = state.plan.longest_backoff_s
        self._step_debts: list[PendingRetries] = []
        self._step_debts_key: tuple[frozenset[str], Hashes] = (frozenset(), self.unlisted.hashes)
        """Key of the cached ``_step_debts``, since computing them reads all of ``documents``: the table's files, and
        the hashes of unlisted documents."""
        self.unlisted_sources: set[str] = set()

    def wait_s(self) -> float | None:
        """Return the seconds until something can be done: 0: now; None: nothing can be done in this run."""
        now = now_us()
        waits = []
        for file in self._state.outbox.files.values():
            destination = file.partition["destination"]
            if not pending_rows(file):
                continue
            wait = self._dispatcher.wait_of_file_s(file, now)
            if wait is not None and (probe := self._dispatcher.wait_s(destination)) is not None:
                waits.append(max(probe, wait))
        for debt in self.step_debts():
            if not debt.unlisted and (held := self._nodes.held_wait_s(debt.held)) is not None:
                waits.append(max(held, wait_s(debt.due, now, self._longest_s)))
        sources = [self._nodes.node_wait_s(source) for source in self.unlisted_sources]
        waits += [until for until in (*sources, self._logs.wait_s()) if until is not None]
        return min(waits, default=None)

    def row_count(self) -> int:
        """Return the number of outbox rows still to be sent."""
        return sum(map(pending_rows, self._state.outbox.files.values()))

    def has_due_rows(self) -> bool:
        """Return whether rows of the outbox can be sent now."""
        now = now_us()
        return any(
            pending_rows(f)
            and self._dispatcher.wait_of_file_s(f, now) == 0
            and self._dispatcher.wait_s(f.partition["destination"]) == 0
            for f in self._state.outbox.files.values()
        )

    def step_debts(self) -> list[PendingRetries]:
        """Return the pending retries of steps, see ``pending_retries``."""
        key = (frozenset(self._state.documents.files), self.unlisted.hashes)
        if key[0] != self._step_debts_key[0] or key[1] is not self._step_debts_key[1]:
            self._step_debts, self._step_debts_key = pending_retries(self._state, key[1]), key
        return self._step_debts

    def blocked_holds(self) -> frozenset[str]:
        """Return the values of ``held`` whose documents cannot be tried now."""
        return frozenset(self._nodes.blocked_holds(self.step_debts()))

    def due_entries(self) -> WantedIds:
        """Return source -> ids of log entries to read again."""
        return self._logs.due_entries()

    def record_listings(self, listings: Sequence[Listing]) -> None:
        """Record which sources were available when they were listed."""
        self.unlisted_sources |= self._nodes.record_listings(listings)

    def has_due_steps(self) -> bool:
        """Return whether documents that failed at steps can be retried now."""
        now = now_us()
        return any(
            wait_s(debt.due, now, self._longest_s) == 0 and self._nodes.held_wait_s(debt.held) == 0
            for debt in self.step_debts()
            if not debt.unlisted
        )

    def has_source_to_ask(self) -> bool:
        """Return whether a source that could not be listed may be tried again now."""
        return any(not self._nodes.blocked(source) for source in self.unlisted_sources)


# Size of the pending rows in the outbox. While it is too large, a scan reads no more documents.


class Backlog:
    """Pending rows of a state, measured against a limit.

    Args:
        max_bytes: size on disk above which no more documents are read; None: ``limits.MAX_PENDING_BYTES``.
    """

    def __init__(self, state: State, max_bytes: int | None) -> None:
        self._state = state
        self._max_bytes = limits.MAX_PENDING_BYTES if max_bytes is None else max_bytes

    @property
    def bytes(self) -> int:
        """Return the bytes of pending rows on the disk."""
        return self._pending_bytes().total()

    @property
    def too_large(self) -> bool:
        return self.bytes > self._max_bytes

    def describe(self, ending: bool) -> str:
        """Return why no more documents are read, and what to do.

        Args:
            ending: whether the run ends now; otherwise it continues once enough was delivered.
        """
        pending = self._pending_bytes()
        each = ", ".join(f"{name}: {format_size(size)}" for name, size in pending.most_common())
        size, most = format_size(sum(pending.values())), format_size(self._max_bytes)
        why = f"{size} are pending ({each}), more than the limit of {most} (--max-pending)"
        if ending:
            how = "run again when the destination is back"
            return f"the scan stopped early: {why}. What is pending is kept; the rest is read later: {how}."
        return f"the scan waits: {why}. What is pending is kept; the rest is read once there is room."

    def _pending_bytes(self) -> Counter[str]:
        """Return destination -> bytes of its pending rows."""
        sizes: Counter[str] = Counter()
        for file in self._state.outbox.files.values():
            if pending := pending_rows(file):
                sizes[file.partition["destination"]] += file.size * pending // file.rows
        return sizes


# Documents that are due for a retry but that no source lists: not every scan looks for them.

_NO_HASHES: Final[Hashes] = np.empty(0, np.uint64)


class UnlistedDocuments:
    """Failed documents that no listing contained, by their hashes in ``due_documents``; forgotten after
    ``limits.UNLISTED_RETRY_S``.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._sources = {n.name: n.source for n in sources_of(plan.nodes)}
        self._clock = clock
        self._hashes = _NO_HASHES
        self._until = 0.0

    @property
    def hashes(self) -> Hashes:
        """Return the hashes of documents that scans need not look for now."""
        if len(self._hashes) and self._clock() >= self._until:
            self.forget()
        return self._hashes

    def add(self, hashes: Hashes) -> None:
        """Add documents that a scan has just failed to find."""
        self._hashes = np.union1d(self._hashes, hashes)
        self._until = self._clock() + limits.UNLISTED_RETRY_S

    def forget(self) -> None:
        """Forget all documents, so that the next scan looks for them again."""
        self._hashes = _NO_HASHES

    def describe(self, documents: Mapping[str, Collection[str]]) -> list[str]:
        """Return a message for each source about pending documents that were in no listing.

        Args:
            documents: source -> ids.
        """
        return [self._line(source, ids) for source, ids in documents.items()]

    def _line(self, source: str, ids: Collection[str]) -> str:
        what = f"{len(ids)} documents are" if len(ids) > 1 else "1 document is"
        example = f"such as {min(ids)}" if len(ids) > 1 else min(ids)
        node_source = self._sources.get(source)
        why = "" if node_source is None or not node_source.comes_again else f"{node_source.comes_again} "
        again = f"It is looked for again every {limits.UNLISTED_RETRY_S:g} s."
        return f"source {source}: {what} to be tried again and not listed: {example}. {why}{again}"


# --- documents to be tried again: a failed step is due, or an operator has requested it ---

_NAMED: Final = pa.schema([("h", pa.uint64()), ("source", pa.string()), ("document", pa.string())])
_NEVER: Final = 1 << 62

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""Hashes of documents, as in ``maintenance.DOCUMENT``."""


def _waits_sql(state: State) -> str:
    """Return SQL that tests whether rows of ``documents`` wait to be tried again. Exports of keyed nodes are excluded;
    they are read by place, see ``logs.HeldExports``."""
    exports = [node.name for node in keyed_nodes(state.plan.nodes)]
    return f"(due IS NOT NULL OR forced){f' AND source NOT IN {quote_list(exports)}' if exports else ''}"


def pending_retries(state: State, unlisted: Hashes | None = None) -> list[PendingRetries]:
    """Return the pending retries of steps; those of ``unlisted`` documents are separate."""
    if all(f.stats.get("nullCount", {}).get("due", 0) == f.rows for f in state.documents.files.values()):
        return []
    owed: Counter[tuple[int, bool]] = Counter()
    due: dict[tuple[int, bool], int] = {}
    with connect(state.local_scratch) as db:
        for last in _waiting_rows(state, db):
            not_found = np.isin(last["h"], [] if unlisted is None else unlisted)
            for held, is_unlisted in product(np.unique(last["held"]).tolist(), (False, True)):
                mine = (last["held"] == held) & (not_found == is_unlisted)
                if mine.any():
                    owed[held, is_unlisted] += int(last["owed"][mine].sum())
                    due[held, is_unlisted] = min(due.get((held, is_unlisted), _NEVER), int(last["due"][mine].min()))
        names = _held_names(state, db)
    return [
        PendingRetries(names[held], owed[held, is_unlisted], first, is_unlisted)
        for (held, is_unlisted), first in due.items()
    ]


def _are_due(dues: np.ndarray[Any, Any], now_us: int, longest_s: float) -> np.ndarray[Any, Any]:
    """Return which of these times are due now, or are later than a correct clock can have set; see
    ``records.rows.latest_us``."""
    found: np.ndarray[Any, Any] = (dues <= now_us) | (dues > latest_us(now_us, longest_s))
    return found


def due_documents(state: State, now_us: int, waiting: Collection[str] = ()) -> Hashes:
    """Return the documents with a retry that is due, or that an operator has requested.

    Args:
        waiting: values of ``held`` whose documents are not tried now, even if they are due.
    """
    longest_s = state.plan.longest_backoff_s
    with connect(state.local_scratch) as db:
        not_yet = hash_texts(pa.array(list(waiting), pa.string()))
        due = [
            last["h"][_are_due(last["due"], now_us, longest_s) & ~np.isin(last["held"], not_yet)]
            for last in _waiting_rows(state, db)
        ]
    return np.concatenate(due) if due else np.empty(0, np.uint64)


def ids_by_source(state: State, hashes: Hashes, sources: Collection[str] | None = None) -> dict[str, frozenset[str]]:
    """Return source -> ids of the documents with these hashes, and possibly of a few others that wait.

    Args:
        sources: only of these; None: of all.
    """
    if not len(hashes) or (sources is not None and not sources):
        return {}
    only = "" if sources is None else f" AND source IN {quote_list(sources)}"
    ids: dict[str, set[str]] = defaultdict(set)
    with connect(state.local_scratch) as db:
        query = f"SELECT {DOCUMENT}, source, document FROM {_files_sql(state)} WHERE {_waits_sql(state)}{only}"
        for batch in stream(db, query, _NAMED):
            mine = batch.filter(pa.array(np.isin(batch.column(0).to_numpy(), hashes)))
            for source, document in zip(*(mine.column(i).to_pylist() for i in (1, 2)), strict=True):
                ids[source].add(document)
    return {source: frozenset(documents) for source, documents in ids.items()}


def _waiting_rows(state: State, db: duckdb.DuckDBPyConnection) -> Iterator[Columns]:
    """Yield the last rows of waiting documents: ``due`` (0: requested by an operator), ``owed``, and the hash of
    ``held``."""
    more = {
        "waits": (_waits_sql(state), pa.bool_()),
        "due": ("CASE WHEN forced THEN 0 ELSE coalesce(due, 0) END", pa.int64()),
        "owed": ("owed", pa.int64()),
        "held": ("held", pa.uint64()),
    }
    rows = sum(f.rows for f in state.documents.files.values())
    verify(state.documents.paths())
    with tempfile.TemporaryDirectory(dir=state.local_scratch) as folder:
        for last in map(
            last_rows, rows_by_document(db, state.documents.paths(), rows, Path(folder), more, _waits_sql(state))
        ):
            yield {name: column[last["waits"]] for name, column in last.items()}


def _held_names(state: State, db: duckdb.DuckDBPyConnection) -> dict[int, str | None]:
    """Return hash of a value of ``held`` -> the value, for all values in ``documents``."""
    names = [None, *(held for (held,) in db.execute(f"SELECT DISTINCT held FROM {_files_sql(state)}").fetchall())]
    return dict(zip(hash_texts(pa.array(names, pa.string())).tolist(), names, strict=True))


def _files_sql(state: State) -> str:
    return f"read_parquet({quote_list(map(str, state.documents.paths()))})"
