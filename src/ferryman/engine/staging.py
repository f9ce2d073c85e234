"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ferryman import settings
from ferryman.document import Document, Operation
from ferryman.engine.block import Block
from ferryman.ledger.delivery import DeliveryHash, hasher
from ferryman.ledger.events import ORDINAL_STEPS, table_of
from ferryman.ledger.family import (
    Failure,
    Given,
    decode_given,
    descends,
    encode_failures,
    encode_given,
    open_deliveries,
    parent_of,
)
from ferryman.ledger.schemas import DOCUMENTS, LEDGER, OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.settle import due_stats
from ferryman.ledger.statuses import Status
from ferryman.plan import DestinationNode, Plan, Policy, target_of
from ferryman.storage.parquet import Part, PartWriter, write_part
from ferryman.testing import crash

_OUTBOX_FILE: Final = pa.schema([f for f in OUTBOX if f.name not in OUTBOX_PARTITION])

_End = tuple[str, str]


class Staged(NamedTuple):
    """What a task returns: its files, and what a person wants counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]


class Outcome(Protocol):
    """What a walk leaves, beside what it said; see ``Walk``."""

    @property
    def failures(self) -> list[Failure]: ...
    @property
    def reached(self) -> list[Failure]: ...
    @property
    def kept(self) -> list[str]: ...


class Stager:
    """Gathers what becomes of a task's documents, block by block. Delivery hashes are made here and nowhere else."""

    def __init__(self, plan: Plan, source: str, root: Path, wave: int, now_us: int) -> None:
        self._root = root
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
        self._failed: list[tuple[Document, _End, str, str, int]] = []
        """Its failures that are tried again; they share a due time."""
        self._sendings: dict[tuple[_End, str, Operation], _Sending] = {}
        self._bytes = 0
        """Content of the outbox rows since the last flush."""
        self._waiting = 0
        """Of these, what is not written yet."""
        self._writers: dict[str, PartWriter] = {}
        self._documents: list[pa.Table] = []
        self._events: list[pa.Table] = []
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
        if self._events:
            self._staged.ledger.append(write_part(self._root / "ledger", pa.concat_tables(self._events)))
            crash.point("transform.ledger")
        crash.point("transform.staged")
        return self._staged

    # -- what a walk says of a delivery; see ``walk.Stage`` ------------------------------------------

    def upsert(self, doc: Document, end: _End, branches: str, fields: bytes, attempts_before: int) -> None:
        sending = self._sendings.get((end, branches, "upsert"))
        if sending is None:
            sending = self._sending(end, branches, "upsert")
        sending.rows.append(self._i)
        sending.fields.append(fields)
        sending.raws.append(doc.raw)
        origin = self._block.ids[self._i]
        if doc.id == origin:
            sending.add(origin)
            self._given.append(sending.given)
        else:
            sending.add_child(doc.id)
            self._given.append(Given(doc.id[len(origin) :], end[1], end[0]))
        if attempts_before:
            sending.attempts[len(sending.rows) - 1] = attempts_before
        size = len(fields) if doc.raw is None else len(fields) + len(doc.raw)
        self._bytes += size
        self._waiting += size
        if self._waiting >= settings.PART_BYTES:
            self._gather_outbox()

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
        go()
        if self._block.first_seen and not walk.failures:
            self._clean.append(i)
            self._clean_given.append(encode_given(tuple(given)))
        else:
            self._family(i, walk, given, retry)

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
        known = self._block.known(i)
        given = list(made)
        if known is not None and known.given:
            new, stale = set(made), []
            for old in decode_given(known.given):
                if old in new:
                    continue
                again = not retry or (
                    any(f.covers(old) for f in walk.reached) and not any(descends(old.member, k) for k in walk.kept)
                )
                if again and not any(f.covers(old) for f in walk.failures):
                    stale.append(old)
                else:
                    given.append(old)
            given += self._clean_up(stale, given, walk.failures)
        self._failed = []
        self._remember(i, given=encode_given(tuple(given)), due=due, failures=walk.failures)

    def _clean_up(self, stale: list[Given], given: list[Given], failures: list[Failure]) -> list[Given]:
        """Take out what the new version has not; what stays given all the same."""
        there = {(g.member, self._target(g.destination)) for g in given}
        kept = []
        for old in stale:
            if (old.member, self._target(old.destination)) in there:
                self._replaced(old, "replaced: the new version comes to the same place by another way")
            elif (heir := self._heir(old, failures)) is not None:
                self._replaced(old, "kept: the new version may still come to the same place by another way")
                kept += [] if heir in given or heir in kept else [heir]
            elif not self._delete(old):
                kept.append(old)
        return kept

    def _heir(self, old: Given, failures: list[Failure]) -> Given | None:
        """A missing delivery that would overwrite this one; if it never comes, deleting is its business."""
        for failure in failures:
            if descends(old.member, failure.member):
                for owed in failure.owed:
                    if self._target(owed.destination) == self._target(old.destination):
                        return Given(old.member, owed.route, owed.destination)
        return None

    def _replaced(self, old: Given, why: str) -> None:
        """A delete that is not sent."""
        doc = self._relative(old.member)
        self._event(doc, (old.destination, old.route), "", Status.DROPPED, why, 0, None, "delete")

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
        sending = self._sending(end, "", "delete")
        sending.rows.append(self._i)
        if given.member:
            sending.add_child(doc.id)
        else:
            sending.add(doc.id)
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

    def _sending(self, end: _End, branches: str, operation: Operation) -> _Sending:
        key = (end, branches, operation)
        if (found := self._sendings.get(key)) is None:
            found = self._sendings[key] = _Sending(end, branches, operation, self._hasher(end, operation))
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
                document=_picked(block.ids, rows),
                version=_picked(block.versions, rows),
                revision=1,
                fingerprint=_picked(block.fingerprints, rows),
                operation="upsert",
                given=self._clean_given,
                owed=0,
            )
            self._documents.append(table)
        if self._others:
            others: dict[str, Any] = {name: [row[name] for row in self._others] for name in self._others[0]}
            self._documents.append(self._documents_table(len(self._others), **others))
        if self._event_rows:
            columns = dict(zip(_EVENT, map(list, zip(*self._event_rows, strict=True)), strict=True))
            now = dt.datetime.now(dt.UTC)
            shared = {"source": self._source, "wave": self._wave, "ordinal": ORDINAL_STEPS, "created": now}
            self._events.append(table_of(LEDGER, len(self._event_rows), **columns, **shared))
        self._clean, self._clean_given, self._others, self._event_rows = [], [], [], []

    def _gather_outbox(self) -> None:
        """Upserts of all destinations first, then deletes: what a family lost goes after what it has."""
        for sending in sorted(self._sendings.values(), key=lambda s: s.operation == "delete"):
            if sending.rows:
                self._send(sending)
                sending.clear()
        self._waiting = 0

    def _send(self, sending: _Sending) -> None:
        """Append rows to their destination's file, which stays open until the family is through."""
        block, rows, name = self._block, sending.rows, sending.end[0]
        if (writer := self._writers.get(name)) is None:
            writer = self._writers[name] = PartWriter(self._root / "outbox", _OUTBOX_FILE)
        n, first = len(rows), writer.rows
        versions = _picked(block.versions, rows)
        revisions = [1] * n if block.first_seen else [block.revision(i) for i in rows]
        content = {"fields": sending.fields, "raw": sending.raws} if sending.fields else {}
        table = table_of(
            _OUTBOX_FILE,
            n,
            row=pa.array(range(first, first + n), pa.int64()),
            source=self._source,
            document=sending.ids,
            parent=sending.parents,
            origin=sending.ids if sending.parents is None else _picked(block.ids, rows),
            version=versions,
            revision=revisions,
            operation=sending.operation,
            route=sending.end[1],
            branches=sending.branches,
            delivery_hash=list(map(sending.delivery_hash, sending.ids, versions, revisions)),
            attempt=[sending.attempts.get(at, 0) for at in range(n)] if sending.attempts else 0,
            due=0,
            **content,
        )
        writer.write(table)

    def _documents_table(self, n: int, **columns: Any) -> pa.Table:
        return table_of(DOCUMENTS, n, source=self._source, wave=self._wave, forced=False, **columns)

    def _flush(self) -> None:
        for name, writer in self._writers.items():
            self._staged.outbox.append((name, writer.finish(due_stats([0]))))
            crash.point("transform.outbox")
        if self._documents:
            documents = pa.concat_tables(self._documents)
            part = write_part(self._root / "documents", documents, stats=due_stats(documents["due"].to_pylist()))
            self._staged.documents.append(part)
            crash.point("transform.documents")
        self._writers, self._documents, self._bytes = {}, [], 0


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


class _Sending:
    """Outbox rows that share destination, route, branches and operation; the rest as columns."""

    def __init__(self, end: _End, branches: str, operation: Operation, delivery_hash: DeliveryHash) -> None:
        self.end = end
        self.branches = branches
        self.operation = operation
        self.delivery_hash = delivery_hash
        self.given = Given("", end[1], end[0])
        self.clear()

    def clear(self) -> None:
        self.rows: list[int] = []
        """Their origin's row in the block."""
        self.ids: list[str] = []
        self.parents: list[str | None] | None = None
        """None: all are origins."""
        self.fields: list[bytes] = []
        self.raws: list[bytes | None] = []
        self.attempts: dict[int, int] = {}
        """Place -> attempts made, where there were any."""

    def add(self, id: str) -> None:
        """The id of an origin."""
        self.ids.append(id)
        if self.parents is not None:
            self.parents.append(None)

    def add_child(self, id: str) -> None:
        """The id of a child."""
        if self.parents is None:
            self.parents = [None] * len(self.ids)
        self.ids.append(id)
        self.parents.append(parent_of(id))


def is_last(attempt: int, policy: Policy) -> bool:
    """Has the delivery had all its attempts?"""
    return attempt >= policy.attempts


def _picked(column: list[Any], rows: list[int]) -> list[Any]:
    """Values of these rows: some of them, and of a family's origin the same one several times."""
    whole = len(rows) == len(column) and rows == list(range(len(rows)))
    return column if whole else [column[i] for i in rows]
