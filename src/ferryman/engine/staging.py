"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pyarrow as pa

from ferryman import settings
from ferryman.document import Operation
from ferryman.engine.block import Block
from ferryman.ledger.delivery import DeliveryHash, hasher
from ferryman.ledger.events import ORDINAL_STEPS, events, table_of
from ferryman.ledger.schemas import DOCUMENTS, OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.settle import due_stats
from ferryman.ledger.statuses import Status
from ferryman.plan import Path as PlanPath
from ferryman.plan import Plan
from ferryman.storage.parquet import Part, PartWriter, write_part
from ferryman.testing import crash

_OUTBOX_FILE: Final = pa.schema([f for f in OUTBOX if f.name not in OUTBOX_PARTITION])


class Staged(NamedTuple):
    """What a task returns: its files, and what a person wants counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]


class Stager:
    """Gathers what becomes of a task's documents, block by block. Delivery hashes are made here and nowhere else."""

    def __init__(self, plan: Plan, path: PlanPath, root: Path, wave: int) -> None:
        self._root = root
        self._wave = wave
        self._source = path.source.name
        self._destination = path.destination.name
        self._deletes = path.destination.policy.deletes
        names = (plan.name, plan.version, self._source, self._destination, "")
        self._hashers = {operation: hasher(*names, operation) for operation in get_args(Operation)}
        self._block: Block
        self._upserted: list[int] = []
        self._fields: list[bytes] = []
        self._raws: list[bytes | None] = []
        self._deleted: list[int] = []
        self._bytes = 0
        self._outbox: PartWriter | None = None
        self._documents: list[pa.Table] = []
        self._others: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._staged = Staged([], [], [], dict.fromkeys(("dropped", "error_doc", "dead"), 0))

    def begin(self, block: Block) -> None:
        """What is said from now on is about rows of this block, each of them once."""
        self._block = block

    def end(self) -> None:
        """The block is through."""
        self._gather()

    def finish(self) -> Staged:
        """Write what is left; everything staged is fsynced when this returns."""
        self._flush()
        if self._events:
            self._staged.ledger.append(self._write_events())
        crash.point("transform.staged")
        return self._staged

    # -- what may become of a document -------------------------------------------------------------

    def upsert(self, i: int, fields: bytes, raw: bytes | None) -> None:
        """It goes to the destination."""
        self._upserted.append(i)
        self._fields.append(fields)
        self._raws.append(raw)
        self._bytes += len(fields) if raw is None else len(fields) + len(raw)
        if self._bytes >= settings.PART_BYTES:
            self._gather()

    def gone(self, i: int) -> None:
        """It vanished from its source: a delete wherever it was given."""
        block, known = self._block, self._block.known(i)
        assert known is not None
        block.versions[i], block.fingerprints[i] = known.version, ""
        self._supersede(i)
        if known.given and self._deletes:
            self._deleted.append(i)
        elif known.given:
            self._event(i, Status.DROPPED, "gone, but this destination keeps (deletes=False)", operation="delete")
            self._staged.counts["dropped"] += 1
        self._remember(i, "delete")

    def ended(self, i: int, status: Status, message: str) -> None:
        """It ends before the destination: dropped, refused, dead."""
        self._supersede(i)
        self._event(i, status, message, self._block.attempts_before(i) + 1)
        known = self._block.known(i)
        if status is Status.DROPPED and known is not None and known.given and self._deletes:
            self._deleted.append(i)  # its older version is not to stay where it was given
        self._staged.counts[status.value.lower()] += 1
        self._remember(i)

    def owed(self, i: int, message: str, attempt: int, due: int) -> None:
        """A step failed; the document is fed again when due."""
        self._supersede(i)
        self._event(i, Status.ERROR, message, attempt, due)
        self._remember(i, due=due, attempt=attempt)

    def touched(self, i: int) -> None:
        """Same content: remember its fingerprint if that is new, so that the next scan need not read."""
        known = self._block.known(i)
        assert known is not None
        if known.fingerprint != self._block.fingerprints[i]:
            self._remember(i, revision=known.revision, due=known.due, attempt=known.attempt)

    # -- single facts ------------------------------------------------------------------------------

    def _supersede(self, i: int) -> None:
        """A delivery that exists only as a step error ends when something newer is committed."""
        known, revision = self._block.known(i), self._block.revision(i)
        if known is not None and known.due is not None and revision != known.revision:
            why = "superseded by a newer version"
            self._event(i, Status.DROPPED, why, known.attempt, version=known.version, revision=known.revision)

    def _event(
        self,
        i: int,
        status: Status,
        message: str,
        attempt: int = 0,
        due: int | None = None,
        *,
        operation: Operation = "upsert",
        version: str | None = None,
        revision: int | None = None,
    ) -> None:
        """An event of the ledger, of the delivery that the document now makes, or of an earlier one."""
        id = self._block.ids[i]
        version = self._block.versions[i] if version is None else version
        revision = self._block.revision(i) if revision is None else revision
        self._events.append(
            {
                "document": id,
                "origin": id,
                "version": version,
                "revision": revision,
                "operation": operation,
                "delivery_hash": self._hashers[operation](id, version, revision),
                "status": status.value,
                "message": message,
                "attempt": attempt,
                "due": due,
            }
        )

    def _remember(
        self,
        i: int,
        operation: Operation = "upsert",
        *,
        revision: int | None = None,
        due: int | None = None,
        attempt: int = 0,
    ) -> None:
        """A row of ``documents`` for what was not simply upserted: what it was given stays as it is."""
        block, known = self._block, self._block.known(i)
        self._others.append(
            {
                "document": block.ids[i],
                "version": block.versions[i],
                "revision": block.revision(i) if revision is None else revision,
                "fingerprint": block.fingerprints[i],
                "operation": operation,
                "given": known.given if known else "",
                "due": due,
                "attempt": attempt,
            }
        )

    # -- whole columns -----------------------------------------------------------------------------

    def _gather(self) -> None:
        """What was said of the block becomes tables; those are written when they have become large."""
        if self._upserted:
            if not self._block.first_seen:
                for i in self._upserted:
                    self._supersede(i)
            rows = _Rows(self._block, self._upserted, "upsert", self._hashers["upsert"])
            self._send(rows, fields=self._fields, raw=self._raws)
            self._documents.append(
                self._documents_table(
                    len(rows.ids),
                    document=rows.ids,
                    version=rows.versions,
                    revision=rows.revisions,
                    fingerprint=_picked(self._block.fingerprints, self._upserted),
                    operation="upsert",
                    given=self._destination,
                    attempt=0,
                )
            )
        if self._deleted:
            self._send(_Rows(self._block, self._deleted, "delete", self._hashers["delete"]))
        if self._others:
            names = self._others[0]
            columns = {name: [row[name] for row in self._others] for name in names}
            self._documents.append(self._documents_table(len(self._others), **columns))
        self._upserted, self._fields, self._raws, self._deleted, self._others = [], [], [], [], []
        if self._bytes >= settings.PART_BYTES:
            self._flush()

    def _send(self, rows: _Rows, **content: Any) -> None:
        """Append rows to the outbox file."""
        self._outbox = self._outbox or PartWriter(self._root / "outbox", _OUTBOX_FILE)
        n, first = len(rows.ids), self._outbox.rows
        table = table_of(
            _OUTBOX_FILE,
            n,
            row=pa.array(range(first, first + n), pa.int64()),
            source=self._source,
            document=rows.ids,
            origin=rows.ids,
            version=rows.versions,
            revision=rows.revisions,
            operation=rows.operation,
            route="",
            branches="",
            delivery_hash=rows.hashes,
            attempt=rows.attempts,
            due=0,
            **content,
        )
        self._outbox.write(table)

    def _documents_table(self, n: int, **columns: Any) -> pa.Table:
        return table_of(DOCUMENTS, n, source=self._source, wave=self._wave, forced=False, **columns)

    def _flush(self) -> None:
        if self._outbox is not None:
            self._staged.outbox.append((self._destination, self._outbox.finish(due_stats([0]))))
            crash.point("transform.outbox")
        if self._documents:
            documents = pa.concat_tables(self._documents)
            part = write_part(self._root / "documents", documents, stats=due_stats(documents["due"].to_pylist()))
            self._staged.documents.append(part)
            crash.point("transform.documents")
        self._outbox, self._documents, self._bytes = None, [], 0

    def _write_events(self) -> Part:
        shared = {
            "source": self._source,
            "destination": self._destination,
            "wave": self._wave,
            "ordinal": ORDINAL_STEPS,
        }
        part = write_part(self._root / "ledger", events(self._events, **shared))
        crash.point("transform.ledger")
        return part


class _Rows:
    """Some documents of a block on their way to the outbox: what their deliveries are called."""

    def __init__(self, block: Block, rows: list[int], operation: Operation, delivery_hash: DeliveryHash) -> None:
        ids, versions = _picked(block.ids, rows), _picked(block.versions, rows)
        revisions = [1] * len(rows) if block.first_seen else [block.revision(i) for i in rows]
        self.operation = operation
        self.ids = block.table["id"] if ids is block.ids else pa.array(ids, pa.string())
        self.versions = pa.array(versions, pa.string())
        self.revisions = pa.array(revisions, pa.int64())
        self.hashes = list(map(delivery_hash, ids, versions, revisions))
        self.attempts = 0 if block.first_seen else [block.attempts_before(i) for i in rows]


def _picked(column: list[Any], rows: list[int]) -> list[Any]:
    return column if len(rows) == len(column) else [column[i] for i in rows]
