"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ferryman import crash, limits
from ferryman.document import Again, Document, Operation
from ferryman.engine.transform.block import Block, KnownDocument
from ferryman.engine.transform.health import NodeHealth, NodeReport
from ferryman.engine.transform.node_errors import TRANSIENT, ErrorKind, NodeError
from ferryman.engine.transform.outbox_buffer import OutboxBuffer, picked
from ferryman.engine.transform.reconcile import WalkOutcome, reconcile
from ferryman.engine.transform.unchanged import Unchanged
from ferryman.engine.transform.walk import Met, Walk
from ferryman.plan import CalledNode, DestinationNode, Plan, target_of
from ferryman.records.delivery_hash import DeliveryHash, hasher
from ferryman.records.events import ORDINAL_STEPS, table_of
from ferryman.records.family import (
    FailedMember,
    Owed,
    Published,
    PublishedLines,
    content_of,
    decode_published,
    encode_failures,
    encode_held,
    encode_published,
    open_deliveries,
    parent_of,
)
from ferryman.records.reasons import with_traceback
from ferryman.records.schemas import DOCUMENTS, LEDGER
from ferryman.records.statuses import Status
from ferryman.state.outbox import OutboxWriter, due_stats
from ferryman.storage.parquet import Part, PartWriter, write_part

_End = tuple[str, str]


class Staged(NamedTuple):
    """What a task returns: its files, and what a person wants counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]
    nodes: list[NodeReport]
    unseen: bool
    """Known documents of the source could not be looked at."""


class Undecided(NamedTuple):
    """A family of which a step, a router or the source failed: whose fault that is shows when the task is through.

    Attributes:
        failures: where it had failed before, and has ended.
        given: what the walk gave.
    """

    i: int
    met: list[Met]
    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]
    given: list[Published] | PublishedLines
    retry: bool


class Unread(NamedTuple):
    """A document that could not be read."""

    i: int
    fault: NodeError


class Trail(WalkOutcome, Protocol):
    """What a walk came to, before it is known whose fault its failures are; see ``Walk``."""

    @property
    def met(self) -> list[Met]: ...


class Unreader(Protocol):
    """Goes on with a document that could not be read; see ``DocumentReader``."""

    walk: Walk

    def unread(self, block: Block, i: int, fault: NodeError) -> tuple[Any, Callable[[], None] | None]: ...


class Mark(NamedTuple):
    """What was staged when it was set; see ``Stager.mark``.

    Attributes:
        outbox, ledger: numbers of files.
    """

    outbox: int
    ledger: int
    given: tuple[int, list[Published]]
    counts: dict[str, int]
    wish: Again | None
    family_at: set[str]


class Left(NamedTuple):
    """What a walk has left; see ``WalkOutcome``."""

    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]


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
        self._called = {n.name: n for n in plan.nodes if isinstance(n, CalledNode)}
        self._hashers: dict[tuple[str, str, Operation], DeliveryHash] = {}
        self._block: Block
        self._i = 0
        """Row of the block that the walk is at."""
        self._given: list[Published] | PublishedLines = []
        """What the walk has given so far of this document's family."""
        self._unchanged = Unchanged(plan, source)
        self._failed: list[tuple[Document, _End, str, str, int, bool]] = []
        """Its failures that are tried again; they share a due time."""
        self._undecided: list[tuple[Block, list[Undecided | Unread]]] = []
        """By block, in their order."""
        self._wishes: dict[str, Again] = {}
        """Origin -> when a step wants it again."""
        self._sendings: dict[tuple[_End, str, Operation], OutboxBuffer] = {}
        self._bytes = 0
        """Content of the outbox rows since the last flush."""
        self._waiting = 0
        """Of these, what is not written yet."""
        self._writers: dict[str, OutboxWriter] = {}
        self._family_at: set[str] = set()
        """Destinations that have rows of the document's family."""
        self._split: set[str] = set()
        """Of these, those of which a file closed in the middle of the family."""
        self._marked = False
        """Something of the document's family could have been taken back."""
        self._documents: list[pa.Table] = []
        self._events: PartWriter | None = None
        self._clean: list[int] = []
        self._clean_given: list[str] = []
        self._others: list[dict[str, Any]] = []
        self._event_rows: list[tuple[Any, ...]] = []
        self._staged = Staged([], [], [], dict.fromkeys(("dropped", "error_doc", "dead"), 0), [], False)

    def begin(self, block: Block) -> None:
        """What is said from now on is about rows of this block, each of them once."""
        self._block = block
        if not self._undecided or self._undecided[-1][1]:
            self._undecided.append((block, []))
        else:
            self._undecided[-1] = (block, [])

    def end(self) -> None:
        """The block is through."""
        self._gather()
        if self._bytes >= limits.PART_BYTES:
            self._flush()

    def decide(self, health: Mapping[str, NodeHealth], feed: Unreader) -> None:
        """All documents are through: whose fault was what went wrong?"""
        for block, waiting in self._undecided:
            self._block = block
            for each in waiting:
                if isinstance(each, Undecided):
                    self._decided(each, health)
                elif health[each.fault.node].gives_back(each.fault) and self._stays(each):
                    self._staged = self._staged._replace(unseen=True)
                else:
                    _, go = feed.unread(block, each.i, each.fault)
                    if go is not None:
                        self._i, self._given = each.i, []
                        go()
                        self._decided(_undecided(each.i, feed.walk, self._given, block), health)
            self._gather()
        self._undecided = []

    def finish(self, nodes: list[NodeReport]) -> Staged:
        """Write what is left; everything staged is fsynced when this returns.

        Args:
            nodes: what is to be told of them.
        """
        self._staged.nodes.extend(nodes)
        self._flush()
        self._close_events()
        crash.point("transform.staged")
        return self._staged

    # -- what a walk says of a delivery; see ``walk.Stage`` ------------------------------------------

    def upsert(self, doc: Document, end: _End, branches: str, fields: bytes, before: Owed | None) -> None:
        origin = self._block.ids[self._i]
        child = doc.id != origin
        if child:
            content = content_of(fields, doc.raw) if doc.only_if_changed else ""
            given = Published(doc.id[len(origin) :], end[1], end[0], content)
            self._given.append(given)
            if content and self._unchanged.has(given):
                self._event(doc, end, branches, Status.INDEXED, "unchanged: it is there as it is", 0)
                return
        sending = self._sendings.get((end, branches, "upsert"))
        if sending is None:
            sending = self._sending(end, branches, "upsert")
        self._make_room(len(fields) if doc.raw is None else len(fields) + len(doc.raw))
        sending.add(self._i, doc.id, child=child, before=before)
        sending.fill(fields, doc.raw)
        self._family_at.add(end[0])
        if not child:
            self._given.append(sending.given)

    def dropped(self, doc: Document, end: _End, branches: str, why: str, attempt: int) -> None:
        self._event(doc, end, branches, Status.DROPPED, why, attempt)

    def again(self, doc: Document, wish: Again) -> None:
        origin = self._block.ids[self._i]
        if (before := self._wishes.get(origin)) is None or wish.after_s < before.after_s:
            self._wishes[origin] = wish

    def mark(self) -> Mark:
        """What comes now goes into files of its own."""
        if not isinstance(self._given, PublishedLines):
            self._given = PublishedLines(self._given)
        self._gather_outbox()
        self._gather_events()
        self._close_events()
        for name in list(self._writers):
            self._close(name)
        self._marked = True
        wish = self._wishes.get(self._block.ids[self._i])
        files = len(self._staged.outbox), len(self._staged.ledger)
        return Mark(*files, self._given.mark(), self._staged.counts.copy(), wish, self._family_at.copy())

    def take_back(self, mark: Mark) -> None:
        """Remove what came since."""
        assert isinstance(self._given, PublishedLines)
        self._given.cut(mark.given)
        for sending in self._sendings.values():
            sending.clear()
        for writer in self._writers.values():
            writer.abandon()
        if self._events is not None:
            self._events.abandon()
        self._writers, self._events, self._event_rows, self._waiting = {}, None, [], 0
        for _, part in self._staged.outbox[mark.outbox :]:
            (self._root / "outbox" / part.path).unlink()
        for part in self._staged.ledger[mark.ledger :]:
            (self._root / "ledger" / part.path).unlink()
        del self._staged.outbox[mark.outbox :], self._staged.ledger[mark.ledger :]
        self._staged.counts.update(mark.counts)
        self._family_at = mark.family_at
        self._wishes.pop(self._block.ids[self._i], None)
        if mark.wish is not None:
            self._wishes[self._block.ids[self._i]] = mark.wish

    # -- what becomes of a document and its family -----------------------------------------------------

    def walked(self, i: int, walk: Trail, go: Callable[[], None], *, retry: bool) -> None:
        """Let the walk go, and stage what it says of row ``i`` and its family."""
        self._i = i
        self._given = []
        self._unchanged.begin(self._block, i)
        go()
        given = self._given
        if walk.met:
            found = Undecided(i, walk.met, walk.failures, walk.reached, walk.kept, given, retry)
            self._undecided[-1][1].append(found)
        elif self._block.first_seen and self._block.ids[i] not in self._wishes:
            self._clean.append(i)
            self._clean_given.append(encode_published(given))
        else:
            self._family(i, walk, given, retry)
        if self._marked:
            self._split |= self._family_at
            self._marked = False
        if self._split:
            self._end_split()
        self._family_at.clear()

    def unread(self, i: int, fault: NodeError) -> None:
        """Row ``i`` could not be read."""
        self._undecided[-1][1].append(Unread(i, fault))

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
        for given in decode_published(known.given):
            self._delete(given)
        self._remember(i, "delete", given=known.given)

    def _touched(self, i: int) -> None:
        """Same content: remember its fingerprint if that is new, so that the next scan need not read."""
        known = self._block.known(i)
        assert known is not None
        if known.fingerprint != self._block.fingerprints[i]:
            self._others.append({**_row(self._block.ids[i], known), "fingerprint": self._block.fingerprints[i]})

    def _decided(self, found: Undecided, health: Mapping[str, NodeHealth]) -> None:
        """What went wrong is known to be the documents' or the nodes'."""
        self._i = found.i
        failures = list(found.failures)
        held: set[str] | None = set()
        known = self._block.known(found.i)
        told = _places(known.failures) if known is not None and found.retry else set()
        for met in found.met:
            pulse = health.get(met.fault.node)
            if pulse is not None and pulse.gives_back(met.fault):
                owed = met.owed
                self._hold([(met.doc, o, met) for o in owed if (met.member, o.end) not in told])
            else:
                owed = [self._spent(met, o) for o in met.owed]
            failures.append(FailedMember(met.member, met.node, met.route, met.branches, owed))
            if not any(o.open for o in owed):
                continue
            if held is not None and pulse is not None and (pulse.gives_back(met.fault) or pulse.holds(met.fault)):
                held.add(met.fault.key)
            else:
                held = None
        self._family(found.i, Left(failures, found.reached, found.kept), found.given, found.retry, held or set())

    def _hold(self, owed: list[tuple[Document, Owed, Met]]) -> None:
        """No attempt is spent; said once of each delivery, so that it is accounted for."""
        for doc, each, met in owed:
            why = with_traceback(f"{met.fault.text} (no attempt is spent)", met.fault.trace)
            self._event(doc, each.end, met.branches, Status.ERROR, why, each.attempt, self._now_us)

    def _spent(self, met: Met, owed: Owed) -> Owed:
        """An attempt of this delivery is spent; whether it is tried again."""
        fault, policy = met.fault, self._nodes[owed.destination].policy
        attempt, transient, since = owed.attempt + 1, owed.transient, owed.since
        if fault.kind is ErrorKind.PERMANENT:
            self._event(met.doc, owed.end, met.branches, Status.ERROR_DOC, fault.text, attempt)
            return Owed(*owed.end, attempt, False, since, transient)
        waited_s = None
        if fault.kind in TRANSIENT:
            since, transient = since or self._now_us, transient + 1
            waited_s = (self._now_us - since) / 1e6
        node = self._called.get(fault.node)
        allowed = policy.limits if node is None else node.limits(policy)
        last = allowed.passed(attempt, transient, waited_s)
        if last:
            why = with_traceback(f"{fault.text} (attempt {attempt}, the last)", fault.trace)
            self._event(met.doc, owed.end, met.branches, Status.DEAD, why, attempt)
        else:
            patient = waited_s is not None and allowed.patience_s is not None
            why = with_traceback(fault.text, fault.trace)
            self._failed.append((met.doc, owed.end, met.branches, why, attempt, patient))
        return Owed(*owed.end, attempt, not last, since, transient)

    def _stays(self, unread: Unread) -> bool:
        """A known document of which the source is away stays as it is: nobody knows whether it has changed. False: it
        is new, and must be remembered."""
        i, block = unread.i, self._block
        known = block.known(i)
        if known is None or known.operation == "delete":
            return False
        forced = block.reasons[i] == "forced"
        if forced or block.reasons[i] == "retry":
            held = encode_held([unread.fault.key])
            if held != known.held:
                self._others.append({**_row(block.ids[i], known), "held": held, "forced": forced})
        return True

    def _family(
        self, i: int, walk: WalkOutcome, made: list[Published] | PublishedLines, retry: bool, held: Collection[str] = ()
    ) -> None:
        """The row of ``documents``; deletes of what is not made any more."""
        if not retry:
            self._supersede(i)
        due = self._due() if self._failed else self._now_us if held else None
        for doc, end, branches, why, attempt, _ in self._failed:
            self._event(doc, end, branches, Status.ERROR, why, attempt, due)
        self._failed = []
        known = self._block.known(i)
        if known is not None and known.given:
            heirs = reconcile(decode_published(known.given), made, walk, self._target, retry=retry)
            for old, why in heirs.replaced:
                end = (old.destination, old.route)
                self._event(self._relative(old.member), end, "", Status.DROPPED, why, 0, None, "delete")
            for old in heirs.stays:
                made.append(old)
            for old in heirs.gone:
                if not self._delete(old):
                    made.append(old)
        again = known.again if retry and known is not None else None
        self._remember(
            i, given=encode_published(made), due=due, failures=walk.failures, held=encode_held(held), again=again
        )
        if retry and held and known is not None and _same(self._others[-1], _row(self._block.ids[i], known)):
            self._others.pop()  # it waits on; nothing is new

    def _delete(self, given: Published) -> bool:
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
        longest = max(
            self._nodes[end[0]].policy.longest_wait_s(attempt, patient=patient)
            for _, end, _, _, attempt, patient in self._failed
        )
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
        digest = self._hasher(end, operation)(doc.id, version, revision) if end[0] else ""
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
        due: int | None = None,
        failures: list[FailedMember] | None = None,
        held: str | None = None,
        again: int | None = None,
    ) -> None:
        """A row of ``documents``. ``again``: the wish of before, where that still counts."""
        block, failures = self._block, failures or []
        if (wish := self._wishes.pop(block.ids[i], None)) is not None:
            again = self._wished(i, wish, again)
        self._others.append(
            {
                "document": block.ids[i],
                "version": block.versions[i],
                "revision": block.revision(i),
                "fingerprint": block.fingerprints[i],
                "operation": operation,
                "given": given,
                "due": due,
                "owed": 0 if due is None else open_deliveries(failures),
                "failed": encode_failures(failures),
                "held": held,
                "forced": False,
                "again": again,
            }
        )

    def _wished(self, i: int, wish: Again, before: int | None) -> int:
        """When it is read again, µs since 1970; the ledger says so of the document."""
        at = self._now_us + int(wish.after_s * 1e6)
        if before is not None and before <= at:
            return before
        self._i = i
        when = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        why = f"partial: it is read again after {when} UTC" + (f" ({wish.why})" if wish.why else "")
        self._event(Document.of(self._block.ids[i], {}), ("", ""), "", Status.DIRTY, why, 0)
        return at

    def _hasher(self, end: _End, operation: Operation) -> DeliveryHash:
        found = self._hashers.get((*end, operation))
        if found is None:
            found = self._hashers[(*end, operation)] = hasher(*self._plan, *end, operation)
        return found

    def _sending(self, end: _End, branches: str, operation: Operation) -> OutboxBuffer:
        key = (end, branches, operation)
        if (found := self._sendings.get(key)) is None:
            found = self._sendings[key] = OutboxBuffer(end, branches, operation, self._hasher(end, operation))
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
                forced=False,
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

    def _close_events(self) -> None:
        if self._events is not None:
            self._staged.ledger.append(self._events.finish())
            self._events = None
            crash.point("transform.ledger")

    def _make_room(self, content: int) -> None:
        """For one more outbox row: what waits in memory is written before it is more than a row group takes."""
        size = content + _ROW_BYTES
        if self._waiting and self._waiting + size > limits.GROUP_BYTES:
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

    def _send(self, sending: OutboxBuffer) -> None:
        """Append rows to their destination's file. If it is full, the next ones go into another."""
        name = sending.end[0]
        if (writer := self._writers.get(name)) is None:
            writer = self._writers[name] = OutboxWriter(self._root / "outbox", epoch=self._epoch)
        writer.write(sending.table(self._block, self._source, writer.rows))
        if writer.size >= limits.PART_BYTES:
            self._close(name)
            if name in self._family_at:
                self._split.add(name)

    def _end_split(self) -> None:
        """The family is through. What its last files have is of this family alone: so it is known which belong
        together, and one lane sends them in their order, see ``state.outbox.split_family``."""
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
        return table_of(DOCUMENTS, n, source=self._source, wave=self._wave, **columns)

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


def _row(id: str, known: KnownDocument) -> dict[str, Any]:
    """A row of ``documents`` that says the same again."""
    return {
        "document": id,
        "version": known.version,
        "revision": known.revision,
        "fingerprint": known.fingerprint,
        "operation": known.operation,
        "given": known.given,
        "due": known.due,
        "owed": 0 if known.due is None else open_deliveries(known.failures),
        "failed": known.failed,
        "held": known.held,
        "forced": False,
        "again": known.again,
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in one if name != "due")


def _places(failures: list[FailedMember]) -> set[tuple[str, _End]]:
    """(member, end) of deliveries of which the ledger has events."""
    return {(f.member, o.end) for f in failures for o in f.owed}


def _undecided(i: int, walk: Trail, given: list[Published] | PublishedLines, block: Block) -> Undecided:
    retry = block.to_retry(i) is not None
    return Undecided(i, walk.met, walk.failures, walk.reached, walk.kept, given, retry)
