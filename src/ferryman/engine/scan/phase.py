"""The scan phase of waves: sources are listed, and compared with what is known, once for as many waves as the changes
are split into.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.engine import due_documents
from ferryman.engine.breakers import NodeBreakers
from ferryman.engine.live import ProgressReader, ProgressWriter
from ferryman.engine.logs import Logs
from ferryman.engine.pending_work import PendingWork, UnlistedDocuments
from ferryman.engine.results import ErrorKind, Listing, classify_error
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.engine.scan.changes import SourceComparison, due_now
from ferryman.engine.scan.listing import list_sources
from ferryman.engine.scan.splitting import Splitter
from ferryman.engine.summary import describe_listing
from ferryman.engine.tasks import Reason, RowRange, TaskSplit, WaveBatch, link_files
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.reader import listed_document, unread_version, version_of
from ferryman.observe import Observer
from ferryman.plan import conflicting_sources, find_source
from ferryman.records.rows import DOCUMENTS, now_us
from ferryman.sources import Source
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.files import StatePath, local_copies, local_folder, path_of
from ferryman.storage.parquet import RowGroups
from ferryman.storage.query import connect, register

_SCRATCH = "scan"
"""The folder of a listing."""


class ScanPhase:
    """Runs all scans of a run.

    Args:
        isolating_runner: runs tasks that must survive the death of a worker.
        report: called with messages that are worth reading once.

    Attributes:
        held: deletes wait for an operator, as of the last scan.
    """

    def __init__(
        self,
        state: State,
        shipped: PickledPlan,
        runner: Runner,
        isolating_runner: Runner,
        nodes: NodeBreakers,
        logs: Logs,
        pending: PendingWork,
        unlisted: UnlistedDocuments,
        live: ProgressReader,
        observer: Observer,
        report: Callable[[str], None],
        *,
        allow_deletes: Allowed,
        wave_bytes: int,
    ) -> None:
        self._state = state
        self._shipped = shipped
        self._runner = runner
        self._isolating_runner = isolating_runner
        self._nodes = nodes
        self._logs = logs
        self._pending = pending
        self._unlisted = unlisted
        self._live = live
        self._observer = observer
        self._report = report
        self._allow_deletes = allow_deletes
        self._wave_bytes = wave_bytes
        self.held = False

    def run(self, *, only_pending: bool) -> ChangeSet:
        """Return the changes that a new listing shows. Its scratch files stay until ``end``.

        Args:
            only_pending: only of what failed at steps and is due.
        """
        state = self._state
        self._observer.phase(state.wave + 1, "scan")
        state.remove_retired()  # no task reads it any more
        folder = state.scratch(_SCRATCH)
        waiting = self._nodes.blocked_holds(self._pending.step_debts())
        due, wanted, entries = None, None, self._logs.due_entries()
        if only_pending:
            due = due_documents.due_documents(state, now_us(), waiting)
            wanted = due_documents.ids_by_source(state, due) if len(due) <= limits.NAMED_DOCUMENTS else None
        else:
            self._pending.unlisted_sources = set()
        with self._live.follow() as live:
            listings = list_sources(state.plan, self._shipped, folder, self._isolating_runner, wanted, live, entries)
        self._pending.unlisted_sources |= self._nodes.record_listings(listings)
        crash.point("scan.listed")
        changes = detect_changes(
            listings,
            state,
            folder,
            now_us=now_us(),
            only_pending=only_pending,
            waiting=waiting,
            allow_deletes=self._allow_deletes,
            slots=self._runner.slots,
            wave_bytes=self._wave_bytes,
        )
        crash.point("scan.judged")
        changes = look_early(changes, self._shipped, self._runner, self._live)
        if rows := sum(batch.rows for batch in changes.batches):
            self._observer.outcome(describe_listing(listings, changes.batches))
            self._observer.planned(rows)
        self.held = bool(changes.too_many) or (self.held and only_pending)
        for note in (*changes.notes, *changes.too_many):
            self._report(note)  # a scan for what is pending meets the same again
        if due is not None and not changes.batches:
            self._unlisted.add(due)
            for note in self._unlisted.describe(wanted or {}) if changes.complete else ():
                self._report(note)
        return changes

    def end(self) -> None:
        """Remove the scratch files: all changes went through a wave, or are listed again."""
        files.remove_folder(self._state.staging / _SCRATCH)


# Scan, second half: the driver compares a finished listing once, then cuts it into waves.
#
# What is new, changed, pending (a failed step is due) or gone is decided by a join of the listing with the
# ``documents`` table, a part of the ids at a time: whatever there is of them, no more is in memory than a few parts.
# Contents are not touched; documents whose content was not read while listing are marked ``look``: the worker that
# reads them decides.


class ChangeSet(NamedTuple):
    """Changes found by a listing, split into waves."""

    batches: list[WaveBatch]
    notes: list[str]
    """Notes for the user: duplicates, incomplete listings."""
    complete: bool
    too_many: list[str]
    """Why deletes wait for an operator: messages that name ``--allow-deletes``."""


def detect_changes(
    listings: list[Listing],
    state: State,
    folder: StatePath,
    *,
    now_us: int,
    only_pending: bool = False,
    waiting: Collection[str] = (),
    allow_deletes: Allowed = False,
    slots: int = 2,
    wave_bytes: int = limits.WAVE_BYTES,
) -> ChangeSet:
    """Detect the changes of all sources by their listings, and split them into waves, for a run or for a preview.

    Args:
        state: what is known; it is only read.
        only_pending: process only what a failed step or an operator is waiting for; nothing counts as deleted.
        waiting: what documents are ``held`` by that are not due now, whatever their time says.
        allow_deletes: see ``Allowed``.
        slots: tasks that run at once; a small scan is split so that all have work.
    """
    notes = [_incomplete(x, why) for x in listings for why in x.failures]
    scratch = local_folder(folder)
    files = link_files(state.documents, scratch / "known")
    conflicts = conflicting_sources(state.plan.nodes)
    due = due_now(now_us, state.plan.longest_backoff_s, waiting)
    with connect(scratch) as db:
        register(db, "documents", local_copies(map(path_of, files)), DOCUMENTS)
        comparisons: dict[str, SourceComparison] = {}
        for listing in listings:
            name = listing.source.name
            others = {other: comparisons.get(other) for other in conflicts.get(name, ())}
            place = Path(tempfile.mkdtemp(dir=scratch))
            comparisons[name] = SourceComparison(
                db, place, listing, state.documents, files, state.outbox, due, now_us, only_pending, others
            )
        for c in comparisons.values():
            if c.duplicates:
                notes.append(
                    f"source {c.name}: {c.duplicates} duplicate ids, the last of each is kept: {', '.join(c.examples)}"
                )
        splitter = Splitter(folder, slots, sum(x.rows for x in listings), sum(x.bytes for x in listings), wave_bytes)
        for comparison in comparisons.values():
            comparison.split_changed(splitter)
        held = [hold_deletes(comparisons[x.source.name], x, allow_deletes) for x in listings]
        notes += [_incomplete(x, h.contradicted) for x, h in zip(listings, held, strict=True) if h.contradicted]
        for comparison, h in zip(comparisons.values(), held, strict=True):
            comparison.split_deleted(splitter, h.allowed_rows)  # last: what replaces them elsewhere is delivered first
        complete = not any(x.failures for x in listings) and not any(h.contradicted for h in held)
        return ChangeSet(splitter.finish(), notes, complete, [why for h in held for why in h.too_many])


def _incomplete(listing: Listing, why: str) -> str:
    return f"source {listing.source.name}: incomplete listing, nothing of it is deleted: {why}"


# Deletes that are held back: too much is missing at once, or the driver sees what was not listed.
#
# A document that is not listed any more is deleted everywhere. So before that, some of these documents are looked for
# on this machine, which need not be the one that listed them; and what is too much for a source, or for one of its
# first-level folders, waits for an operator. Everything else goes on.

Allowed = bool | Collection[str]
"""Whether an operator allows deletes beyond ``max_deleted``: of everything, or of these first-level folders."""


@dataclass
class HeldDeletes:
    """Deletes of a source that are held back in this scan.

    Attributes:
        contradicted: why its listing is incomplete after all; "" if it is not.
        too_many: why deletes wait for an operator, a message each.
    """

    contradicted: str = ""
    too_many: list[str] = field(default_factory=list)
    _all: bool = False
    _folders: set[str] = field(default_factory=set)
    _allowed: frozenset[str] = frozenset()
    _trim: int = 0

    def allowed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the missing documents that are deleted."""
        if self.contradicted:
            return rows.slice(0, 0)
        if not self._all and not self._folders:
            return rows
        folders = _folders_of(rows.column("id"), self._trim)
        if self._all:
            return rows.filter(pc.is_in(folders, pa.array(sorted(self._allowed), pa.string())))
        return rows.filter(pc.invert(pc.is_in(folders, pa.array(sorted(self._folders), pa.string()))))


def hold_deletes(comparison: SourceComparison, listing: Listing, allowed: Allowed) -> HeldDeletes:
    """Return which missing documents must not be deleted."""
    source: Source = listing.source.source
    if not comparison.missing_count:
        return HeldDeletes()
    contradicted = _find_contradiction(comparison, source, listing)
    if contradicted or allowed is True:
        return HeldDeletes(contradicted)
    trim = len(source.prefix)
    allowed_names = frozenset(word.rstrip("/") for word in allowed) if allowed else frozenset()
    names = allowed_names | {word.removeprefix(source.prefix) for word in allowed_names}
    missing = _count_by_folder((batch.column("id") for batch in comparison.missing()), trim)
    allowed_count = sum(missing[name] for name in names)
    share = source.max_deleted
    if comparison.missing_count - allowed_count > share * comparison.known:
        why = too_many(comparison.name, "", comparison.missing_count, comparison.known, share, "")
        return HeldDeletes(too_many=[why], _all=True, _allowed=names & missing.keys(), _trim=trim)
    held = HeldDeletes(_trim=trim)
    known = _known_by_folder(comparison, missing, trim) if share < 1 else Counter[str]()
    for folder in sorted(known.keys() - names):
        if known[folder] >= limits.GUARDED_DOCUMENTS and missing[folder] > share * known[folder]:
            held._folders.add(folder)
            folder_id = source.prefix + folder
            held.too_many.append(
                too_many(comparison.name, folder_id, missing[folder], known[folder], share, f"={folder_id}")
            )
    return held


def too_many(source: str, folder: str, missing: int, known: int, share: float, option: str) -> str:
    """Return why deletes wait for an operator, and how to allow them."""
    where = f"source {source}, folder {folder}" if folder else f"source {source}"
    return (
        f"{where}: {missing} of {known} documents are missing, more than max_deleted={share:g} allows. They were not "
        f"deleted; everything else continues. If they were removed on purpose, run again with --allow-deletes{option}."
    )


def _find_contradiction(comparison: SourceComparison, source: Source, listing: Listing) -> str:
    """Return an example that exists for this machine though it was not listed; "" if there is none."""
    example = source.still_there(_sample_missing(comparison, source))
    if not example:
        return ""
    hosts = sorted({part.host for part in listing.parts if part.host})
    listed = f" (it was listed on {', '.join(hosts[:5])}{', …' if len(hosts) > 5 else ''})" if hosts else ""
    return f"{example}, but not in the listing{listed}. Every machine must see the same there: mount it on all of them."


def _sample_missing(comparison: SourceComparison, source: Source) -> Iterator[str]:
    """Yield missing documents by their own ids: a few of each folder."""
    looked_at: Counter[str] = Counter()
    left = limits.DELETION_CHECKS
    for batch in comparison.missing():
        for id in batch.column("id").to_pylist():
            own = source.own_id(id)
            folder = own.rpartition("/")[0]
            looked_at[folder] += 1
            if looked_at[folder] <= limits.DELETION_CHECKS_PER_FOLDER:
                yield own
                left -= 1
                if not left:
                    return


def _known_by_folder(comparison: SourceComparison, missing: Counter[str], trim: int) -> Counter[str]:
    """Return how many documents there were in each folder that may be too empty now.

    They are the missing ones, and those that are listed and not new.
    """
    least = comparison.max_deleted * limits.GUARDED_DOCUMENTS
    folders = [name for name, count in missing.items() if count > least]
    if not folders:
        return Counter()
    listed: Counter[str] = Counter()
    for path in comparison.paths:
        with RowGroups(path, ["id"]) as file:
            listed += _count_by_folder((rows["id"] for rows in file.all_rows()), trim, folders)
    new = _count_by_folder((batch.column("id") for batch in comparison.rows_to_process(Reason.NEW)), trim, folders)
    return Counter({name: missing[name] + max(0, listed[name] - new[name]) for name in folders})


def _count_by_folder(columns: Iterable[Any], trim: int, only: list[str] | None = None) -> Counter[str]:
    """Count documents by their first-level folders."""
    counts: Counter[str] = Counter()
    for ids in columns:
        folders = _folders_of(ids, trim)
        if only is not None:
            folders = folders.filter(pc.is_in(folders, pa.array(only, pa.string())))
        for each in pc.value_counts(folders.drop_null()).to_pylist():
            counts[each["values"]] += each["counts"]
    return counts


def _folders_of(ids: Any, trim: int) -> Any:
    """Return the first-level folder of each id, null where it is in none."""
    names = pc.utf8_slice_codeunits(ids, start=trim)
    return pc.struct_field(pc.extract_regex(names, r"^(?P<folder>[^/#]+)/"), "folder")


# Reading beside the start of Spark: documents whose content decides whether they have changed.
#
# Where a source compares contents, each scan reads them all. If there is nothing else to do, they are read beside
# Spark, which starts only if one has changed.

_BLOCK: Final = 4096
"""Rows processed at a time: so many are held as Python objects."""

_FEW: Final = 0.25
"""Largest share of changed rows for which a task reads only these: more are quicker read in one piece."""


def look_early(changes: ChangeSet, shipped: PickledPlan, runner: Runner, live: ProgressReader) -> ChangeSet:
    """Return the changes without documents that turn out unchanged; unaltered if Spark runs already, or is needed
    anyway."""
    tasks = [task for batch in changes.batches for task in batch.tasks]
    if (
        not tasks
        or runner.started
        or not all(task.compared and task.reasons().keys() <= {Reason.LOOK} for task in tasks)
    ):
        return changes
    with live.follow() as folder:
        changed = iter(runner.run_early(FindChanged(shipped, folder), tasks))
    left = []
    for batch in changes.batches:
        changed_tasks = [_select_rows(task, next(changed)) for task in batch.tasks]
        if changed_tasks := [task for task in changed_tasks if task.pieces]:
            left.append(batch._replace(tasks=[task._replace(number=n) for n, task in enumerate(changed_tasks)]))
    return changes._replace(batches=left)


@dataclass(frozen=True, slots=True)
class FindChanged:
    """Task: read the documents of one split, and return which of its rows have changed.

    When the source is away the rest counts as changed: the transform phase decides what to do then.
    """

    shipped: PickledPlan
    live: str = ""

    def __call__(self, split: TaskSplit) -> list[int]:
        source = find_source(self.shipped.plan().nodes, split.source).source
        live = ProgressWriter(self.live)
        changed: list[int] = []
        row, away = 0, False
        for rows in split.tables():
            for at in range(0, rows.num_rows, _BLOCK):
                block = Block(rows.slice(at, _BLOCK), split.revision)
                for i in range(len(block)):
                    same, away = (False, True) if away else _is_unchanged(source, split.source, block, i)
                    if not same:
                        changed.append(row)
                    row += 1
                    live.add(1)
        live.flush()
        return changed


def _is_unchanged(source: Source, name: str, block: Block, i: int) -> tuple[bool, bool]:
    """Return whether the document is unchanged, and whether the source is away."""
    known = block.known(i)
    if source.detect != "content" and block.refused[i] is None and (known is None or known.fingerprint):
        return False, False  # its fingerprint is to be remembered, whatever its content is
    try:
        version = version_of(source, source.read(listed_document(source, block, i)))
    except Exception as e:
        fault = classify_error(e, name, "reading it", reading=True)
        permanent = fault.kind is ErrorKind.PERMANENT
        return permanent and block.has_version(i, unread_version(fault, "")), not permanent
    return source.detect == "content" and block.has_version(i, version), False


def _select_rows(task: TaskSplit, rows: Sequence[int]) -> TaskSplit:
    """Return the task with these of its rows."""
    if len(rows) > _FEW * task.rows:
        return task
    return task._replace(pieces=list(_row_ranges(task.pieces, iter(rows))))


def _row_ranges(pieces: Sequence[RowRange], rows: Iterator[int]) -> Iterator[RowRange]:
    """Yield these rows of the pieces, in order, neighbours together."""
    row, start = next(rows, None), 0
    for path, first, end in pieces:
        stop = start + end - first
        while row is not None and row < stop:
            begun, last = row, row
            while (row := next(rows, None)) is not None and row == last + 1 and row < stop:
                last = row
            yield RowRange(path, first + begun - start, first + last + 1 - start)
        start = stop
