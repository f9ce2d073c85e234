"""Preview: what the next run would do with some documents. Scan and transform, and nothing after them.

Documents are listed, detected and transformed as a run would do it, but all that is written goes to a scratch folder,
which is removed at the end. The state is only read: no lock is taken, no epoch announced, nothing repaired. No
destination is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.account.queries import explain_query_errors, retry_read
from ferryman.document import storable_id
from ferryman.engine import driver, migration
from ferryman.engine.bill import count_calls
from ferryman.engine.breakers import BreakerRegistry, NodeBreakers
from ferryman.engine.known_entries import EntryIndex
from ferryman.engine.logs import inspect_log, iter_pieces, read_due_entries
from ferryman.engine.results import NO_IDS, ListedPart, Listing, Staged, WantedIds
from ferryman.engine.runner.base import PickledPlan, Runner, run_isolating
from ferryman.engine.scan.listing import list_sources
from ferryman.engine.scan.phase import ChangeSet, detect_changes
from ferryman.engine.scan.source_memory import list_kept, uses_memory
from ferryman.engine.settings import SparkSettings
from ferryman.engine.tasks import BATCH_FILE, LISTED, KnownFiles, LogSplit, Reason, RowRange, TaskSplit, link_files
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.calls import signals_interrupt
from ferryman.engine.transform.remembering import not_called_message
from ferryman.engine.transform.task import TaskProcessing, Transform
from ferryman.errors import BadDocument, EngineError, PlanChanged, UsageError, WorkerDied, message_of
from ferryman.observe import Observer, Silent
from ferryman.plan import (
    DestinationNode,
    Flow,
    Plan,
    changes,
    logs_of_versions,
    logs_read,
    remembering_steps,
    sources_of,
    structure,
)
from ferryman.records.rows import EVENT_OF_ROW, LEDGER, Status, now_us, table_of
from ferryman.sources.base import Listed
from ferryman.sources.log import Log
from ferryman.state.commands import queued_commands
from ferryman.state.logs import LogPositions, reader_name
from ferryman.state.outbox import pending_rows
from ferryman.state.source_memory import SourceMemory, load_memory
from ferryman.state.state import TABLES, State, state_root
from ferryman.storage.files import StatePath, explain_errors_of_state, is_disk_full
from ferryman.storage.parquet import RowGroups, read_part
from ferryman.storage.query import connect, quote_list, register
from ferryman.storage.tables import Table

_DELIVERY: Final = (*EVENT_OF_ROW, "attempt")
"""Columns of the ledger that this module fills for both deliveries and events."""

_EVENT: Final = (*_DELIVERY, "status", "message")


@dataclasses.dataclass
class Expected:
    """Rows for one destination in a preview, in the ledger's columns."""

    gets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Deliveries, with ``fields``, ``text`` (None if there is none or it is not UTF-8) and its size ``bytes``."""
    dropped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would be dropped or are there unchanged, with ``status`` and ``message`` (the reason)."""
    refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would end as ERROR_DOC or DEAD, with ``status`` and ``message``."""
    errors: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would fail and be retried, with ``status``, ``message`` and ``attempts`` (the maximum)."""
    uncalled: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that first need a call of a step that remembers, which a preview does not make."""
    waiting: int = 0
    """Number of rows from earlier waves that the run would send first."""


@dataclasses.dataclass
class Preview:
    """Result of a preview, what the next run would do: ``destinations`` by name, for ``documents`` that each have a
    ``source``, ``document`` (the id) and ``reason``.

    Reasons: ``new``; ``changed``; ``retry`` (a failed step is due); ``forced`` (an operator wants it); ``again`` (its
    source has ``detect="none"``); ``gone``. And of one that was asked for by its id, though the run would leave it
    alone: ``skipped``; ``later`` (a failed step is not due yet).
    """

    plan: str
    version: int
    limit: int | None
    """Maximum number of documents to preview; None: one document was requested by its id."""
    document: str | None
    documents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    destinations: dict[str, Expected] = dataclasses.field(default_factory=dict)
    more: dict[str, int] = dataclasses.field(default_factory=dict)
    """Reason -> how many more documents the run would process."""
    unread: int = 0
    """Number of further known documents that the run would read to see whether they have changed."""
    calls: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Calls that the run would make of each step that remembers: ``step``, ``documents`` that come to it, ``need`` (how
    many of them need a call), ``calls`` (of different inputs) and ``cost`` in dollars."""
    stopped: list[str] = dataclasses.field(default_factory=list)
    """Reasons why the run would stop before changing anything; the rest shows what it would do if told to continue."""
    complete: bool = True
    """Whether all listings are complete; if not, see ``messages``."""
    messages: list[str] = dataclasses.field(default_factory=list)
    """Notes for the user."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object of ``preview --json``."""
        return dataclasses.asdict(self)


@explain_errors_of_state
def preview(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    limit: int = 20,
    document: str | None = None,
    observer: Observer | None = None,
) -> Preview:
    """Return what the next run would do with its first documents, or with one. Writes nothing, calls no destination.

    Args:
        state: directory of states, as for ``run``; it need not be there. A run may hold it.
        spark, master, conf: as for ``run``.
        limit: how many documents are transformed.
        document: id of the only one that is, also if the run would leave it alone.

    Raises:
        PlanError, UsageError: the plan cannot run; a limit below 1; no source has this document.
        StateError: the state is damaged or foreign.
        EngineError: Spark failed, or there is no room for scratch files: they go where TMPDIR says.
    """
    root = state_root(plan, state)
    plan.freeze()
    if limit < 1:
        raise UsageError(f"limit={limit}: preview one document at least.")
    snapshot = retry_read(root, lambda: StateSnapshot.of(State(root, plan)))  # before Spark is started
    observer = observer or Silent()
    observer.phase(snapshot.wave + 1, "scan")
    on_spark = SparkSettings.of(spark, master, conf)
    session = driver.open_runner(plan.key, [plan], on_spark, observer, start_early=True)
    with scratch_folder() as folder, session as runner:
        wanted = None if document is None else storable_id(document)
        return PreviewRun(plan, root, folder, runner, observer).run(limit, wanted)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for listings and staged files, which executors must see too; remove it at the end.

    Raises:
        EngineError: its disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="ferryman-preview-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        except Exception as e:
            if not is_disk_full(e):
                raise
            raise EngineError(
                f"{folder}: the disk is full. Nothing was written but scratch files, which are removed: set TMPDIR to "
                "a folder with more room."
            ) from e


class StateSnapshot(NamedTuple):
    """A state at one moment, as a reader finds it."""

    state: State
    """Loaded; its documents are those of the last committed wave. Empty if there is none yet."""
    wave: int
    waiting: dict[str, int]
    """Destination -> number of rows that are still to be sent."""
    commands: int
    """Number of operator commands that no run has applied."""
    differences: list[str]
    """Changes of the plan's structure since its last run."""

    @classmethod
    def of(cls, state: State) -> StateSnapshot:
        """Load a state for reading.

        Raises:
            StateDamaged, StateForeign: possibly only because a driver has just replaced files.
        """
        if not state.open_for_reading():
            return cls(state, 0, {}, 0, [])
        state.documents.files.update((f.path, f) for f in state.staged_files(state.documents))
        pending: dict[str, int] = {}
        for file in state.outbox.files.values():
            name = file.partition["destination"]
            pending[name] = pending.get(name, 0) + pending_rows(file)
        differences = changes(state.recorded_structure(), structure(state.plan)).structure
        return cls(state, state.wave, pending, len(queued_commands(state)), differences)


class Detection(NamedTuple):
    """Documents that the next run would process."""

    snapshot: StateSnapshot
    changes: ChangeSet
    unread_entries: UnreadEntries
    picked: PickedDocument | None


class PreviewRun:
    """Computes one preview.

    Args:
        folder: for scratch files; see ``scratch_folder``.
    """

    def __init__(self, plan: Plan, root: StatePath, folder: Path, runner: Runner, observer: Observer) -> None:
        self._plan = plan
        self._root = root
        self._folder = folder
        self._staged = folder / "staged"
        self._runner = runner
        self._observer = observer
        self._pickled_plan = PickledPlan.of(plan)
        self._now_us = now_us()

    def run(self, limit: int, document: str | None = None) -> Preview:
        """Preview at most ``limit`` documents, or the one document that was requested."""
        preview = Preview(self._plan.name, self._plan.version, limit if document is None else None, document)
        listed = self._folder / "listed"
        listed.mkdir()
        entries = self._select_entries(preview, document)
        memories, kept = self._remembered(listed)
        listings = list_sources(
            self._plan, self._pickled_plan, listed, self._runner, entries=entries, memories=memories, kept=kept
        )
        with State(self._root, self._plan).readers.reading():  # tasks also read rows of documents from here
            self._fill_preview(preview, listings, limit, document)
        return preview

    def _fill_preview(self, preview: Preview, listings: list[Listing], limit: int, document: str | None) -> None:
        detection = retry_read(self._root, lambda: self._detect(listings, document))
        splits: list[Split] = [split for batch in detection.changes.batches for split in batch.tasks]
        self._report_scan(preview, detection)
        self._observer.phase(detection.snapshot.wave + 1, "transform")
        task = self._task(detection.snapshot.wave + 1)
        self._runner.start(small=limit <= limits.SMALL_DOCUMENTS)
        if detection.picked is None:
            splits += detection.unread_entries.splits
            samples, unread = sample_sources(
                splits, limit, lambda items: self._sample(preview, task, items), self._runner.slots
            )
            counts = count_reasons(unread)
        else:
            samples = self._transform_picked(preview, task, detection.picked)
            picked = count_reasons(detection.picked.splits)
            counts = count_reasons(splits) - picked + detection.unread_entries.count_except(detection.picked)
        wanted = splits if detection.picked is None else [*detection.picked.splits]
        preview.calls = count_calls(self._plan, self._runner, task, wanted, Path(tempfile.mkdtemp(dir=self._folder)))
        preview.unread = counts.pop(Reason.LOOK, 0)
        preview.more = dict(counts)
        nodes = NodeBreakers(self._plan, BreakerRegistry(self._plan, lambda _: None), time.monotonic)
        nodes.record_reports(report for each in samples for report in each.staged.nodes)
        for hint in nodes.hints():
            self._add_message(preview, hint)
        for each in samples:
            self._report_sample(preview, each)

    # -- scan --------------------------------------------------------------------------------------

    def _select_entries(self, preview: Preview, document: str | None) -> WantedIds:
        """Return source -> ids of log entries to read: those due for a retry, and the one that was requested."""
        if not (logs := plan_logs(self._plan)):
            return NO_IDS
        folder = Path(tempfile.mkdtemp(dir=self._folder))

        def look() -> WantedIds:
            state = State(self._root, self._plan)
            with explain_query_errors(state, folder):
                documents = StateSnapshot.of(state).state.documents.paths()
                return read_due_entries(logs, documents, folder, self._now_us)

        with State(self._root, self._plan).readers.reading():
            waiting = retry_read(self._root, look)
        if document is None:
            return waiting
        requested, notes = find_log_entry(self._plan, document)
        for note in notes:
            self._add_message(preview, note)
        return merge(waiting, requested)

    def _remembered(self, folder: Path) -> tuple[dict[str, SourceMemory], list[ListedPart]]:
        """Return what the sources' listings are given: their memories, and documents that they cannot list again."""
        nodes = [node for node in sources_of(self._plan.nodes) if uses_memory(node)]
        if not nodes:
            return {}, []
        scratch = Path(tempfile.mkdtemp(dir=self._folder))

        def look() -> tuple[dict[str, SourceMemory], list[ListedPart]]:
            state = StateSnapshot.of(State(self._root, self._plan)).state
            if not state.exists:
                return {}, []
            memories = {node.name: load_memory(state, node.name) for node in nodes}
            return memories, list_kept(state, nodes, memories, folder, scratch)

        with State(self._root, self._plan).readers.reading():
            return retry_read(self._root, look)

    def _detect(self, listings: list[Listing], document: str | None) -> Detection:
        """Load the state, and detect what the next run would process."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        state = State(self._root, self._plan)
        with explain_query_errors(state, folder):
            snapshot = StateSnapshot.of(state)
            changes = detect_changes(listings, state, folder, now_us=self._now_us, slots=self._runner.slots)
            picked = None
            if document is not None:
                splits = [split for batch in changes.batches for split in batch.tasks]
                processed = find_processed_revisions(state, document, plan_logs(self._plan), folder)
                picked = find_document(document, splits, listings, state.documents, folder, processed)
            unread_entries = find_unread_entries(self._plan, state)
            if (of_versions := logs_of_versions(self._plan.nodes)) and state.exists:
                known = EntryIndex(state, of_versions, folder / "known").files()
                unread_entries = unread_entries.look_up(known, of_versions)
        return Detection(snapshot, changes, unread_entries, picked)

    def _report_scan(self, preview: Preview, detection: Detection) -> None:
        for node in self._plan.nodes:
            if isinstance(node, DestinationNode):
                preview.destinations[node.name] = Expected(waiting=detection.snapshot.waiting.get(node.name, 0))
        preview.complete = detection.changes.complete and detection.unread_entries.complete
        snapshot, plan = detection.snapshot, self._plan
        if snapshot.differences and not migration.is_pending(snapshot.state):
            preview.stopped.append(str(PlanChanged(plan.name, plan.version, snapshot.differences)))
        for note in dict.fromkeys(
            (*detection.changes.notes, *detection.changes.too_many, *detection.unread_entries.notes)
        ):
            self._add_message(preview, note)
        for why in preview.stopped:
            self._add_message(preview, f"A run would stop: {why} What follows is what it would do otherwise.")
        if migration.is_pending(snapshot.state):
            self._add_message(
                preview,
                "The run first migrates the state of an older version. What it processes again for that is "
                "not shown here.",
            )
        if detection.snapshot.commands:
            what = "request is waiting" if detection.snapshot.commands == 1 else "requests are waiting"
            self._add_message(
                preview,
                f"{detection.snapshot.commands} {what} (`retry`, `resolve`): the run applies them first. What becomes "
                "due by that is not shown here.",
            )

    # -- transform ---------------------------------------------------------------------------------

    def _task(self, number: int) -> Transform:
        for name in TABLES:
            (self._staged / name).mkdir(parents=True)
        return Transform(self._pickled_plan, str(self._staged), number, self._now_us, preview_of=str(self._root))

    def _sample(self, preview: Preview, task: Transform, items: Sequence[tuple[Split, int]]) -> list[SampleResult]:
        """Run sample tasks. As in a run, if a worker dies they run one by one, and if one dies again, in isolation
        mode."""

        def died(death: WorkerDied) -> None:
            self._add_message(preview, f"{death}. Its tasks are run again, one by one.")

        isolated = dataclasses.replace(task, isolated=True)
        return run_isolating(self._runner, SampleTask(task), items, SampleTask(isolated), died)

    def _transform_picked(self, preview: Preview, task: Transform, picked: PickedDocument) -> list[SourceSample]:
        """Transform the picked document from each source that has it."""
        sampled = self._sample(preview, task, [(split, 1) for split in picked.splits])
        pairs = zip(picked.splits, sampled, strict=True)
        samples = [SourceSample(split.source, one.documents, one.staged) for split, one in pairs if one.documents]
        processed = {each.source for each in samples}
        skipped = [(source, *row) for source, row in picked.skipped.items() if source not in processed]
        sampled = self._sample(preview, task, [(split, 1) for _, _, split in skipped])
        for (source, why, _), one in zip(skipped, sampled, strict=True):
            samples.append(SourceSample(source, [d._replace(reason=why) for d in one.documents], one.staged))
            what = "is unchanged" if why == "unchanged" else "has failed and is not due yet"
            self._add_message(preview, f"{picked.id} of source {source} {what}: a run would not process it now.")
        if not samples:
            raise UsageError(
                f"{picked.id}: no source of plan {self._plan.name} has a document of this id. An id is relative to its "
                "source's root, behind its prefix=; run preview without --doc to see some ids."
            )
        return samples

    # -- results -----------------------------------------------------------------------------------

    def _report_sample(self, preview: Preview, sample: SourceSample) -> None:
        """Add what a sample staged to the preview."""
        if (blocked := sample.staged.blocked) is not None:
            does = "would stop before" if blocked.stop else "would wait at"
            self._add_message(preview, f"source {sample.source} {does} {blocked.id}: {blocked.why}")
        order = {d.id: n for n, d in enumerate(sample.documents)}
        for each in sample.documents:
            preview.documents.append({"source": sample.source, "document": each.id, "reason": each.reason})
        for destination, part in sample.staged.outbox:
            table = read_part(self._staged / "outbox" / part.path)
            preview.destinations.setdefault(destination, Expected()).gets += map(_delivery, _rows_of(table, order))
        uncalled = {not_called_message(step.name) for step in remembering_steps(self._plan.nodes)}
        attempts = {n.name: n.policy.attempts for n in self._plan.nodes if isinstance(n, DestinationNode)}
        for part in sample.staged.ledger:
            for row in _rows_of(read_part(self._staged / "ledger" / part.path), order):
                expected = preview.destinations.setdefault(row["destination"], Expected())
                event = {name: row[name] for name in _EVENT}
                match row["status"]:
                    case Status.DROPPED if row["message"] in uncalled:
                        expected.uncalled.append(event)
                    case Status.DROPPED | Status.INDEXED:  # dropped, or delivered before and unchanged
                        expected.dropped.append(event)
                    case Status.ERROR:
                        expected.errors.append({**event, "attempts": attempts[row["destination"]]})
                    case _:
                        expected.refused.append(event)
        _leave_out_deletes_of_uncalled(preview)

    def _add_message(self, preview: Preview, text: str) -> None:
        preview.messages.append(text)
        self._observer.message(text)


def _leave_out_deletes_of_uncalled(preview: Preview) -> None:
    """Leave out the deletes of families that need a call: here they end before it, in a run they do not."""
    uncalled = {row["origin"] for expected in preview.destinations.values() for row in expected.uncalled}
    for expected in preview.destinations.values():
        expected.gets = [r for r in expected.gets if r["operation"] != "delete" or r["origin"] not in uncalled]


def _rows_of(table: pa.Table, order: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the rows of these documents' families, in the documents' order."""
    selected = table.filter(pc.is_in(table["origin"], value_set=pa.array(list(order), pa.string())))
    rows: list[dict[str, Any]] = selected.to_pylist()
    return sorted(rows, key=lambda row: order[row["origin"]])


def _delivery(row: dict[str, Any]) -> dict[str, Any]:
    """Return an outbox row as the destination would receive it."""
    raw: bytes | None = row["raw"]
    text = None
    if raw is not None:
        with contextlib.suppress(UnicodeDecodeError):
            text = raw.decode()
    return {
        **{name: row[name] for name in _DELIVERY},
        "attempt": row["attempt"] + 1,
        "fields": None if row["fields"] is None else msgspec.json.decode(row["fields"]),
        "text": text,
        "bytes": None if raw is None else len(raw),
    }


# Preview of a flow: previews of all its plans, on one Spark session.


def preview_flow(
    flow: Flow,
    *,
    state: str | StatePath | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    limit: int = 20,
    observer: Observer | None = None,
) -> dict[str, Preview]:
    """Return what a run would do with the first documents of each plan, as its queues are now: previews by plan name,
    in the order of their turns. Plans do not see what those before them would write in this run.

    Args:
        limit: how many documents of each plan are transformed.
        state, spark, master, conf: as for ``preview``, and so are the errors.
    """
    flow.freeze()
    observer = observer or Silent()
    plans = {flow.label(plan): (plan, state_root(plan, state)) for plan in flow.order}
    for plan, root in plans.values():
        _take_snapshot(plan, root)  # before Spark is started
    previews = {}
    on_spark = SparkSettings.of(spark, master, conf)
    with driver.open_runner(flow.name, flow.plans, on_spark, observer, start_early=True) as runner:
        for name, (plan, root) in plans.items():
            observer.about(name)
            observer.phase(_take_snapshot(plan, root).wave + 1, "scan")
            with scratch_folder() as folder:
                previews[name] = PreviewRun(plan, root, folder, runner, observer).run(limit, None)
        observer.about("")
    return previews


def _take_snapshot(plan: Plan, root: StatePath) -> StateSnapshot:
    return retry_read(root, lambda: StateSnapshot.of(State(root, plan)))


# Logs in a preview: entries that the next run would read. No position changes, and nothing is written to logs.

_ONE_PIECE: Final = 1 << 40
"""Entries per piece: practically unlimited, to get as few pieces as possible, of which only the first entries are
read."""


class UnreadEntries(NamedTuple):
    """Entries of logs that the next run would read."""

    splits: list[LogSplit]
    notes: list[str]
    complete: bool
    """Whether all logs were available."""

    def look_up(self, known: KnownFiles, sources: Collection[str]) -> UnreadEntries:
        """Return the same for a preview that looks up what is known of the documents of these logs."""
        splits = [s._replace(known=known) if s.source in sources else s for s in self.splits]
        return self._replace(splits=splits)

    def count_except(self, picked: PickedDocument) -> Counter[str]:
        """Return reason -> number of entries, not counting the one that was picked."""
        logs = {split.source for split in self.splits}
        of_picked = sum((split.reasons() for split in picked.splits if split.source in logs), Counter[str]())
        return sum((split.reasons() for split in self.splits), Counter[str]()) - of_picked


def plan_logs(plan: Plan) -> dict[str, Log]:
    """Return the plan's logs by the names of their sources."""
    return {n.name: n.source for n in logs_read(plan.nodes) if isinstance(n.source, Log)}


def find_unread_entries(plan: Plan, state: State) -> UnreadEntries:
    """Return the entries after the plan's positions.

    Args:
        state: loaded for reading; it need not exist.
    """
    splits: list[LogSplit] = []
    notes: list[str] = []
    complete = True
    for name, log in plan_logs(plan).items():
        stored = LogPositions(state, name) if state.exists else None
        try:
            reader = reader_name(state, name) if state.exists else ""
            snapshot = inspect_log(name, log, stored, notes.append, reader)
            start = snapshot.positions if snapshot.lag(log) else {}
            pieces = list(iter_pieces(name, log, snapshot, start, _ONE_PIECE, notes.append)) if start else []
        except UsageError:
            raise
        except Exception as e:
            notes.append(f"source {name}: {message_of(e)}")
            complete = False
            continue
        complete &= not snapshot.missing
        splits += [LogSplit(name, piece, 1 + snapshot.replay) for piece in pieces]
    return UnreadEntries([split._replace(number=number) for number, split in enumerate(splits)], notes, complete)


def find_log_entry(plan: Plan, document: str) -> tuple[WantedIds, list[str]]:
    """Find an entry by its id: return source -> id for each log that has it, and messages about entries that cannot be
    read."""
    entries: dict[str, frozenset[str]] = {}
    notes: list[str] = []
    for name, log in plan_logs(plan).items():
        if not document.startswith(log.prefix):
            continue
        own = log.own_id(document)
        try:
            if log.entry(Listed(own, 0)).document.id == own:
                entries[name] = frozenset({document})
        except BadDocument as e:
            notes.append(f"source {name}: {message_of(e)}")
        except Exception:  # only a log knows the form of its ids: this one belongs to another source
            continue
    return entries, notes


def find_processed_revisions(state: State, document: str, sources: Iterable[str], folder: Path) -> dict[str, int]:
    """Return log -> last revision of its processed entry with this id, according to the ledger and the outbox."""
    sources = list(sources)
    if not sources or not state.exists:
        return {}
    paths = [*state.ledger.paths(), *state.ledger.paths(file.path for file in state.staged_files(state.ledger))]
    unsent = state.outbox.paths()
    revisions: dict[str, int] = {}
    among = f"source IN {quote_list(sources)} AND origin = $id"
    with connect(folder) as db:
        for table, files in (("ledger", paths), ("outbox", unsent)):
            register(db, table, files, pa.schema([LEDGER.field(name) for name in ("source", "origin", "revision")]))
            query = f"SELECT source, max(revision) FROM {table} WHERE {among} GROUP BY source"
            for source, revision in db.execute(query, {"id": document}).fetchall():
                revisions[source] = max(revision, revisions.get(source, 0))
    return revisions


def merge(*wanted: WantedIds) -> WantedIds:
    """Return the union of the ids, by source."""
    sources = {source for each in wanted for source in each}
    return {source: frozenset().union(*(each.get(source, ()) for each in wanted)) for source in sources}


# One document picked from a listing after change detection, even if the scan would not process it.

_UNDECIDED = (Reason.LOOK, Reason.UNCHANGED)
"""Reasons of rows that the scan may skip: those whose content decides, and unchanged ones."""


class PickedDocument(NamedTuple):
    """One requested document, from each source that has it, as splits of a single row."""

    id: str
    splits: list[TaskSplit]
    """Splits as a run would make them: the document is processed, or at least compared by its content."""
    skipped: dict[str, tuple[str, TaskSplit]]
    """Source -> (why a run would skip the document, a split that processes it anyway). The reason is "unchanged", or
    "later" if its retry is not due yet."""


def find_document(
    id: str,
    splits: Iterable[TaskSplit],
    listings: Iterable[Listing],
    documents: Table,
    folder: Path,
    processed: Mapping[str, int] | None = None,
) -> PickedDocument:
    """Find a document among the rows to process, or else in the listings.

    Args:
        documents: the state's table.
        folder: for the files of the splits.
        processed: log -> revision of its already processed entry with this id, which has no row in ``documents``.
    """
    processed = processed or {}
    rows_by_source: dict[str, tuple[pa.Table, int]] = {}
    for split in splits:
        for rows in split.stored_rows():
            matching = rows.filter(pc.equal(rows["id"], id))
            if matching.num_rows:
                rows_by_source[split.source] = matching, split.number
    known_entries = {
        source: _replace_values(rows, reason=Reason.FORCED)
        for source, (rows, _) in rows_by_source.items()
        if source in processed and _is_new(rows)
    }
    skipped = {
        source: ("unchanged", _write_split(source, rows, 0, folder / f"anyway-{source}", processed[source] + 1))
        for source, rows in known_entries.items()
    }
    rows_by_source = {source: row for source, row in rows_by_source.items() if source not in known_entries}
    splits = [
        _write_split(source, rows, number, folder / f"picked-{source}")
        for source, (rows, number) in rows_by_source.items()
    ]
    files = link_files(documents, folder / "known")
    with connect(folder) as db:
        for listing in listings:
            name = listing.source.name
            if name in known_entries:
                continue
            rows = rows_by_source[name][0] if name in rows_by_source else _find_listed_row(id, listing)
            if rows is None or rows["reason"][0].as_py() not in _UNDECIDED:
                continue
            place, retry = _find_known_row(db, files, name, id)
            rows = _replace_values(rows, reason=Reason.RETRY if retry else Reason.FORCED, **place)
            split = _write_split(name, rows, 0, folder / f"anyway-{name}")
            skipped[name] = ("later" if retry else "unchanged", split)
    return PickedDocument(id, splits, skipped)


def _is_new(rows: pa.Table) -> bool:
    return bool(rows["reason"][0].as_py() == Reason.NEW)


def _find_listed_row(id: str, listing: Listing) -> pa.Table | None:
    """Return the id's last row in the listing, in BATCH_FILE's columns."""
    row = None
    for part in listing.parts:
        if not part.rows:
            continue
        with RowGroups(part.path, LISTED) as file:
            for rows in file.all_rows():
                matching = rows.filter(pc.equal(rows["id"], id))
                if matching.num_rows:
                    last = matching.slice(matching.num_rows - 1)
                    columns = {name: last[name] for name in LISTED}
                    row = table_of(BATCH_FILE, 1, part=part.path, reason=Reason.UNCHANGED, unsure=False, **columns)
    return row


def _find_known_row(
    db: duckdb.DuckDBPyConnection, files: list[str], source: str, id: str
) -> tuple[dict[str, Any], bool]:
    """Return the location of a document's last row in ``documents`` as columns of ``BATCH_FILE`` ({} if it has none),
    and whether it has a pending retry."""
    if not files:
        return {}, False
    row = db.execute(
        f"""
        SELECT filename, file_row_number, due IS NOT NULL
        FROM read_parquet({quote_list(files)}, filename = true, file_row_number = true)
        WHERE source = $source AND document = $id ORDER BY wave DESC LIMIT 1
        """,
        {"source": source, "id": id},
    ).fetchone()
    return ({}, False) if row is None else ({"known_file": row[0], "known_row": row[1]}, row[2])


def _replace_values(rows: pa.Table, **values: Any) -> pa.Table:
    """Return the last of the rows, with other values in these columns."""
    return pa.Table.from_pylist([{**rows.to_pylist()[-1], **values}], schema=BATCH_FILE)


def _write_split(source: str, rows: pa.Table, number: int, path: Path, revision: int = 1) -> TaskSplit:
    pq.write_table(rows.cast(BATCH_FILE), f"{path}.parquet")
    return TaskSplit(source, [RowRange(f"{path}.parquet", 0, rows.num_rows)], True, number, revision)


# Samples: the first few documents that a run would process, transformed on their own.
#
# Whether a document has changed may depend on its content, so samples are drawn in rounds: a few tasks look for the
# first documents to process, then more tasks, until there are enough. Each source gets an equal share.

Split = TaskSplit | LogSplit

_BLOCK_ROWS = 1024
"""Maximum number of rows that are read at a time."""


class SampledDocument(NamedTuple):
    """A document of a sample."""

    row: int
    """Row number in the split."""
    id: str
    reason: str


class SampleResult(NamedTuple):
    """Result of a sample task."""

    documents: list[SampledDocument]
    rows: int
    """Number of rows of the split that the task has read."""
    staged: Staged
    """Staged results of the documents."""


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Task: process the first documents of a split that a run would process, at most a given number."""

    transform: Transform

    @signals_interrupt()
    def __call__(self, item: tuple[Split, int]) -> SampleResult:
        split, most = item
        if isinstance(split, LogSplit):
            return self._sample_log(split, most)
        documents: list[SampledDocument] = []
        rows_read = 0
        with TaskProcessing(self.transform, split) as processing:
            for rows in split.tables():
                at = 0
                while at < rows.num_rows and len(documents) < most:
                    block = Block(rows.slice(at, min(most - len(documents), _BLOCK_ROWS)), split.revision)
                    processed = processing.process_block(block)
                    documents += [
                        SampledDocument(rows_read + at + i, block.ids[i], _reason(block, i)) for i in processed
                    ]
                    at += len(block)
                rows_read += at
                if len(documents) >= most:
                    break
        return SampleResult(documents, rows_read, processing.finish())

    def _sample_log(self, split: LogSplit, most: int) -> SampleResult:
        """Process the first entries of a log, up to one that is blocked. Row numbers are counted from the split's first
        place."""
        documents: list[SampledDocument] = []
        rows_read = split.rows
        with TaskProcessing(self.transform, split) as processing:
            for block in processing.blocks(min(most, _BLOCK_ROWS)):
                processing.process_block(block)
                at = [place - split.piece.start for place in block.places]
                documents += map(SampledDocument, at, block.ids, block.reasons)
                if len(documents) >= most:
                    rows_read = at[-1] + 1
                    break
        staged = processing.finish()
        if staged.blocked is not None:
            rows_read = split.rows
            blocked = staged.blocked.place - split.piece.start
            documents = [each for each in documents if each.row < blocked or each.id == staged.blocked.id]
        return SampleResult(documents, rows_read, staged)


class SourceSample(NamedTuple):
    """Sampled documents of a source, and files with their results, which may also contain those of others."""

    source: str
    documents: list[SampledDocument]
    staged: Staged


def sample_sources(
    splits: Iterable[Split],
    limit: int,
    run: Callable[[Sequence[tuple[Split, int]]], list[SampleResult]],
    slots: int,
) -> tuple[list[SourceSample], list[Split]]:
    """Sample the first documents of each source, ``limit`` in total; return the samples, and the splits that were not
    read.

    Args:
        run: runs a ``SampleTask`` for (split, most documents).
    """
    queues: dict[str, list[Split]] = {}
    for split in splits:
        queues.setdefault(split.source, []).append(split)
    samples: list[SourceSample] = []
    remaining, tasks_per_source = limit, 1
    while remaining and any(queues.values()):
        by_source = {source: queue[:tasks_per_source] for source, queue in queues.items() if queue}
        share = -(-remaining // len(by_source))
        answers = iter(run([(split, share) for round_splits in by_source.values() for split in round_splits]))
        for source, round_splits in by_source.items():
            quota = min(share, remaining)
            remaining -= quota
            rest = []
            for split in round_splits:
                sampled = next(answers)
                kept = sampled.documents[:quota]
                quota -= len(kept)
                # A blocked log is reported, even if nothing was sampled before the entry.
                if kept or sampled.staged.blocked is not None:
                    samples.append(SourceSample(source, kept, sampled.staged))
                rows_read = sampled.rows if len(kept) == len(sampled.documents) else kept[-1].row + 1 if kept else 0
                rest.append(split.after(rows_read))
            remaining += quota  # unused shares of this source go to others in the next round
            queues[source][:tasks_per_source] = [split for split in rest if split.rows]
        tasks_per_source = min(2 * tasks_per_source, slots)  # few have changed so far: look at more at once
    in_order = list(queues)
    return sorted(samples, key=lambda d: in_order.index(d.source)), [c for queue in queues.values() for c in queue]


def count_reasons(splits: Iterable[Split]) -> Counter[str]:
    """Return reason -> number of rows; those with ``look`` are processed only if their content has changed."""
    return sum((split.reasons() for split in splits), Counter())


def _reason(block: Block, i: int) -> str:
    """Return the reason why a row is processed, now that its content is known."""
    known, reason = block.known(i), block.reasons[i]
    if known is not None and (reason == Reason.LOOK or (reason == Reason.RETRY and not block.is_retry(i, known))):
        return Reason.CHANGED
    return reason
