"""The scan phase of waves: lists the sources and compares them with what is known, once for all waves that the changes
are split into."""

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
from ferryman.engine.live import ProgressReader, ProgressWriter
from ferryman.engine.pending_work import PendingWork, due_documents, ids_by_source
from ferryman.engine.results import ErrorKind, Listing, Look, Staged, classify_error
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.engine.scan.changes import KnownDocuments, SourceComparison, WantedDocuments, due_now
from ferryman.engine.scan.listing import list_sources, lists_by_ids
from ferryman.engine.scan.source_memory import SourceMemories
from ferryman.engine.scan.splitting import Splitter
from ferryman.engine.settings import Allowed, RunSettings
from ferryman.engine.summary import describe_listing
from ferryman.engine.tasks import Reason, RowRange, TaskSplit, WaveBatch, link_files
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.reader import listed_document, read_listed, unread_version, version_of
from ferryman.limits import format_count
from ferryman.observe import WARNING
from ferryman.plan import conflicting_sources, find_source, overwriting_destinations, sources_of
from ferryman.records.rows import DOCUMENTS, now_us
from ferryman.sources import Source
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.files import StatePath, local_copies, local_folder, path_of
from ferryman.storage.parquet import RowGroups
from ferryman.storage.query import connect, register

_SCRATCH = "scan"
"""Name of the scratch folder of a listing."""


class ScanPhase:
    """Runs all scans of a run.

    Args:
        report: called with each message; repeated messages should be dropped.

    Attributes:
        held: whether deletes were waiting for an operator in the last scan.
        contradicted: sources of which a listing missed what is there, since somebody took note of it last.
    """

    def __init__(
        self,
        state: State,
        pickled_plan: PickledPlan,
        runner: Runner,
        pending: PendingWork,
        progress: ProgressReader,
        settings: RunSettings,
        report: Callable[[str], None],
    ) -> None:
        self._state = state
        self._pickled_plan = pickled_plan
        self._runner = runner
        self._pending = pending
        self._progress = progress
        self._observer = progress.observer
        self._settings = settings
        self._report = report
        self._memories = SourceMemories(state)
        self.held = False
        self.contradicted: set[str] = set()

    def run(self, *, only_pending: bool, look: Look | None = None) -> ChangeSet:
        """List the sources and return the changes. Scratch files stay until ``end``.

        Args:
            only_pending: return only documents whose failed step is due.
            look: list only this; None: everything.
        """
        state = self._state
        self._observer.phase(state.wave + 1, "scan")
        state.remove_retired()  # no task reads it any more
        folder = state.scratch(_SCRATCH)
        waiting = self._pending.blocked_holds()
        due, wanted, entries = None, None, self._pending.due_entries()
        if only_pending:
            due = due_documents(state, now_us(), waiting)
            if len(due) <= limits.NAMED_DOCUMENTS:
                wanted = ids_by_source(state, due)
            else:
                by_ids = [node.name for node in sources_of(state.plan.nodes) if lists_by_ids(node.source)]
                entries = {**entries, **ids_by_source(state, due, by_ids)}
        elif look is None:
            self._pending.unlisted_sources = set()
        for note in self._memories.begin(prepare=not only_pending):
            self._report(note)
        kept = self._memories.kept(folder)
        count = self._runner.note_work if self._runner.early is not None else None
        with self._progress.follow(on_count=count) as live:
            listings = list_sources(
                state.plan,
                self._pickled_plan,
                folder,
                self._runner,
                wanted,
                live,
                entries,
                self._memories.current,
                kept,
                self._memories.failures,
                look,
            )
        self._pending.record_listings(listings)
        crash.point("scan.listed")
        changes = detect_changes(
            listings,
            state,
            folder,
            now_us=now_us(),
            only_pending=only_pending,
            waiting=waiting,
            allow_deletes=self._settings.allow_deletes,
            slots=self._runner.slots,
            wave_bytes=self._settings.wave_bytes,
        )
        crash.point("scan.judged")
        if not only_pending:
            self._memories.record(listings, changes.held)
        changes = look_early(changes, self._pickled_plan, self._runner, self._progress)
        if rows := sum(batch.rows for batch in changes.batches):
            self._observer.outcome(describe_listing(listings, changes.batches))
            self._observer.planned(rows)
        self.contradicted |= changes.contradicted
        self.held = bool(changes.too_many) or (self.held and (only_pending or look is not None))
        for note in (*changes.notes, *(WARNING + each for each in changes.too_many)):
            self._report(note)  # a scan for pending documents finds the same again
        if due is not None and not changes.batches:
            self._pending.unlisted.add(due)
            for note in self._pending.unlisted.describe(wanted or {}) if changes.complete else ():
                self._report(note)
        return changes

    def begin_memories(self, wave: int) -> dict[str, int]:
        """Write what the sources remember while a scan of several waves lasts; return the transactions that its first
        wave commits."""
        return self._memories.begin_commit(wave)

    def commit_memories(self, wave: int, staged: Sequence[Staged] = ()) -> dict[str, int]:
        """Write what the sources remember of this scan; return the transactions that its last wave commits.

        Args:
            staged: what the tasks of that wave have staged.
        """
        return self._memories.commit(wave, staged)

    def after_commit(self) -> None:
        """Have the sources release what they keep elsewhere, once what was read of it is committed."""
        for note in self._memories.after_commit():
            self._report(note)

    @property
    def has_more(self) -> bool:
        """Return whether a source has more to list at once."""
        return self._memories.has_more

    def end(self) -> None:
        """Remove the scratch files: all changes were processed, or will be listed again."""
        files.remove_folder(self._state.staging / _SCRATCH)


# Scan, second half: the driver compares a complete listing once, then splits the changes into waves.
#
# Whether a document is new, changed, pending (a failed step is due) or gone is decided by joining the listing with the
# ``documents`` table, one partition of the ids at a time, so memory is bounded whatever their number. Contents are not
# read: documents whose content was not read while listing get the reason ``look``, and the worker that reads them
# decides.


class ChangeSet(NamedTuple):
    """Changes found by a listing, split into waves."""

    batches: list[WaveBatch]
    notes: list[str]
    """Notes for the user: duplicates, incomplete listings."""
    complete: bool
    too_many: list[str]
    """Messages why deletes wait for an operator; each names ``--allow-deletes``."""
    held: frozenset[str] = frozenset()
    """Sources with missing documents that are not deleted."""
    contradicted: frozenset[str] = frozenset()
    """Sources of which the listing missed what is there."""


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
    """Detect the changes of all sources from their listings, and split them into waves; for runs and previews.

    Args:
        state: the state to compare with; it is not changed.
        only_pending: process only what a failed step or an operator is waiting for; nothing counts as deleted.
        waiting: values of ``held`` whose documents are not tried now, even if they are due.
        allow_deletes: see ``Allowed``.
        slots: number of tasks that run at once; a small scan is split so that all of them have work.
    """
    notes = [f"source {part.source}: {note}" for x in listings for part in x.parts for note in part.notes]
    notes += [_incomplete(x, why) for x in listings for why in x.failures]
    scratch = local_folder(folder)
    files = link_files(state.documents, scratch / "known")
    conflicts = conflicting_sources(state.plan.nodes)
    known = KnownDocuments(state.documents, files, state.outbox, overwriting_destinations(state.plan.nodes))
    wanted = WantedDocuments(due_now(now_us, state.plan.longest_backoff_s, waiting), now_us, only_pending)
    with connect(scratch) as db:
        register(db, "documents", local_copies(map(path_of, files)), DOCUMENTS)
        comparisons: dict[str, SourceComparison] = {}
        for listing in listings:
            name = listing.source.name
            others = {other: comparisons.get(other) for other in conflicts.get(name, ())}
            place = Path(tempfile.mkdtemp(dir=scratch))
            comparisons[name] = SourceComparison(db, place, listing, known, wanted, others)
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
            comparison.split_deleted(splitter, h.allowed_rows)  # last: replacements elsewhere are delivered first
        complete = not any(x.failures for x in listings) and not any(h.contradicted for h in held)
        too_many = [why for h in held for why in h.too_many]
        sources = frozenset(x.source.name for x, h in zip(listings, held, strict=True) if h.too_many or h.contradicted)
        contradicted = frozenset(x.source.name for x, h in zip(listings, held, strict=True) if h.contradicted)
        return ChangeSet(splitter.finish(), notes, complete, too_many, sources, contradicted)


def _incomplete(listing: Listing, why: str) -> str:
    return f"source {listing.source.name}: incomplete listing, nothing of it is deleted: {why}"


# Held deletes: too many documents are missing at once, or the driver sees documents that were not listed.
#
# A document that is no longer listed is deleted at all destinations. Before that, the driver looks for some of these
# documents itself, since another machine may have listed them. If too many are missing in a source or in one of its
# first-level folders, their deletes wait for an operator; everything else continues.


@dataclass
class HeldDeletes:
    """Deletes of a source that are held back in this scan.

    Attributes:
        contradicted: why the listing counts as incomplete: the driver sees a document that is missing in it; "" if it
            sees none.
        too_many: messages why deletes wait for an operator.
    """

    contradicted: str = ""
    too_many: list[str] = field(default_factory=list)
    _all: bool = False
    _folders: set[str] = field(default_factory=set)
    _allowed: frozenset[str] = frozenset()
    _trim: int = 0

    def allowed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of missing documents that are to be deleted."""
        if not self.contradicted and not self.too_many:
            return rows
        said = pc.is_valid(rows.column("place"))  # what the source itself says was deleted, was deleted
        if self.contradicted:
            return rows.filter(said)
        folders = _folders_of(rows.column("id"), self._trim)
        if self._all:
            allowed = pc.is_in(folders, pa.array(sorted(self._allowed), pa.string()))
        else:
            allowed = pc.invert(pc.is_in(folders, pa.array(sorted(self._folders), pa.string())))
        return rows.filter(pc.or_(said, allowed))


def hold_deletes(comparison: SourceComparison, listing: Listing, allowed: Allowed) -> HeldDeletes:
    """Decide which missing documents must not be deleted."""
    source: Source = listing.source.source
    if not comparison.unlisted_count or not comparison.finds_missing:
        return HeldDeletes()  # what the source itself says was deleted, was deleted
    contradicted = _find_contradiction(comparison, source, listing)
    if contradicted or allowed is True:
        return HeldDeletes(contradicted)
    trim = len(source.prefix)
    allowed_names = frozenset(word.rstrip("/") for word in allowed) if allowed else frozenset()
    names = allowed_names | {word.removeprefix(source.prefix) for word in allowed_names}
    missing = _count_by_folder((batch.column("id") for batch in _remove_reported(comparison)), trim)
    allowed_count = sum(missing[name] for name in names)
    share = source.max_deleted
    if comparison.unlisted_count - allowed_count > share * comparison.known:
        why = too_many(comparison.name, "", comparison.unlisted_count, comparison.known, share, "")
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
        f"{where}: {format_count(missing)} of {format_count(known)} documents are missing, more than "
        f"max_deleted={share:g} allows. They were not deleted; everything else continues. If they "
        f"were removed on purpose, run again with --allow-deletes{option}."
    )


def _find_contradiction(comparison: SourceComparison, source: Source, listing: Listing) -> str:
    """Return an example of a document that was not listed, but exists as seen from this machine; "" if there is
    none."""
    example = source.still_there(_sample_missing(comparison, source))
    if not example:
        return ""
    hosts = sorted({part.host for part in listing.parts if part.host})
    listed = f" (it was listed on {', '.join(hosts[:5])}{', …' if len(hosts) > 5 else ''})" if hosts else ""
    return f"{example}, but not in the listing{listed}. Every machine must see the same there: mount it on all of them."


def _sample_missing(comparison: SourceComparison, source: Source) -> Iterator[str]:
    """Yield the source's own ids of some missing documents: a few from each folder."""
    looked_at: Counter[str] = Counter()
    left = limits.DELETION_CHECKS
    for batch in _remove_reported(comparison):
        for id in batch.column("id").to_pylist():
            own = source.own_id(id)
            folder = own.rpartition("/")[0]
            looked_at[folder] += 1
            if looked_at[folder] <= limits.DELETION_CHECKS_PER_FOLDER:
                yield own
                left -= 1
                if not left:
                    return


def _remove_reported(comparison: SourceComparison) -> Iterator[pa.RecordBatch]:
    """Yield the missing documents without those of which the source says that they were deleted."""
    for batch in comparison.missing():
        yield batch.filter(pc.is_null(batch.column("place")))


def _known_by_folder(comparison: SourceComparison, missing: Counter[str], trim: int) -> Counter[str]:
    """Return the number of known documents of each folder from which too many may be missing.

    They are the missing documents and those that are listed and not new.
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


# Reading while Spark starts: documents whose content decides whether they have changed.
#
# If a source compares contents, each scan reads all of them. If there is nothing else to do, they are read before Spark
# has started, which is then started only if one has changed.

_BLOCK: Final = 4096
"""Rows processed at a time; they are held as Python objects."""

_FEW: Final = 0.25
"""Largest share of changed rows for which a task reads only these; for more, reading all rows is faster."""


def look_early(changes: ChangeSet, pickled_plan: PickledPlan, runner: Runner, live: ProgressReader) -> ChangeSet:
    """Drop documents that turn out to be unchanged from the changes. Does nothing if Spark is already running, or is
    needed anyway."""
    tasks = [task for batch in changes.batches for task in batch.tasks]
    early = runner.early
    if (
        not tasks
        or early is None
        or not all(task.compared and task.reasons().keys() <= {Reason.LOOK} for task in tasks)
    ):
        return changes
    with live.follow() as folder:
        changed = iter(early.submit(FindChanged(pickled_plan, folder), tasks).result())
    left = []
    for batch in changes.batches:
        changed_tasks = [_select_rows(task, next(changed)) for task in batch.tasks]
        if changed_tasks := [task for task in changed_tasks if task.pieces]:
            tasks = [task._replace(number=n) for n, task in enumerate(changed_tasks)]
            left.append(batch._replace(tasks=tasks, known={}))
    return changes._replace(batches=left)


@dataclass(frozen=True, slots=True)
class FindChanged:
    """Task: read the documents of one split, and return the rows of those that have changed.

    If the source becomes unavailable, the remaining documents count as changed, and the transform phase decides about
    them.
    """

    pickled_plan: PickledPlan
    live: str = ""

    def __call__(self, split: TaskSplit) -> list[int]:
        source = find_source(self.pickled_plan.plan().nodes, split.source).source
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
    """Return whether the document is unchanged, and whether the source is unavailable."""
    known = block.known(i)
    if source.detect != "content" and block.refused[i] is None and (known is None or known.fingerprint):
        return False, False  # its fingerprint has to be stored, whether or not its content changed
    try:
        found = read_listed(source, listed_document(source, block, i))
        if found is None:
            return True, False
        version = version_of(source, found[0])
    except Exception as e:
        fault = classify_error(e, name, "reading it", reading=True)
        permanent = fault.kind is ErrorKind.PERMANENT
        return permanent and block.has_version(i, unread_version(fault, "")), not permanent
    return source.detect == "content" and block.has_version(i, version), False


def _select_rows(task: TaskSplit, rows: Sequence[int]) -> TaskSplit:
    """Return the task restricted to these rows."""
    if len(rows) > _FEW * task.rows:
        return task
    return task._replace(pieces=list(_row_ranges(task.pieces, iter(rows))))


def _row_ranges(pieces: Sequence[RowRange], rows: Iterator[int]) -> Iterator[RowRange]:
    """Yield these rows of the pieces as ranges, in order."""
    row, start = next(rows, None), 0
    for path, first, end in pieces:
        stop = start + end - first
        while row is not None and row < stop:
            begun, last = row, row
            while (row := next(rows, None)) is not None and row == last + 1 and row < stop:
                last = row
            yield RowRange(path, first + begun - start, first + last + 1 - start)
        start = stop
