"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ferryman import settings
from ferryman.document import Document, Operation
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.outgoing import Outgoing, picked
from ferryman.engine.transform.succession import Outcome, succession
from ferryman.engine.transform.unchanged import Unchanged
from ferryman.ledger.delivery import DeliveryHash, hasher
from ferryman.ledger.events import ORDINAL_STEPS, table_of
from ferryman.ledger.family import (
    Failure,
    Given,
    content_of,
    decode_given,
    encode_failures,
    encode_given,
    open_deliveries,
    parent_of,
)
from ferryman.ledger.outbox import OutboxWriter
from ferryman.ledger.schemas import DOCUMENTS, LEDGER
from ferryman.ledger.settle import due_stats
from ferryman.ledger.statuses import Status
from ferryman.plan import DestinationNode, Plan, Policy, target_of
from ferryman.storage.parquet import Part, PartWriter, write_part
from ferryman.testing import crash

_End = tuple[str, str]


class Staged(NamedTuple):
    """What a task returns: its files, and what a person wants counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]


class Stager:
    """Gathers what becomes of a task's documents, block by block. Delivery hashes are made here and nowhere else."""

    def __init__(self, plan: Plan, source: str, root: Path, wave: int, now_us: int, epoch: int) -> None:
        self._root = root
        self._epoch = epoch
        self._wave = wave
        self._source = source
        self._now_us = now_us
        self._plan = (plan.name, plan.version, source)
        self._nodes = {n.name: n for n in plan.nodes if isinstance(n, DestinationNode)}
        self._hashers: dict[tuple[str, str, Operation], DeliveryHash] = {}
        self._block: Block
        self._i = 0
        """Row of the block that the walk is at."""
        self._given: list[Given] = []
        """What the walk has given so far of this document's family."""
        self._unchanged = Unchanged(plan, source)
        self._failed: list[tuple[Document, _End, str, str, int]] = []
        """Its failures that are tried again; they share a due time."""
        self._sendings: dict[tuple[_End, str, Operation], Outgoing] = {}
        self._bytes = 0
        """Content of the outbox rows since the last flush."""
        self._waiting = 0
        """Of these, what is not written yet."""
        self._writers: dict[str, OutboxWriter] = {}
        self._family_at: set[str] = set()
        """Destinations that have rows of the document's family."""
        self._split: set[str] = set()
        """Of these, those of which a file closed in the middle of the family."""
        self._documents: list[pa.Table] = []
        self._events: PartWriter | None = None
        self._clean: list[int] = []
        self._clean_given: list[str] = []
        self._others: list[dict[str, Any]] = []
        self._event_rows: list[tuple[Any, ...]] = []
        self._staged = Staged([], [], [], dict.fromkeys(("dropped", "error_doc", "dead"), 0))

    def begin(self, block: Block) -> None:
        """What is said from now on is about rows of this block, each of them once."""
        self._block = block

    def end(self) -> None:
        """The block is through."""
        self._gather()
        if self._bytes >= settings.PART_BYTES:
            self._flush()

    def finish(self) -> Staged:
        """Write what is left; everything staged is fsynced when this returns."""
        self._flush()
        if self._events is not None:
            self._staged.ledger.append(self._events.finish())
            crash.point("transform.ledger")
        crash.point("transform.staged")
        return self._staged

    # -- what a walk says of a delivery; see ``walk.Stage`` ------------------------------------------

    def upsert(self, doc: Document, end: _End, branches: str, fields: bytes, attempts_before: int) -> None:
        origin = self._block.ids[self._i]
        child = doc.id != origin
        if child:
            content = content_of(fields, doc.raw) if doc.only_if_changed else ""
            given = Given(doc.id[len(origin) :], end[1], end[0], content)
            self._given.append(given)
            if content and self._unchanged.has(given):
                self._event(doc, end, branches, Status.INDEXED, "unchanged: it is there as it is", 0)
                return
        sending = self._sendings.get((end, branches, "upsert"))
        if sending is None:
            sending = self._sending(end, branches, "upsert")
        self._make_room(len(fields) if doc.raw is None else len(fields) + len(doc.raw))
        sending.add(self._i, doc.id, child=child, attempts=attempts_before)
        sending.fill(fields, doc.raw)
        self._family_at.add(end[0])
        if not child:
            self._given.append(sending.given)

    def dropped(self, doc: Document, end: _End, branches: str, why: str, attempt: int) -> None:
        self._event(doc, end, branches, Status.DROPPED, why, attempt)

    def failed(self, doc: Document, end: _End, branches: str, why: str, attempt: int, permanent: bool) -> bool:
        if permanent:
            self._event(doc, end, branches, Status.ERROR_DOC, why, attempt)
        elif is_last(attempt, self._nodes[end[0]].policy):
            self._event(doc, end, branches, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt)
        else:
            self._failed.append((doc, end, branches, why, attempt))
            return True
        return False

    # -- what becomes of a document and its family -----------------------------------------------------

    def walked(self, i: int, walk: Outcome, go: Callable[[], None], *, retry: bool) -> None:
        """Let the walk go, and stage what it says of row ``i`` and its family."""
        self._i = i
        given: list[Given] = []
        self._given = given
        self._unchanged.begin(self._block, i)
        go()
        if self._block.first_seen and not walk.failures:
            self._clean.append(i)
            self._clean_given.append(encode_given(tuple(given)))
        else:
            self._family(i, walk, given, retry)
        if self._split:
            self._end_split()
        self._family_at.clear()

    def unwalked(self, i: int, *, gone: bool) -> None:
        """It vanished, or only its fingerprint is new."""
        if gone:
            self._gone(i)
        else:
            self._touched(i)

    def _gone(self, i: int) -> None:
        """It vanished from its source: a delete of each member wherever it was given."""
        block, known = self._block, self._block.known(i)
        assert known is not None
        block.versions[i], block.fingerprints[i] = known.version, ""
        self._supersede(i)
        self._i = i
        for given in decode_given(known.given):
            self._delete(given)
        self._remember(i, "delete", given=known.given)

    def _touched(self, i: int) -> None:
        """Same content: remember its fingerprint if that is new, so that the next scan need not read."""
        known = self._block.known(i)
        assert known is not None
        if known.fingerprint != self._block.fingerprints[i]:
            failures = known.failures
            self._remember(i, revision=known.revision, given=known.given, due=known.due, failures=failures)

    def _family(self, i: int, walk: Outcome, made: list[Given], retry: bool) -> None:
        """The row of ``documents``; deletes of what is not made any more."""
        if not retry:
            self._supersede(i)
        due = self._due() if self._failed else None
        for doc, end, branches, why, attempt in self._failed:
            self._event(doc, end, branches, Status.ERROR, why, attempt, due)
        self._failed = []
        known, given = self._block.known(i), made
        if known is not None and known.given:
            heirs = succession(decode_given(known.given), made, walk, self._target, retry=retry)
            for old, why in heirs.replaced:
                end = (old.destination, old.route)
                self._event(self._relative(old.member), end, "", Status.DROPPED, why, 0, None, "delete")
            given = heirs.given + [old for old in heirs.gone if not self._delete(old)]
        self._remember(i, given=encode_given(tuple(given)), due=due, failures=walk.failures)

    def _delete(self, given: Given) -> bool:
        """Send a delete, unless the destination keeps what it has; is it settled?"""
        node = self._nodes.get(given.destination)
        if node is None:
            return True  # an older version of the plan had it: it is nobody's now
        doc = self._relative(given.member)
        end = (given.destination, given.route)
        if not node.policy.deletes:
            why = "gone, but this destination keeps (deletes=False)"
            self._event(doc, end, "", Status.DROPPED, why, 0, None, "delete")
            return False
        self._make_room(0)
        sending = self._sending(end, "", "delete")
        sending.add(self._i, doc.id, child=bool(given.member))
        return True

    def _supersede(self, i: int) -> None:
        """What exists only as a step's error ends when something newer is committed."""
        known = self._block.known(i)
        if known is None or known.due is None or self._block.revision(i) == known.revision:
            return
        self._i = i
        for failure in known.failures:
            doc = self._relative(failure.member)
            for owed in failure.owed:
                if owed.open:
                    why = "superseded by a newer version"
                    past = (known.version, known.revision)
                    self._event(doc, owed.end, failure.branches, Status.DROPPED, why, owed.attempt, past=past)

    def _due(self) -> int:
        """When the family's failures are tried again: together, so that the origin is read once."""
        longest = max(self._nodes[end[0]].policy.longest_wait_s(attempt) for _, end, _, _, attempt in self._failed)
        return self._now_us + int(random.uniform(0, longest) * 1e6)

    def _relative(self, member: str) -> Document:
        """A member of the family that is being staged: enough of it for an event."""
        origin = self._block.ids[self._i]
        doc = Document.of(origin + member, {})
        doc.parent_id = parent_of(doc.id) if member else None
        return doc

    def _target(self, destination: str) -> str:
        node = self._nodes.get(destination)
        return destination if node is None else target_of(node)

    # -- single facts ------------------------------------------------------------------------------

    def _event(
        self,
        doc: Document,
        end: _End,
        branches: str,
        status: Status,
        message: str,
        attempt: int,
        due: int | None = None,
        operation: Operation = "upsert",
        past: tuple[str, int] | None = None,
    ) -> None:
        """An event of the ledger, of the delivery that the document now makes, or of a past version and revision."""
        i = self._i
        version, revision = past or (self._block.versions[i], self._block.revision(i))
        digest = self._hasher(end, operation)(doc.id, version, revision)
        self._event_rows.append(
            (
                doc.id,
                doc.parent_id,
                self._block.ids[i],
                version,
                revision,
                operation,
                end[1],
                branches,
                end[0],
                digest,
                status.value,
                message,
                attempt,
                due,
            )
        )
        if (count := status.value.lower()) in self._staged.counts and past is None:
            self._staged.counts[count] += 1
        if len(self._event_rows) >= _EVENT_ROWS:
            self._gather_events()

    def _remember(
        self,
        i: int,
        operation: Operation = "upsert",
        *,
        given: str,
        revision: int | None = None,
        due: int | None = None,
        failures: list[Failure] | None = None,
    ) -> None:
        """A row of ``documents``."""
        block, failures = self._block, failures or []
        self._others.append(
            {
                "document": block.ids[i],
                "version": block.versions[i],
                "revision": block.revision(i) if revision is None else revision,
                "fingerprint": block.fingerprints[i],
                "operation": operation,
                "given": given,
                "due": due,
                "owed": 0 if due is None else open_deliveries(failures),
                "failed": encode_failures(failures),
            }
        )

    def _hasher(self, end: _End, operation: Operation) -> DeliveryHash:
        found = self._hashers.get((*end, operation))
        if found is None:
            found = self._hashers[(*end, operation)] = hasher(*self._plan, *end, operation)
        return found

    def _sending(self, end: _End, branches: str, operation: Operation) -> Outgoing:
        key = (end, branches, operation)
        if (found := self._sendings.get(key)) is None:
            found = self._sendings[key] = Outgoing(end, branches, operation, self._hasher(end, operation))
        return found

    # -- columns -----------------------------------------------------------------------------------

    def _gather(self) -> None:
        """What was said of single documents, as Arrow columns."""
        self._gather_outbox()
        block = self._block
        if self._clean:
            rows = self._clean
            table = self._documents_table(
                len(rows),
                document=picked(block.ids, rows),
                version=picked(block.versions, rows),
                revision=1,
                fingerprint=picked(block.fingerprints, rows),
                operation="upsert",
                given=self._clean_given,
                owed=0,
            )
            self._documents.append(table)
        if self._others:
            others: dict[str, Any] = {name: [row[name] for row in self._others] for name in self._others[0]}
            self._documents.append(self._documents_table(len(self._others), **others))
        self._gather_events()
        self._clean, self._clean_given, self._others = [], [], []

    def _gather_events(self) -> None:
        if not self._event_rows:
            return
        columns = dict(zip(_EVENT, map(list, zip(*self._event_rows, strict=True)), strict=True))
        now = dt.datetime.now(dt.UTC)
        shared = {"source": self._source, "wave": self._wave, "ordinal": ORDINAL_STEPS, "created": now}
        if self._events is None:
            self._events = PartWriter(self._root / "ledger", LEDGER, epoch=self._epoch)
        self._events.write(table_of(LEDGER, len(self._event_rows), **columns, **shared))
        self._event_rows = []

    def _make_room(self, content: int) -> None:
        """For one more outbox row: what waits in memory is written before it is more than a row group takes."""
        size = content + _ROW_BYTES
        if self._waiting and self._waiting + size > settings.GROUP_BYTES:
            self._gather_outbox()
        self._bytes += size
        self._waiting += size

    def _gather_outbox(self) -> None:
        """Upserts of all destinations first, then deletes: what a family lost goes after what it has."""
        for sending in sorted(self._sendings.values(), key=lambda s: s.operation == "delete"):
            if sending.rows:
                self._send(sending)
                sending.clear()
        self._waiting = 0

    def _send(self, sending: Outgoing) -> None:
        """Append rows to their destination's file. If it is full, the next ones go into another."""
        name = sending.end[0]
        if (writer := self._writers.get(name)) is None:
            writer = self._writers[name] = OutboxWriter(self._root / "outbox", epoch=self._epoch)
        writer.write(sending.table(self._block, self._source, writer.rows))
        if writer.size >= settings.PART_BYTES:
            self._close(name)
            if name in self._family_at:
                self._split.add(name)

    def _end_split(self) -> None:
        """The family is through. What its last files have is of this family alone: so it is known which belong
        together, and one lane sends them in their order, see ``ledger.outbox.split_family``."""
        self._gather_outbox()
        for name in self._split & self._writers.keys():
            self._close(name)
        self._split.clear()

    def _close(self, name: str) -> None:
        part = self._writers.pop(name).finish()
        assert part is not None, "a writer has rows"
        self._staged.outbox.append((name, part))
        crash.point("transform.outbox")

    def _documents_table(self, n: int, **columns: Any) -> pa.Table:
        return table_of(DOCUMENTS, n, source=self._source, wave=self._wave, forced=False, **columns)

    def _flush(self) -> None:
        for name in list(self._writers):
            self._close(name)
        if self._documents:
            documents = pa.concat_tables(self._documents)
            stats = due_stats(documents["due"].to_pylist())
            part = write_part(self._root / "documents", documents, epoch=self._epoch, stats=stats)
            self._staged.documents.append(part)
            crash.point("transform.documents")
        self._documents, self._bytes = [], 0


_ROW_BYTES: Final = 256
"""What an outbox row takes beside its content: its id, its hash, its numbers."""
_EVENT_ROWS: Final = 65_536
"""Events that are held as Python objects."""
_EVENT: Final = (
    "document",
    "parent",
    "origin",
    "version",
    "revision",
    "operation",
    "route",
    "branches",
    "destination",
    "delivery_hash",
    "status",
    "message",
    "attempt",
    "due",
)
"""Columns of an event that its document and delivery say."""


def is_last(attempt: int, policy: Policy) -> bool:
    """Has the delivery had all its attempts?"""
    return attempt >= policy.attempts
