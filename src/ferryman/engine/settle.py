"""Settle: results in the journal become ledger events, and finished rows leave the outbox.

Numbered as in the body of ``settle``; after a crash between any two, it is run again:

1. close the pass, so that no unclaimed row of it is sent any more
2. read its journal, once
3. write the ledger events that no worker wrote: for chunks whose worker recorded their outcomes and then died, and for
   claimed chunks without a result
4. commit the ledger: from now on the outcome of every row is final
5. commit the wave's staged ``documents`` rows, in place of files of which all rows have newer ones by now; then the
   states and exports of keyed nodes that 4 has named
6. on executors, rewrite the outbox files that keep some of their rows; where the plan has an error queue, write a
   message for each row that failed for good
7. remove the pass's journal, except for claims without a result: if one arrives late, the next settle handles it
8. commit the outbox: remove finished rows, add the error messages

Steps 5–8 use only what step 4 committed and never read the journal again. Whole files change hands, not rows: workers
have already written their results as ledger data files, and an outbox file whose rows were all delivered is simply
removed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash
from ferryman.document import encode_fields
from ferryman.engine.results import Staged
from ferryman.engine.tasks import LogBatch, WaveBatch
from ferryman.plan import Plan, errors_node
from ferryman.records.keys import UpdateResult
from ferryman.records.rows import (
    HELD_DELETE,
    LEDGER,
    OUTBOX,
    OUTBOX_FILE,
    OUTBOX_SMALL,
    Result,
    RowResult,
    RowSpan,
    Status,
    error_fields,
    error_route,
    failed_message,
    hasher,
    sent_events,
    table_of,
)
from ferryman.state.journal import Journal
from ferryman.state.outbox import OutboxWriter, row_groups
from ferryman.state.state import DOCUMENT_COUNT, SEQUENCE, SETTLED, State
from ferryman.storage import parquet
from ferryman.storage.delta import DataFile
from ferryman.storage.files import cached_listing, fsync_folder, local_copy, path_of
from ferryman.storage.parquet import Part, read_part, write_part
from ferryman.storage.query import connect

_I = TypeVar("_I")
_A = TypeVar("_A")


class RunTasks(Protocol):
    """Runs task(item) for every item, on executors, see ``runner.base.run_isolating``."""

    def __call__(self, task: Callable[[_I], _A], items: Sequence[_I], /) -> list[_A]: ...


def in_process(task: Callable[[_I], _A], items: Sequence[_I]) -> list[_A]:
    """Run tasks in this process, without executors: for waves that settle little."""
    return [task(item) for item in items]


class Repair(NamedTuple):
    """Rows of an outbox file whose ledger events a settle task writes, because no worker has written them."""

    path: str
    destination: str
    wave: int
    rows: RowSpan
    results: list[RowResult]
    eligible: list[int] | None
    """Row numbers in the range that were attempted; None: all rows of the range."""


class Fold(NamedTuple):
    """Contents of a pass's journal, sorted by what settle does with them."""

    results: list[Result]
    """Results whose ledger events a worker has written to a data file; no row is in two of them."""
    repairs: list[Repair]
    unknown: list[RowSpan]
    """Claims of this pass without a result."""
    updates: list[UpdateResult]
    """Results of keyed nodes."""


class Settled(NamedTuple):
    """Counts of a wave as its ledger commit has them, from which a run's summary is added up."""

    delivered: int
    """Deliveries that have ended at their destinations, deletes among them."""
    deleted: int
    dropped: int
    failed: int
    """Deliveries that failed or were rejected, in steps or at destinations."""
    sent: int
    """Rows of the outbox that were attempted."""
    stale: dict[str, int]
    """Destination -> deliveries that were older than what it had."""


class SupersededRows:
    """Rows of ``documents`` that this run has replaced by newer ones, counted by file.

    When all documents change, all rows of the older files are outdated. Counting finds such files without reading any.
    A kill loses the counts, which is harmless: ``state.maintenance`` searches for outdated rows.
    """

    def __init__(self, state: State) -> None:
        self._documents = state.documents
        self._counts: Counter[str] = Counter()

    def add(self, batch: WaveBatch | LogBatch, staged: Sequence[Staged]) -> None:
        """Count the known rows of a committed wave's documents, if each of these has a new row: no document is in two
        waves of a scan, nor has two rows of one wave."""
        if isinstance(batch, WaveBatch) and sum(part.rows for each in staged for part in each.documents) == batch.rows:
            self._counts.update(batch.known)

    def files(self) -> list[str]:
        """Return the files of which every row is superseded by a committed wave."""
        live = self._documents.files
        self._counts = Counter({path: rows for path, rows in self._counts.items() if path in live})
        return [path for path, rows in self._counts.items() if rows == live[path].rows]


def settle(
    state: State, wave: int, run: RunTasks, plan: Plan | None = None, superseded: Collection[str] = ()
) -> Settled:
    """Settle a committed wave and return its counts. Idempotent.

    Args:
        plan: the plan whose error queue gets messages of failed rows; None: the state's.
        superseded: files of ``documents`` that hold only rows to which this wave, or one before it, has a newer one.
    """
    if state.ledger.transactions[SETTLED] < wave:
        state.journal.close(wave)  # 1
        crash.point("settle.closed")
        with cached_listing(state.journal.folder):
            fold = read_fold(state, wave)  # 2
        _commit_ledger(state, wave, fold, run)
    info = state.ledger.log.find("ledger", wave)
    if state.documents.transactions[SETTLED] < wave:
        committed = state.outbox.log.find("wave", wave)
        adds = [state.documents.data_file(Part(*p)) for p in committed["documents"]]
        numbers = {
            SETTLED: wave,
            DOCUMENT_COUNT: state.documents.transactions[DOCUMENT_COUNT] + committed.get("new", 0),
        }
        fsync_folder(state.documents.folder)
        state.documents.commit("documents", adds=adds, removes=superseded, transactions=numbers)  # 5
        if superseded:
            state.retire(state.documents, superseded)
    if state.outbox.transactions[SETTLED] < wave:
        publish_updates(state, wave, info["keyed"])
        touched = {path: parts for path, parts in info["files"].items() if path in state.outbox.files}
        reporter = RefusalReporter.of(plan or state.plan, wave)
        mixed = [
            Rewrite(str(state.root), path, tuple(parts), state.epoch, reporter.messages_for(state.outbox.files[path]))
            for path, parts in touched.items()
            if parts
        ]
        rewritten = run(rewrite, mixed) if mixed else []  # 6
        crash.point("settle.rewritten")
        keep = {RowSpan(*rows) for rows in info["unknown"]}
        with cached_listing(state.journal.folder):
            for pass_ in state.journal.passes():  # 7
                if pass_ <= wave:
                    state.journal.trim(pass_, keep if pass_ == wave else set())
                    crash.point("settle.trimmed")
        fsync_folder(state.outbox.folder)
        adds = [
            state.outbox.data_file(part, state.outbox.files[item.path].partition)
            for item, (part, _) in zip(mixed, rewritten, strict=True)
            if part is not None
        ]
        errors, sequence = reporter.files(state, [part for _, part in rewritten if part is not None])
        numbers = {SETTLED: wave, **sequence}
        state.outbox.commit("outbox", adds=[*adds, *errors], removes=list(touched), transactions=numbers)  # 8
        state.retire(state.outbox, touched)
    return Settled(info["delivered"], info["deleted"], info["dropped"], info["dead"], info["sent"], info["stale"])


def read_fold(state: State, wave: int) -> Fold:
    """Read the journal of this pass, and results that arrived late for earlier passes.

    Notes may list every row of a chunk, so they are read only for chunks that no ledger file covers.
    """
    by_key = {int(f.partition["first_sequence"]): f for f in state.outbox.files.values()}
    claims = [claim for claim in state.journal.claims(wave) if claim.key in by_key]
    all_results = [result for result in state.journal.results(wave) if result.key in by_key]
    results = _drop_overlaps(all_results)
    covered = _by_key(results)
    notes = state.journal.notes(wave, lambda rows: rows.key in by_key and not _is_covered(rows, covered))
    answered = _by_key([*all_results, *notes])

    def repair(note: Result, rows: list[RowResult]) -> Repair:
        file = by_key[note.key]
        return Repair(file.path, file.partition["destination"], wave, note.range, rows, note.eligible)

    repairs = []
    for pass_ in state.journal.passes():
        if pass_ < wave:
            # A late result counts only if it answers a claim that an earlier settle left open. The late worker's ledger
            # file may have been swept, so its note is used: it covers the whole chunk.
            left_open = {claim for claim in state.journal.claims(pass_) if claim.key in by_key}
            for note in state.journal.notes(pass_, left_open.__contains__):
                repairs.append(repair(note, drop_overtaken(state, by_key[note.key], note.rows)))
    repairs += [repair(note, note.rows) for note in notes]
    unknown = [claim for claim in claims if not _is_covered(claim, answered)]
    return Fold(results, repairs, unknown, read_updates(state.journal, wave, by_key))


def _by_key(results: Iterable[Result]) -> dict[int, list[RowSpan]]:
    """Group the ranges of results by outbox file, identified by the file's first sequence."""
    ranges: dict[int, list[RowSpan]] = defaultdict(list)
    for result in results:
        ranges[result.key].append(result.range)
    return ranges


def _is_covered(rows: RowSpan, ranges: dict[int, list[RowSpan]]) -> bool:
    """Return whether one of the ranges contains all of these rows."""
    return any(other.first <= rows.first and rows.end <= other.end for other in ranges.get(rows.key, ()))


def _drop_overlaps(results: list[Result]) -> list[Result]:
    """Drop results that overlap an earlier one; ``results`` must be sorted by row.

    Under speculative execution, two workers may have delivered the same file. The result that begins first counts; rows
    that only the other one covers are treated as if it had written nothing: they are sent again, or the destination
    reports them as done.
    """
    counted: list[Result] = []
    for result in results:
        if not counted or result.key != counted[-1].key or result.first >= counted[-1].end:
            counted.append(result)
    return counted


def _commit_ledger(state: State, wave: int, fold: Fold, run: RunTasks) -> None:
    by_key = {int(f.partition["first_sequence"]): f for f in state.outbox.files.values()}
    repairs = list(fold.repairs)
    for rows in fold.unknown:
        file = by_key[rows.key]
        meant = state.journal.claimed_rows(wave, rows)
        repairs.append(
            Repair(
                file.path, file.partition["destination"], wave, rows, _unknown_results(state, file, rows, meant), meant
            )
        )
    repaired = run(Repairer(str(state.root), state.epoch), repairs) if repairs else []  # 3
    crash.point("settle.repaired")
    parts: dict[str, list[Part]] = defaultdict(list)
    leaving: dict[str, int] = defaultdict(int)
    touched: dict[str, int] = defaultdict(int)
    deleted = 0
    for result in fold.results:
        path = by_key[result.key].path
        assert result.ledger_part is not None
        parts[path].append(result.ledger_part)
        leaving[path] += result.leave
        deleted += result.deleted
        touched[path] += result.sent
    for update in fold.updates:
        deleted += update.deleted
        for key, leaving_rows in update.leaving.items():
            path = by_key[key].path
            parts[path] += [update.ledger] if update.ledger is not None else []
            leaving[path] += leaving_rows
            touched[path] += leaving_rows
    for item, (part, leaving_rows, deletes) in zip(repairs, repaired, strict=True):
        if part is not None:
            parts[item.path].append(part)
            leaving[item.path] += leaving_rows
            deleted += deletes
            touched[item.path] += part.rows
    commit = state.outbox.log.find("wave", wave)
    staged = [Part(*p) for p in commit["ledger"]]
    failed = sum(n.status in (Status.DEAD, Status.ERROR_DOC) for item in repairs for n in item.results)
    failed += sum(each.failed for each in fold.results) + sum(each.failed for each in fold.updates)
    named = [*staged, *(part for each in parts.values() for part in each)]  # an update's is named by several files
    dropped = sum(each.dropped for each in fold.updates)
    fsync_folder(state.ledger.folder)
    state.ledger.commit(  # 4
        "ledger",
        adds=[state.ledger.data_file(p) for p in {p.path: p for p in named}.values()],
        transactions={SETTLED: wave},
        info={
            "wave": wave,
            "files": {
                path: [] if leaving[path] == state.outbox.files[path].rows else [p.path for p in ps]
                for path, ps in parts.items()
            },
            "unknown": fold.unknown,
            "delivered": sum(leaving.values()) - dropped,
            "deleted": deleted,
            "sent": sum(touched.values()) + sum(each.withdrawn for each in fold.updates),
            "stale": _count_stale(fold, by_key),
            "dropped": commit.get("dropped", 0) + dropped,
            "dead": commit.get("failed", 0) + failed,
            "keyed": {**keyed_files(fold.updates), **commit.get("keyed", {})},
        },
    )


def _count_stale(fold: Fold, by_key: dict[int, DataFile]) -> dict[str, int]:
    """Return destination -> number of stale deliveries: it had something newer, so they count as delivered."""
    counts: Counter[str] = Counter()
    for result in fold.results:
        counts[by_key[result.key].partition["destination"]] += result.stale
    for item in fold.repairs:
        counts[item.destination] += sum(n.status == Status.INDEXED for n in item.results)
    return dict(+counts)


def _unknown_results(state: State, file: DataFile, rows: RowSpan, meant: list[int] | None) -> list[RowResult]:
    """Mark every row of a claimed chunk without a result as in doubt.

    Args:
        meant: rows that the claim includes; None: all of the range.
    """
    table = read_part(state.outbox.path(file.path), ["row", "attempt"])
    why = "in doubt: the worker ended before it recorded a result"
    claimed = None if meant is None else set(meant)
    return [
        RowResult(row, Status.INDEXING, why, attempt + 1, None)
        for row, attempt in zip(table["row"].to_pylist(), table["attempt"].to_pylist(), strict=True)
        if rows.first <= row < rows.end and (claimed is None or row in claimed)
    ]


@dataclass(frozen=True, slots=True)
class Repairer:
    """Task: write the ledger events of rows for which no worker has written any."""

    root: str
    epoch: int

    def __call__(self, item: Repair) -> tuple[Part | None, int, int]:
        """Write one file and return it, the number of its rows that leave the outbox, and how many of those are
        deletes; (None, 0, 0) if there is nothing to write."""
        table = read_part(local_copy(path_of(self.root) / "outbox" / item.path), OUTBOX_SMALL)
        rows = table["row"]
        mask = pc.and_(pc.greater_equal(rows, item.rows.first), pc.less(rows, item.rows.end))
        if item.eligible is not None:
            mask = pc.and_(mask, pc.is_in(rows, value_set=pa.array(item.eligible, pa.int64())))
        events = sent_events(table.filter(mask).combine_chunks(), item.results, item.destination, item.wave)
        if not events.num_rows:
            return None, 0, 0
        part = write_part(path_of(self.root) / "ledger", events, epoch=self.epoch)
        crash.point("settle.repair")
        done = events.filter(pc.equal(events["status"], "INDEXED"))
        return part, done.num_rows, pc.sum(pc.equal(done["operation"], "delete")).as_py() or 0


class Rewrite(NamedTuple):
    """Outbox file that keeps some of its rows, and the ledger files with the outcomes that decide which."""

    root: str
    path: str
    parts: tuple[str, ...]
    epoch: int
    refused: RefusalMessages | None = None
    """Collects messages of refused rows; None: there is no error queue."""


def rewrite(item: Rewrite) -> tuple[Part | None, Part | None]:
    """Task: rewrite an outbox file without its finished rows, updating attempt and due time of the rest; also write
    error messages for rows that failed permanently. Returns both files, None for an empty one.

    Rows that are INDEXED or DROPPED in the ledger are finished. Rows with ERROR wait until they are due; all others are
    held for review (``due`` is null).
    """
    root = path_of(item.root)
    columns = ["delivery_hash", "status", *_RETRY_COLUMNS, "message"]
    events = pa.concat_tables([read_part(local_copy(root / "ledger" / p), columns) for p in item.parts])
    latest = {h: tuple(last) for h, *last in zip(*(c.to_pylist() for c in events.columns), strict=True)}
    failed = {
        h: last[-1] or ""
        for h, last in latest.items()
        if last[0] in (Status.DEAD, Status.ERROR_DOC) and not (last[-1] or "").startswith(HELD_DELETE)
    }
    writer, errors = (OutboxWriter(root / "outbox", epoch=item.epoch) for _ in range(2))
    for group in row_groups(local_copy(root / "outbox" / item.path)):
        writer.write(_rows_to_keep(group, latest))
        if item.refused is not None and failed:
            errors.write(item.refused.messages(group, failed, errors.rows))
    return _finish_file(writer), _finish_file(errors)


def _finish_file(writer: OutboxWriter) -> Part | None:
    part = writer.finish()
    if part is not None:
        crash.point("settle.rewrite")
    return part


_RETRY_COLUMNS: Final = ("attempt", "due", "since", "transient")
"""Columns that the latest event may change in a row that stays in the outbox."""


def _rows_to_keep(rows: pa.Table, latest: dict[str, tuple[Any, ...]]) -> pa.Table:
    """Return the rows that stay in the outbox, updated from ``latest``: delivery hash -> (status, then the values of
    ``_RETRY_COLUMNS``)."""
    stays, tries = [], []
    columns = (rows[c].to_pylist() for c in ("delivery_hash", *_RETRY_COLUMNS))
    for digest, *before in zip(*columns, strict=True):
        status, *now = latest.get(digest, (None, *before, None))[: 1 + len(_RETRY_COLUMNS)]
        stays.append(status not in (Status.INDEXED, Status.DROPPED))
        tries.append(now)
    for name, values in zip(_RETRY_COLUMNS, zip(*tries, strict=True), strict=False):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    return rows if all(stays) else rows.filter(pa.array(stays, pa.bool_()))


def has_late_answers(journal: Journal, settled: int) -> bool:
    """Return whether a late worker has recorded a result for a claim that was settled as in doubt."""
    return any(journal.answered(p) for p in journal.passes() if p <= settled)


# Late results: if a destination turns out not to have accepted a row, the row is sent again only if nothing newer was
# committed in the meantime.

_NEWER = """
    SELECT DISTINCT a."row" FROM again a JOIN {events} e ON a.source = e.source AND a.document = e.document
    WHERE a.key_hash IS NULL AND {where}
        AND (e.revision > a.revision OR (e.revision = a.revision AND e.route = a.route AND {later}))
"""


def drop_overtaken(state: State, file: DataFile, results: Sequence[RowResult]) -> list[RowResult]:
    """Return late results for rows of an outbox file, with those of overtaken rows changed to DROPPED.

    A row is overtaken if a newer revision of its document was committed for this destination, or a later row of the
    same revision and route. That row may already have been sent, since a row in doubt does not hold back later rows.
    Exports are never overtaken: one that is in doubt holds back the later exports of its key.
    """
    to_resend = [n.row for n in results if n.due is not None]
    if not to_resend:
        return list(results)
    overtaken = _find_overtaken(state, file, to_resend)
    return [_drop(n) if n.row in overtaken else n for n in results]


def _drop(result: RowResult) -> RowResult:
    why = "superseded: something newer was committed before the destination said that it had not taken this: "
    return RowResult(result.row, Status.DROPPED, why + result.message, result.attempt, None)


def _find_overtaken(state: State, file: DataFile, rows: list[int]) -> set[int]:
    names = ["row", "source", "document", "revision", "route", "operation", "key_hash"]
    of_file = parquet.scan([state.outbox.path(file.path)], pa.schema([OUTBOX.field(n) for n in names]))
    to_resend = of_file.to_table(filter=pc.field("row").isin(rows))
    destination = file.partition["destination"]
    key = int(file.partition["first_sequence"])
    with connect(state.local_scratch) as db:
        db.register("again", to_resend)
        overtaken = set()
        for other in state.outbox.files.values():
            if other.partition["destination"] == destination:
                db.register("other", parquet.scan([state.outbox.path(other.path)], of_file.schema))
                later = f'e."row" + {int(other.partition["first_sequence"])} > a."row" + {key}'
                overtaken |= _row_numbers(
                    db.execute(_NEWER.format(events="other", where="true", later=later)).fetchall()
                )
        db.register("events", parquet.scan(state.ledger.paths(), LEDGER))
        later = "a.operation = 'upsert' AND e.operation = 'delete'"  # a delete follows the upsert that it undoes
        sent = db.execute(_NEWER.format(events="events", where="e.destination = $1", later=later), [destination])
        return overtaken | _row_numbers(sent.fetchall())


def _row_numbers(rows: list[tuple[int]]) -> set[int]:
    return {row for (row,) in rows}


# Messages for the plan's error queue about rows that a destination refused: new rows of the outbox, in the same commit
# by which the refused ones are held for review.

_COPIED_COLUMNS = ("source", "document", "parent", "origin", "version", "revision", "branches", "provenance")
"""Columns that a message copies from the refused row."""


class RefusalMessages(NamedTuple):
    """Builds error-queue messages for the refused rows of one outbox file."""

    plan: tuple[str, int]
    """Name and version of the plan."""
    errors: str
    """Name of the error queue's node, which receives the messages."""
    destination: str
    """Name of the destination that refused the rows."""
    wave: int

    def messages(self, rows: pa.Table, failed: Mapping[str, str], first: int) -> pa.Table:
        """Return messages for the failed rows, in OUTBOX_FILE's columns, numbered from ``first``.

        Args:
            failed: delivery hash -> why.
        """
        hashes = rows["delivery_hash"]
        rows = rows.filter(pc.is_in(hashes, value_set=pa.array(list(failed), pa.string())))
        causes = [failed[each] for each in rows["delivery_hash"].to_pylist()]
        columns = {name: rows[name].to_pylist() for name in (*_COPIED_COLUMNS, "route", "fields")}
        routes = [error_route(self.destination, route, self.wave) for route in columns.pop("route")]
        bodies = columns.pop("fields")
        fields = [
            self._message(cause, id, source, body)
            for cause, id, source, body in zip(causes, columns["document"], columns["source"], bodies, strict=True)
        ]
        names = ("source", "document", "version", "revision")
        digests = [
            hasher(*self.plan, source, self.errors, route, "upsert")(document, version, revision)
            for route, source, document, version, revision in zip(routes, *(columns[n] for n in names), strict=True)
        ]
        n = rows.num_rows
        return table_of(
            OUTBOX_FILE,
            n,
            row=pa.array(range(first, first + n), pa.int64()),
            route=routes,
            operation="upsert",
            delivery_hash=digests,
            attempt=0,
            due=0,
            fields=fields,
            **columns,
        )

    def _message(self, cause: str, id: str, source: str, body: bytes | None) -> bytes:
        message = failed_message(id, source, body or b"{}")
        where, plan = self.destination, self.plan
        return encode_fields(
            error_fields(
                kind="destination", cause=cause, where=where, plan=plan, destinations=[where], messages=[message]
            )
        )


class RefusalReporter:
    """Adds error-queue messages about the refused rows of one wave, if the plan has an error queue."""

    def __init__(self, plan: Plan, wave: int, errors: str | None) -> None:
        self._plan = plan
        self._wave = wave
        self._errors = errors

    @classmethod
    def of(cls, plan: Plan, wave: int) -> Self:
        node = errors_node(plan.nodes)
        return cls(plan, wave, None if node is None else node.name)

    def messages_for(self, file: DataFile) -> RefusalMessages | None:
        """Return a builder of messages about the rows of an outbox file; None: there is no error queue, or the file
        holds the error queue's own rows."""
        destination = file.partition["destination"]
        if self._errors is None or destination == self._errors:
            return None
        return RefusalMessages((self._plan.name, self._plan.version), self._errors, destination, self._wave)

    def files(self, state: State, parts: Sequence[Part]) -> tuple[list[DataFile], dict[str, int]]:
        """Return the message files as outbox files with the next free sequences, and the transaction that records the
        sequence after them."""
        if not parts:
            return [], {}
        assert self._errors is not None
        sequence, files = state.next_sequence, []
        for part in parts:
            partition = {"wave": str(self._wave), "destination": self._errors, "first_sequence": str(sequence)}
            files.append(state.outbox.data_file(part, partition))
            sequence += part.rows
        return files, {SEQUENCE: sequence}


# Results of keyed nodes: their ledger files are committed first, then the files of their tables.


def read_updates(journal: Journal, wave: int, files: Collection[int]) -> list[UpdateResult]:
    """Return a pass's updates whose outbox files all still exist; ``files``: the first sequences of those files."""
    return [each for each in journal.updates(wave) if each.leaving.keys() <= set(files)]


def keyed_files(updates: Sequence[UpdateResult]) -> dict[str, dict[str, Any]]:
    """Group data files by keyed node, in the form that the ledger's commit stores for ``publish_updates``."""
    by_node: dict[str, dict[str, Any]] = defaultdict(lambda: {"state": [], "exports": [], "contributions": []})
    for each in sorted(updates, key=lambda update: (update.node, update.range)):
        by_node[each.node]["state"] += [each.state] if each.state is not None else []
        by_node[each.node]["contributions"] += [each.contributions] if each.contributions is not None else []
        by_node[each.node]["exports"] += [(each.lane, each.exports)] if each.exports is not None else []
    return dict(by_node)


def publish_updates(state: State, wave: int, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Commit the states, exports and contributions that this wave's ledger commit lists. Idempotent."""
    for name, node_files in files.items():
        tables = state.keyed[name]
        for table in tables.all:
            fsync_folder(table.folder)
        exports = [(lane, Part(*part)) for lane, part in node_files["exports"]]
        states, contributions = ([Part(*part) for part in node_files[kind]] for kind in ("state", "contributions"))
        tables.publish(wave, states, exports, contributions)
