"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ferryman import settings
from ferryman.ledger.delivery import hasher
from ferryman.ledger.events import ORDINAL_STEPS, events, table_of
from ferryman.ledger.schemas import DOCUMENTS, OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.statuses import Status
from ferryman.plan import Path as PlanPath
from ferryman.plan import Plan
from ferryman.storage.parquet import Part, write_part
from ferryman.testing import crash


class Known(NamedTuple):
    """What ``documents`` says of a document."""

    version: str
    revision: int
    fingerprint: str
    operation: str
    given: str
    due: int | None
    attempt: int


def known_of(values: list[Any]) -> Known | None:
    """The known part of a judged row; None for a document never seen."""
    return None if values[0] is None else Known(*values)


class Staged(NamedTuple):
    """What a task returns: its files, and what a person wants counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]


class Stager:
    """Gathers the rows of one task. Revisions and delivery hashes are made here and nowhere else."""

    def __init__(self, plan: Plan, path: PlanPath, root: Path, wave: int) -> None:
        self._root = root
        self._wave = wave
        self._source = path.source.name
        self._destination = path.destination.name
        self._deletes = path.destination.policy.deletes
        names = (plan.name, plan.version, self._source, self._destination, "")
        self._hash_upsert = hasher(*names, "upsert")
        self._hash_delete = hasher(*names, "delete")
        self._rows: list[tuple[str, str, int, str, str, int, bytes | None, bytes | None]] = []
        self._bytes = 0
        self._documents: list[tuple[str, str, int, str, str, str, int | None, int, bool]] = []
        self._events: list[dict[str, Any]] = []
        self._outbox_parts: list[tuple[str, Part]] = []
        self._document_parts: list[Part] = []
        self._counts = {"taken": 0, "upserts": 0, "deletes": 0, "dropped": 0, "error_doc": 0, "dead": 0, "errors": 0}

    # -- what may become of a document -------------------------------------------------------------

    def upsert(
        self,
        id: str,
        version: str,
        fingerprint: str,
        reason: str,
        known: Known | None,
        fields: bytes,
        raw: bytes | None,
    ) -> None:
        """It goes to the destination."""
        revision = self._revision(version, reason, known)
        self._supersede(id, version, revision, known)
        tried = self.attempts_before(version, reason, known)
        self._rows.append(
            (id, version, revision, "upsert", self._hash_upsert(id, version, revision), tried, fields, raw)
        )
        self._document(id, version, revision, fingerprint, "upsert", self._destination)
        self._counts["upserts"] += 1
        self._grow(len(fields) + (0 if raw is None else len(raw)))

    def gone(self, id: str, known: Known | None) -> None:
        """It vanished from its source: a delete wherever it was given."""
        assert known is not None
        revision = known.revision + 1
        self._supersede(id, known.version, revision, known)
        if known.given and self._deletes:
            digest = self._hash_delete(id, known.version, revision)
            self._rows.append((id, known.version, revision, "delete", digest, 0, None, None))
            self._counts["deletes"] += 1
        elif known.given:
            digest = self._hash_delete(id, known.version, revision)
            self._event(
                id,
                known.version,
                revision,
                "delete",
                digest,
                Status.DROPPED,
                "gone, but this destination keeps (deletes=False)",
                0,
            )
            self._counts["dropped"] += 1
        self._document(id, known.version, revision, "", "delete", known.given)
        self._grow(0)

    def ended(
        self,
        id: str,
        version: str,
        fingerprint: str,
        reason: str,
        known: Known | None,
        status: Status,
        message: str,
        attempt: int | None = None,
    ) -> None:
        """It ends before the destination: dropped, refused, dead."""
        revision = self._revision(version, reason, known)
        self._supersede(id, version, revision, known)
        tried = self.attempts_before(version, reason, known) + 1 if attempt is None else attempt
        digest = self._hash_upsert(id, version, revision)
        self._event(id, version, revision, "upsert", digest, status, message, tried)
        self._document(id, version, revision, fingerprint, "upsert", known.given if known else "")
        self._counts[status.value.lower()] += 1
        self._grow(0)

    def owed(
        self,
        id: str,
        version: str,
        fingerprint: str,
        reason: str,
        known: Known | None,
        message: str,
        attempt: int,
        due: int,
    ) -> None:
        """A step failed; the document is fed again when due."""
        revision = self._revision(version, reason, known)
        self._supersede(id, version, revision, known)
        digest = self._hash_upsert(id, version, revision)
        self._event(id, version, revision, "upsert", digest, Status.ERROR, message, attempt, due)
        self._document(id, version, revision, fingerprint, "upsert", known.given if known else "", due, attempt)
        self._counts["errors"] += 1
        self._grow(0)

    def touched(self, id: str, known: Known, fingerprint: str) -> None:
        """Same content under a new fingerprint: remember it, so that the next scan need not read."""
        self._document(id, known.version, known.revision, fingerprint, "upsert", known.given, known.due, known.attempt)
        self._counts["taken"] -= 1
        self._grow(0)

    def attempts_before(self, version: str, reason: str, known: Known | None) -> int:
        """Attempts this delivery has had already: only a retry of the same version goes on counting."""
        return known.attempt if known is not None and reason == "retry" and known.version == version else 0

    def finish(self) -> Staged:
        """Write what is left; everything staged is fsynced when this returns."""
        self._flush()
        ledger = [self._write_events()] if self._events else []
        crash.point("transform.staged")
        return Staged(self._outbox_parts, self._document_parts, ledger, self._counts)

    # -- inside ------------------------------------------------------------------------------------

    def _revision(self, version: str, reason: str, known: Known | None) -> int:
        """A retry of what failed goes on with its revision; everything else taken up opens a new one."""
        if known is None:
            return 1
        if reason == "retry" and known.version == version:
            return known.revision
        return known.revision + 1

    def _supersede(self, id: str, version: str, revision: int, known: Known | None) -> None:
        """A delivery that exists only as a step error ends when something newer is committed."""
        if known is None or known.due is None or revision == known.revision:
            return
        digest = self._hash_upsert(id, known.version, known.revision)
        self._event(
            id,
            known.version,
            known.revision,
            "upsert",
            digest,
            Status.DROPPED,
            "superseded by a newer version",
            known.attempt,
        )

    def _document(
        self,
        id: str,
        version: str,
        revision: int,
        fingerprint: str,
        operation: str,
        given: str,
        due: int | None = None,
        attempt: int = 0,
    ) -> None:
        self._documents.append((id, version, revision, fingerprint, operation, given, due, attempt, False))

    def _event(
        self,
        id: str,
        version: str,
        revision: int,
        operation: str,
        digest: str,
        status: Status,
        message: str,
        attempt: int,
        due: int | None = None,
    ) -> None:
        self._events.append(
            {
                "document": id,
                "origin": id,
                "version": version,
                "revision": revision,
                "operation": operation,
                "delivery_hash": digest,
                "status": status.value,
                "message": message,
                "attempt": attempt,
                "due": due,
            }
        )

    def _grow(self, size: int) -> None:
        self._counts["taken"] += 1
        self._bytes += size
        if self._bytes >= settings.PART_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._outbox_parts.append((self._destination, self._write_rows()))
        if self._documents:
            self._document_parts.append(self._write_documents())
        self._rows, self._documents, self._bytes = [], [], 0

    def _write_rows(self) -> Part:
        n = len(self._rows)
        ids, versions, revisions, operations, hashes, attempts, fields, raws = zip(*self._rows, strict=True)
        schema = pa.schema([f for f in OUTBOX if f.name not in OUTBOX_PARTITION])
        table = table_of(
            schema,
            n,
            row=pa.array(range(n), pa.int64()),
            source=self._source,
            document=ids,
            origin=ids,
            version=versions,
            revision=revisions,
            operation=operations,
            route="",
            branches="",
            delivery_hash=hashes,
            attempt=attempts,
            due=0,
            fields=fields,
            raw=raws,
        )
        stats = {"minValues": {"due": 0}, "maxValues": {"due": 0}, "nullCount": {"due": 0}}
        part = write_part(self._root / "outbox", table, stats=stats)
        crash.point("transform.outbox")
        return part

    def _write_documents(self) -> Part:
        n = len(self._documents)
        ids, versions, revisions, prints, operations, given, due, attempts, forced = zip(*self._documents, strict=True)
        table = table_of(
            DOCUMENTS,
            n,
            source=self._source,
            document=ids,
            version=versions,
            revision=revisions,
            fingerprint=prints,
            operation=operations,
            wave=self._wave,
            given=given,
            due=due,
            attempt=attempts,
            forced=forced,
        )
        waiting = [d for d in due if d is not None]
        stats: dict[str, Any] = {"nullCount": {"due": n - len(waiting)}}
        if waiting:
            stats["minValues"] = {"due": min(waiting)}
        part = write_part(self._root / "documents", table, stats=stats)
        crash.point("transform.documents")
        return part

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
