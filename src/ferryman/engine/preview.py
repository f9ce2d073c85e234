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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman.account.questions import explain_query_errors, retry_read
from ferryman.engine import driver, migration
from ferryman.engine.batches import BATCH_FILE, LISTED, LogSplit, Reason, RowRange, TaskSplit, link_files
from ferryman.engine.breakers import Nodes
from ferryman.engine.logs import entries_that_wait, look_at, pieces_of
from ferryman.engine.results import NO_IDS, Listing, Staged, WantedIds
from ferryman.engine.runner.base import IsolatingRunner, PickledPlan, Runner, run_isolating
from ferryman.engine.scan.listing import list_sources
from ferryman.engine.scan.phase import ChangeSet, detect_changes
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.calls import signals_interrupt
from ferryman.engine.transform.task import TaskProcessing, Transform
from ferryman.errors import BadDocument, EngineError, PlanChanged, UsageError, WorkerDied, message_of
from ferryman.observe import Observer, Silent
from ferryman.plan import DestinationNode, Flow, Plan, changes, logs_read, structure
from ferryman.records.rows import EVENT_OF_ROW, LEDGER, Status, now_us, table_of
from ferryman.sources.base import Listed
from ferryman.sources.log import Log
from ferryman.state.commands import queued_commands
from ferryman.state.logs import LogPositions, reader_name
from ferryman.state.outbox import pending_rows
from ferryman.state.state import TABLES, State, state_root
from ferryman.storage.files import StatePath, explain_errors_of_state, is_disk_full
from ferryman.storage.parquet import RowGroups, read_part
from ferryman.storage.query import connect, quote_list, register
from ferryman.storage.tables import Table

_DELIVERY: Final = (*EVENT_OF_ROW, "attempt")
"""Columns of the ledger that both a delivery and an event have here."""

_EVENT: Final = (*_DELIVERY, "status", "message")


@dataclasses.dataclass
class Expected:
    """Rows that a destination would get of a preview's documents, in the ledger's columns."""

    gets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Deliveries: also ``fields``, ``text`` (None if there is none, or if it is not UTF-8) and its size, ``bytes``."""
    dropped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would be dropped, or exist unchanged: also ``status``, ``message`` (why)."""
    refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would end as ERROR_DOC or DEAD: also ``status``, ``message``."""
    errors: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Documents that would fail and be tried again: also ``status``, ``message``, ``attempts`` (the most possible)."""
    waiting: int = 0
    """Rows that earlier waves committed and that the run would send first."""


@dataclasses.dataclass
class Preview:
    """Result of a preview, what the next run would do: ``destinations`` by name, for ``documents`` that each have a
    ``source``, ``document`` (the id) and ``reason``.

    Reasons: ``new``; ``changed``; ``retry`` (a failed step is due); ``forced`` (an operator wants it); ``again`` (its
    source has ``detect="none"``); ``gone``. And of one that was asked for by its id, though the run would leave it
    alone: ``unchanged``; ``later`` (a failed step is not due yet).
    """

    plan: str
    version: int
    limit: int | None
    """None: one document was asked for."""
    document: str | None
    documents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    destinations: dict[str, Expected] = dataclasses.field(default_factory=dict)
    more: dict[str, int] = dataclasses.field(default_factory=dict)
    """Reason -> how many more documents the run would process."""
    unread: int = 0
    """How many more known documents the run would read to see whether they have changed."""
    stopped: list[str] = dataclasses.field(default_factory=list)
    """Why the run would stop before it changes anything; the rest is what it would do if it was told to go on."""
    complete: bool = True
    """False: a listing is incomplete; see ``messages``."""
    messages: list[str] = dataclasses.field(default_factory=list)
    """Notes for the user."""

    def as_dict(self) -> dict[str, Any]:
        """The object of ``preview --json``."""
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
    seen = retry_read(root, lambda: Seen.of(State(root, plan)))  # before Spark is started
    observer = observer or Silent()
    observer.phase(seen.wave + 1, "scan")
    session = driver.session_for(plan.key, [plan], spark, master, conf or {}, observer, soon=True)
    with scratch() as folder, session as runner:
        return Previewing(plan, root, folder, runner, observer).of(limit, document)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for listings and staged files, removed whatever happens. Executors must see it, too.

    Raises:
        EngineError: there is no room in it.
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


class Seen(NamedTuple):
    """A state, as a reader finds it."""

    state: State
    """Loaded; its documents are those of the last committed wave. Empty if there is none yet."""
    wave: int
    waiting: dict[str, int]
    """Destination -> rows that are still to be sent."""
    commands: int
    """Requests that no run has applied."""
    differences: list[str]
    """Differences of the plan's structure since its last run."""

    @classmethod
    def of(cls, state: State) -> Seen:
        """Look at it.

        Raises:
            StateDamaged, StateForeign: by name; perhaps only because a driver replaced files meanwhile.
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


class Detected(NamedTuple):
    """Documents that the next run would process."""

    seen: Seen
    changes: ChangeSet
    ahead: LogsAhead
    picked: Picked | None


class Previewing:
    """A preview at work.

    Args:
        folder: for scratch files; see ``scratch``.
    """

    def __init__(self, plan: Plan, root: StatePath, folder: Path, runner: Runner, observer: Observer) -> None:
        self._plan = plan
        self._root = root
        self._folder = folder
        self._staged = folder / "staged"
        self._runner = runner
        self._observer = observer
        self._shipped = PickledPlan.of(plan)
        self._now_us = now_us()

    def of(self, limit: int, document: str | None = None) -> Preview:
        """The first documents, or this one."""
        found = Preview(self._plan.name, self._plan.version, limit if document is None else None, document)
        listed = self._folder / "listed"
        listed.mkdir()
        entries = self._entries(found, document)
        runner = IsolatingRunner(self._runner)
        listings = list_sources(self._plan, self._shipped, listed, runner, entries=entries)
        with State(self._root, self._plan).readers.reading():  # tasks read the rows of documents, too
            self._fill(found, listings, limit, document)
        return found

    def _fill(self, found: Preview, listings: list[Listing], limit: int, document: str | None) -> None:
        detected = retry_read(self._root, lambda: self._detect(listings, document))
        cuts: list[Cut] = [cut for piece in detected.changes.batches for cut in piece.tasks]
        self._tell_of_scan(found, detected)
        self._observer.phase(detected.seen.wave + 1, "transform")
        task = self._task(detected.seen.wave + 1)
        if detected.picked is None:
            cuts += detected.ahead.splits
            draws, rest = draw(cuts, limit, lambda items: self._sample(found, task, items), self._runner.slots)
            left = reasons(rest)
        else:
            draws = self._one(found, task, detected.picked)
            picked = reasons(detected.picked.cuts)
            left = reasons(cuts) - picked + detected.ahead.but(detected.picked)
        found.unread = left.pop(Reason.LOOK, 0)
        found.more = dict(left)
        nodes = Nodes(self._plan, lambda _: None, time.monotonic)
        nodes.hear(report for each in draws for report in each.staged.nodes)
        for hint in nodes.hints():
            self._tell(found, hint)
        for each in draws:
            self._tell_of(found, each)

    # -- scan --------------------------------------------------------------------------------------

    def _entries(self, found: Preview, document: str | None) -> WantedIds:
        """Entries of logs that are read by their ids: those that wait, and the one that is asked for."""
        if not (of := logs_of(self._plan)):
            return NO_IDS
        folder = Path(tempfile.mkdtemp(dir=self._folder))

        def look() -> WantedIds:
            state = State(self._root, self._plan)
            with explain_query_errors(state, folder):
                documents = Seen.of(state).state.documents.paths()
                return entries_that_wait(of, documents, folder, self._now_us)

        with State(self._root, self._plan).readers.reading():
            waiting = retry_read(self._root, look)
        if document is None:
            return waiting
        asked, notes = asked_for(self._plan, document)
        for note in notes:
            self._tell(found, note)
        return merged(waiting, asked)

    def _detect(self, listings: list[Listing], document: str | None) -> Detected:
        """One look at the state."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        state = State(self._root, self._plan)
        with explain_query_errors(state, folder):
            seen = Seen.of(state)
            changes = detect_changes(listings, state, folder, now_us=self._now_us, slots=self._runner.slots)
            picked = None
            if document is not None:
                cuts = [cut for piece in changes.batches for cut in piece.tasks]
                through = gone_through(state, document, logs_of(self._plan), folder)
                picked = pick(document, cuts, listings, state.documents, folder, through)
            ahead = logs_ahead(self._plan, state)
        return Detected(seen, changes, ahead, picked)

    def _tell_of_scan(self, found: Preview, detected: Detected) -> None:
        for node in self._plan.nodes:
            if isinstance(node, DestinationNode):
                found.destinations[node.name] = Expected(waiting=detected.seen.waiting.get(node.name, 0))
        found.complete = detected.changes.complete and detected.ahead.complete
        seen, plan = detected.seen, self._plan
        if seen.differences and not migration.is_pending(seen.state):
            found.stopped.append(str(PlanChanged(plan.name, plan.version, seen.differences)))
        for note in dict.fromkeys((*detected.changes.notes, *detected.changes.too_many, *detected.ahead.notes)):
            self._tell(found, note)
        for why in found.stopped:
            self._tell(found, f"A run would stop: {why} What follows is what it would do otherwise.")
        if migration.is_pending(seen.state):
            self._tell(
                found,
                "The run first migrates the state of an older version. What it processes again for that is "
                "not shown here.",
            )
        if detected.seen.commands:
            what = "request is waiting" if detected.seen.commands == 1 else "requests are waiting"
            self._tell(
                found,
                f"{detected.seen.commands} {what} (`retry`, `resolve`): the run applies them first. What becomes "
                "due by that is not shown here.",
            )

    # -- transform ---------------------------------------------------------------------------------

    def _task(self, number: int) -> Transform:
        for name in TABLES:
            (self._staged / name).mkdir(parents=True)
        return Transform(self._shipped, str(self._staged), number, self._now_us)

    def _sample(self, found: Preview, task: Transform, items: Sequence[tuple[Cut, int]]) -> list[Sampled]:
        """Tasks whose worker dies are run again one by one, and those that die again in isolation mode, as in a run."""

        def died(death: WorkerDied) -> None:
            self._tell(found, f"{death}. Its tasks are run again, one by one.")

        isolated = dataclasses.replace(task, isolated=True)
        return run_isolating(self._runner, Sample(task), items, Sample(isolated), died)

    def _one(self, found: Preview, task: Transform, picked: Picked) -> list[Draw]:
        """The document from each source that has it."""
        sampled = self._sample(found, task, [(cut, 1) for cut in picked.cuts])
        pairs = zip(picked.cuts, sampled, strict=True)
        draws = [Draw(cut.source, one.drawn, one.staged) for cut, one in pairs if one.drawn]
        taken_up = {each.source for each in draws}
        left = [(source, *row) for source, row in picked.anyway.items() if source not in taken_up]
        sampled = self._sample(found, task, [(cut, 1) for _, _, cut in left])
        for (source, why, _), one in zip(left, sampled, strict=True):
            draws.append(Draw(source, [d._replace(reason=why) for d in one.drawn], one.staged))
            what = "is unchanged" if why == "unchanged" else "has failed and is not due yet"
            self._tell(found, f"{picked.id} of source {source} {what}: a run would not process it now.")
        if not draws:
            raise UsageError(
                f"{picked.id}: no source of plan {self._plan.name} has a document of this id. An id is relative to its "
                "source's root, behind its prefix=; run preview without --doc to see some ids."
            )
        return draws

    # -- what came of it ---------------------------------------------------------------------------

    def _tell_of(self, found: Preview, drawn: Draw) -> None:
        """Read back what was staged."""
        if (blocked := drawn.staged.blocked) is not None:
            does = "would stop before" if blocked.stop else "would wait at"
            self._tell(found, f"source {drawn.source} {does} {blocked.id}: {blocked.why}")
        order = {d.id: n for n, d in enumerate(drawn.documents)}
        for each in drawn.documents:
            found.documents.append({"source": drawn.source, "document": each.id, "reason": each.reason})
        for destination, part in drawn.staged.outbox:
            table = read_part(self._staged / "outbox" / part.path)
            found.destinations.setdefault(destination, Expected()).gets += map(_delivery, _of(table, order))
        attempts = {n.name: n.policy.attempts for n in self._plan.nodes if isinstance(n, DestinationNode)}
        for part in drawn.staged.ledger:
            for row in _of(read_part(self._staged / "ledger" / part.path), order):
                expected = found.destinations.setdefault(row["destination"], Expected())
                event = {name: row[name] for name in _EVENT}
                match row["status"]:
                    case Status.DROPPED | Status.INDEXED:  # let go, or there as it is
                        expected.dropped.append(event)
                    case Status.ERROR:
                        expected.errors.append({**event, "attempts": attempts[row["destination"]]})
                    case _:
                        expected.refused.append(event)

    def _tell(self, found: Preview, text: str) -> None:
        found.messages.append(text)
        self._observer.message(text)


def _of(table: pa.Table, order: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of these documents' families, in the documents' order."""
    mine = table.filter(pc.is_in(table["origin"], value_set=pa.array(list(order), pa.string())))
    rows: list[dict[str, Any]] = mine.to_pylist()
    return sorted(rows, key=lambda row: order[row["origin"]])


def _delivery(row: dict[str, Any]) -> dict[str, Any]:
    """An outbox row as the destination would see it."""
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


# Preview of a flow: what each of its plans would do now, on one session.


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
        _seen(plan, root)  # before Spark is started
    found = {}
    with driver.session_for(flow.name, flow.plans, spark, master, conf or {}, observer, soon=True) as runner:
        for name, (plan, root) in plans.items():
            observer.about(name)
            observer.phase(_seen(plan, root).wave + 1, "scan")
            with scratch() as folder:
                found[name] = Previewing(plan, root, folder, runner, observer).of(limit, None)
        observer.about("")
    return found


def _seen(plan: Plan, root: StatePath) -> Seen:
    return retry_read(root, lambda: Seen.of(State(root, plan)))


# Logs in a preview: what the next run would read of them. No position moves, and no log learns of it.

_WHOLE: Final = 1 << 40
"""Entries of a piece: as few pieces as there can be, for only their first entries are read."""


class LogsAhead(NamedTuple):
    """Entries of logs that the next run would read."""

    splits: list[LogSplit]
    notes: list[str]
    complete: bool
    """Could each of them be asked?"""

    def but(self, picked: Picked) -> Counter[str]:
        """How many would be read beside the one that was picked, by reason."""
        logs = {split.source for split in self.splits}
        mine = sum((cut.reasons() for cut in picked.cuts if cut.source in logs), Counter[str]())
        return sum((split.reasons() for split in self.splits), Counter[str]()) - mine


def logs_of(plan: Plan) -> dict[str, Log]:
    """By the names of their sources."""
    return {n.name: n.source for n in logs_read(plan.nodes) if isinstance(n.source, Log)}


def logs_ahead(plan: Plan, state: State) -> LogsAhead:
    """The entries from where the plan stands.

    Args:
        state: as a reader finds it; it need not exist.
    """
    splits: list[LogSplit] = []
    notes: list[str] = []
    complete = True
    for name, log in logs_of(plan).items():
        kept = LogPositions(state, name) if state.exists else None
        try:
            reader = reader_name(state, name) if state.exists else ""
            seen = look_at(name, log, kept, notes.append, reader)
            start = seen.positions if seen.lag(log) else {}
            pieces = list(pieces_of(name, log, seen, start, _WHOLE, notes.append)) if start else []
        except UsageError:
            raise
        except Exception as e:
            notes.append(f"source {name}: {message_of(e)}")
            complete = False
            continue
        complete &= not seen.missing
        splits += [LogSplit(name, piece, 1 + seen.replay) for piece in pieces]
    return LogsAhead([split._replace(number=number) for number, split in enumerate(splits)], notes, complete)


def asked_for(plan: Plan, document: str) -> tuple[WantedIds, list[str]]:
    """Source -> the entry of this id, of each log that has it; and what else they say of it."""
    found: dict[str, frozenset[str]] = {}
    notes: list[str] = []
    for name, log in logs_of(plan).items():
        if not document.startswith(log.prefix):
            continue
        own = log.own_id(document)
        try:
            if log.entry(Listed(own, 0)).document.id == own:
                found[name] = frozenset({document})
        except BadDocument as e:
            notes.append(f"source {name}: {message_of(e)}")
        except Exception:  # what its ids look like, only a log knows: this is of another source
            continue
    return found, notes


def gone_through(state: State, document: str, sources: Iterable[str], folder: Path) -> dict[str, int]:
    """Return the last revision of processed entries with this id, by log; only of logs that remember nothing else of
    it."""
    sources = list(sources)
    if not sources or not state.exists:
        return {}
    paths = [*state.ledger.paths(), *state.ledger.paths(file.path for file in state.staged_files(state.ledger))]
    unsent = state.outbox.paths()
    found: dict[str, int] = {}
    mine = f"source IN {quote_list(sources)} AND origin = $id"
    with connect(folder) as db:
        for table, files in (("ledger", paths), ("outbox", unsent)):
            register(db, table, files, pa.schema([LEDGER.field(name) for name in ("source", "origin", "revision")]))
            query = f"SELECT source, max(revision) FROM {table} WHERE {mine} GROUP BY source"
            for source, revision in db.execute(query, {"id": document}).fetchall():
                found[source] = max(revision, found.get(source, 0))
    return found


def merged(*wanted: WantedIds) -> WantedIds:
    """All that is wanted."""
    sources = {source for each in wanted for source in each}
    return {source: frozenset().union(*(each.get(source, ()) for each in wanted)) for source in sources}


# One document out of a compared listing, whether or not the scan takes it up.

_UNSURE = (Reason.LOOK, Reason.UNCHANGED)
"""A document of which the content decides whether it is processed; one that is not processed."""


class Picked(NamedTuple):
    """A document's row of each source that has it, as cuts of one row."""

    id: str
    cuts: list[TaskSplit]
    """Tasks cut as the scan does, if it processes the document after reading it."""
    anyway: dict[str, tuple[str, TaskSplit]]
    """Source -> (why the scan does not take it up, a cut that takes it up all the same): "unchanged", or "later", when
    failed steps are due."""


def pick(
    id: str,
    cuts: Iterable[TaskSplit],
    listings: Iterable[Listing],
    documents: Table,
    folder: Path,
    through: Mapping[str, int] | None = None,
) -> Picked:
    """Find it among what is processed, else in the listing.

    Args:
        documents: the state's table.
        folder: for the rows.
        through: logs whose entry of this id was processed, and its revision: that nothing else is known of it does not
            make it new.
    """
    through = through or {}
    found: dict[str, tuple[pa.Table, int]] = {}
    for cut in cuts:
        for rows in cut.stored_rows():
            mine = rows.filter(pc.equal(rows["id"], id))
            if mine.num_rows:
                found[cut.source] = mine, cut.number
    passed = {s: _with(rows, reason=Reason.FORCED) for s, (rows, _) in found.items() if s in through and _is_new(rows)}
    anyway = {s: ("unchanged", _cut(s, rows, 0, folder / f"anyway-{s}", through[s] + 1)) for s, rows in passed.items()}
    found = {source: row for source, row in found.items() if source not in passed}
    cuts = [_cut(source, rows, number, folder / f"picked-{source}") for source, (rows, number) in found.items()]
    files = link_files(documents, folder / "known")
    with connect(folder) as db:
        for listing in listings:
            name = listing.source.name
            if name in passed:
                continue
            rows = found[name][0] if name in found else _listed(id, listing)
            if rows is None or rows["reason"][0].as_py() not in _UNSURE:
                continue
            known, retry = _known(db, files, name, id)
            rows = _with(rows, reason=Reason.RETRY if retry else Reason.FORCED, **known)
            cut = _cut(name, rows, 0, folder / f"anyway-{name}")
            anyway[name] = ("later" if retry else "unchanged", cut)
    return Picked(id, cuts, anyway)


def _is_new(rows: pa.Table) -> bool:
    return bool(rows["reason"][0].as_py() == Reason.NEW)


def _listed(id: str, listing: Listing) -> pa.Table | None:
    """Return the id's last row in the listing, in BATCH_FILE's columns."""
    found = None
    for part in listing.parts:
        if not part.rows:
            continue
        with RowGroups(part.path, LISTED) as file:
            for rows in file.all_rows():
                mine = rows.filter(pc.equal(rows["id"], id))
                if mine.num_rows:
                    last = mine.slice(mine.num_rows - 1)
                    columns = {name: last[name] for name in LISTED}
                    found = table_of(BATCH_FILE, 1, part=part.path, reason=Reason.UNCHANGED, unsure=False, **columns)
    return found


def _known(db: duckdb.DuckDBPyConnection, files: list[str], source: str, id: str) -> tuple[dict[str, Any], bool]:
    """Where ``documents`` has its last row, in BATCH_FILE's columns, {} if nowhere; and are failed steps due?"""
    if not files:
        return {}, False
    found = db.execute(
        f"""
        SELECT filename, file_row_number, due IS NOT NULL
        FROM read_parquet({quote_list(files)}, filename = true, file_row_number = true)
        WHERE source = $source AND document = $id ORDER BY wave DESC LIMIT 1
        """,
        {"source": source, "id": id},
    ).fetchone()
    return ({}, False) if found is None else ({"known_file": found[0], "known_row": found[1]}, found[2])


def _with(rows: pa.Table, **values: Any) -> pa.Table:
    """The row with other values in these columns."""
    return pa.Table.from_pylist([{**rows.to_pylist()[-1], **values}], schema=BATCH_FILE)


def _cut(source: str, rows: pa.Table, number: int, path: Path, revision: int = 1) -> TaskSplit:
    pq.write_table(rows.cast(BATCH_FILE), f"{path}.parquet")
    return TaskSplit(source, [RowRange(f"{path}.parquet", 0, rows.num_rows)], True, number, revision)


# A sample of what a scan processes: its first few documents, transformed apart from all others.
#
# Of many documents only their content tells whether they changed, so a sample is drawn in turns: a few tasks look for
# the first documents that are processed, then more tasks, until there are enough. Each source gets its share.

Cut = TaskSplit | LogSplit

_BLOCK = 1024
"""Rows read at a time, at most."""


class Drawn(NamedTuple):
    """A document that was processed."""

    at: int
    """Row number in the cut."""
    id: str
    reason: str


class Sampled(NamedTuple):
    """A task's findings in its cut."""

    drawn: list[Drawn]
    rows: int
    """How many it looked at."""
    staged: Staged
    """Staged results of all sampled documents."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Task: process the first documents of a cut, so many at most, that are to be processed."""

    transform: Transform

    @signals_interrupt()
    def __call__(self, item: tuple[Cut, int]) -> Sampled:
        cut, most = item
        if isinstance(cut, LogSplit):
            return self._of_log(cut, most)
        drawn: list[Drawn] = []
        passed = 0
        with TaskProcessing(self.transform, cut) as processing:
            for rows in cut.tables():
                at = 0
                while at < rows.num_rows and len(drawn) < most:
                    block = Block(rows.slice(at, min(most - len(drawn), _BLOCK)), cut.revision)
                    taken = processing.process_block(block)
                    drawn += [Drawn(passed + at + i, block.ids[i], _reason(block, i)) for i in taken]
                    at += len(block)
                passed += at
                if len(drawn) >= most:
                    break
        return Sampled(drawn, passed, processing.finish())

    def _of_log(self, cut: LogSplit, most: int) -> Sampled:
        """Rows are places. After an entry that cannot be processed now comes none."""
        drawn: list[Drawn] = []
        passed = cut.rows
        with TaskProcessing(self.transform, cut) as processing:
            for block in processing.blocks(min(most, _BLOCK)):
                processing.process_block(block)
                at = [place - cut.piece.start for place in block.places]
                drawn += map(Drawn, at, block.ids, block.reasons)
                if len(drawn) >= most:
                    passed = at[-1] + 1
                    break
        staged = processing.finish()
        if staged.blocked is not None:
            passed = cut.rows
            behind = staged.blocked.place - cut.piece.start
            drawn = [each for each in drawn if each.at < behind or each.id == staged.blocked.id]
        return Sampled(drawn, passed, staged)


class Draw(NamedTuple):
    """Some documents of a source, and the files in which is what they came to (of others, too)."""

    source: str
    documents: list[Drawn]
    staged: Staged


def draw(
    cuts: Iterable[Cut],
    limit: int,
    run: Callable[[Sequence[tuple[Cut, int]]], list[Sampled]],
    slots: int,
) -> tuple[list[Draw], list[Cut]]:
    """The first documents of each source, ``limit`` in all; and what of the cuts was not looked at.

    Args:
        run: a ``Sample`` on a runner.
    """
    queues: dict[str, list[Cut]] = {}
    for cut in cuts:
        queues.setdefault(cut.source, []).append(cut)
    draws: list[Draw] = []
    left, width = limit, 1
    while left and any(queues.values()):
        waiting = {source: queue[:width] for source, queue in queues.items() if queue}
        share = -(-left // len(waiting))
        answers = iter(run([(cut, share) for turn in waiting.values() for cut in turn]))
        for source, turn in waiting.items():
            room = min(share, left)
            left -= room
            rest = []
            for cut in turn:
                sampled = next(answers)
                kept = sampled.drawn[:room]
                room -= len(kept)
                if kept or sampled.staged.blocked is not None:
                    draws.append(Draw(source, kept, sampled.staged))
                passed = sampled.rows if len(kept) == len(sampled.drawn) else kept[-1].at + 1 if kept else 0
                rest.append(cut.after(passed))
            left += room
            queues[source][:width] = [cut for cut in rest if cut.rows]
        width = min(2 * width, slots)
    in_order = list(queues)
    return sorted(draws, key=lambda d: in_order.index(d.source)), [c for queue in queues.values() for c in queue]


def reasons(cuts: Iterable[Cut]) -> Counter[str]:
    """How many rows of the cuts are processed for which reason; ``look``: if their content has changed."""
    return sum((cut.reasons() for cut in cuts), Counter())


def _reason(block: Block, i: int) -> str:
    """Why it is processed, now that its content is known."""
    known, reason = block.known(i), block.reasons[i]
    if known is not None and (reason == Reason.LOOK or (reason == Reason.RETRY and not block.is_retry(i, known))):
        return Reason.CHANGED
    return reason
