"""Single facts that a transform task stages: events of the ledger, rows of ``documents``."""

from __future__ import annotations

from collections.abc import Sequence

from ferryman.document import Document, Operation
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.document_stage import DocumentStage
from ferryman.engine.transform.event_stage import EventStage, Untaken
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.outbox_buffer import OutboxBuffer
from ferryman.engine.transform.outbox_stage import Content, DeliveryHashes, OutboxStage
from ferryman.engine.transform.wishes import Wishes
from ferryman.plan import DestinationNode, Plan, ends, source_named
from ferryman.records.family import FailedMember, parent_of
from ferryman.records.statuses import Status
from ferryman.sources import Log
from ferryman.storage.files import StatePath


class StagedFacts:
    """Of the documents of one task."""

    def __init__(
        self, plan: Plan, source: str, root: StatePath, wave: int, now_us: int, epoch: int, entries: LogEntries | None
    ) -> None:
        self._now_us = now_us
        self._nodes = {n.name: n for n in plan.nodes if isinstance(n, DestinationNode)}
        self._hashes = DeliveryHashes((plan.name, plan.version, source))
        node = source_named(plan.nodes, source)
        changed = isinstance(node.source, Log) and node.source.repeats_ids  # of an id, each goes on in its order
        in_order = {name for name, each in self._nodes.items() if changed or each.destination.in_order}
        self._source = source
        self._ends = [(e.destination, "/".join(e.route)) for e in ends(plan.nodes)[node.entry]] if changed else []
        self._outbox = OutboxStage(root, source, epoch, self._hashes, in_order, deletes_in_order=changed)
        self._documents = DocumentStage(root, source, wave, epoch)
        self._events = EventStage(root, source, wave, epoch)
        self._block: Block
        self._i = 0
        """Row of the block that the walk is at."""
        self._wishes = Wishes(now_us)
        self._entries = entries
        self._counts = dict.fromkeys(("dropped", "error_doc", "dead"), 0)

    def buffer(self, end: tuple[str, str], branches: str) -> OutboxBuffer:
        """Where upserts of this kind are gathered."""
        return self._outbox.buffer(end, branches, "upsert")

    def untaken(self, end: tuple[str, str], branches: str, why: str) -> Untaken:
        """A delivery that documents do not come to."""
        return Untaken(*end, branches, why, self._hashes.of(end, "upsert"))

    def went(self, i: int, deliveries: Sequence[Content], untaken: Sequence[Untaken], published: str) -> None:
        """Row ``i`` of a block of new documents went its way, alone, and met nothing."""
        self._outbox.add_origin(self._block, i, deliveries)
        self._documents.add_new(i, published)
        if untaken:
            self._events.add_untaken(self._block, i, untaken)
            self._counts["dropped"] += len(untaken)

    def _relative(self, member: str) -> Document:
        """A member of the family that is being staged: enough of it for an event."""
        origin = self._block.ids[self._i]
        doc = Document.of(origin + member, {})
        doc.parent_id = parent_of(doc.id) if member else None
        return doc

    def _event(
        self,
        doc: Document,
        end: tuple[str, str],
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
        digest = self._hashes.of(end, operation)(doc.id, version, revision) if end[0] else ""
        delivery = (operation, end[1], branches, end[0], digest)
        origin = self._block.ids[i]
        parent = None if doc.id == origin else parent_of(doc.id)  # not what a step may have made of parent_id
        self._events.add(doc.id, parent, origin, version, revision, *delivery, status.value, message, attempt, due)
        if (count := status.value.lower()) in self._counts and past is None:
            self._counts[count] += 1

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
        again, said = self._wishes.fulfil(block.ids[i], again)
        if said:
            self._i = i
            self._event(Document.of(block.ids[i], {}), ("", ""), "", Status.DIRTY, said, 0)
        if self._entries is not None and again is None and not failures and block.known(i) is None:
            return  # its place says that it was processed
        self._documents.remember(block, i, operation, given=given, due=due, failures=failures, held=held, again=again)
