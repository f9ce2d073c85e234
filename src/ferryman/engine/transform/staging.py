"""Staging of a transform task's results: outbox rows, documents rows and ledger events are collected in columns and
written as whole files."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

from ferryman import crash, limits
from ferryman.document import Document, Operation, RereadRequest, encode_fields
from ferryman.engine.results import TRANSIENT, Attempts, ErrorKind, NodeError, NodeReport, Savepoint, Staged
from ferryman.engine.retries import draw_due_us, judge_failure
from ferryman.engine.runner.child import exit_if_forked
from ferryman.engine.tasks import KnownDocument, Reason
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.reconcile import FamilyOutcome, reconcile
from ferryman.engine.transform.rows import (
    Content,
    DeliveryHashes,
    DocumentStage,
    EventStage,
    OutboxBuffer,
    OutboxStage,
    SkippedDelivery,
    unchanged_row,
)
from ferryman.engine.transform.walk import MemberFailure, Walk, Walking, run_walk
from ferryman.plan import (
    CalledNode,
    DestinationNode,
    KeyedNode,
    Plan,
    RetryLimits,
    ends,
    errors_node,
    find_source,
    logs_of_versions,
    target_of,
)
from ferryman.records.families import (
    CONTENT_BEGINS,
    STALE,
    FailedMember,
    MissingDelivery,
    Published,
    PublishedLines,
    content_of,
    decode_published,
    encode_held,
    encode_published,
    parent_of,
)
from ferryman.records.rows import Status, error_fields, error_route, failed_message, with_traceback
from ferryman.sources import Log
from ferryman.storage.files import StatePath

_End = tuple[str, str]

_SINGLE_ATTEMPT: Final = RetryLimits(1, None)

_WAITS_FOR_KEY: Final = "waits for an earlier export of its key, which a step or router could not take"


class Stager:
    """Collects the outcomes of a task's documents, block by block, and writes them to data files of the tables."""

    def __init__(
        self,
        plan: Plan,
        source: str,
        root: StatePath,
        wave: int,
        now_us: int,
        epoch: int,
        entries: LogEntries | None = None,
    ) -> None:
        self._now_us = now_us
        self._nodes = {n.name: n for n in plan.nodes if isinstance(n, DestinationNode)}
        self._hashes = DeliveryHashes((plan.name, plan.version, source))
        node = find_source(plan.nodes, source)
        changed = isinstance(node.source, Log) and node.source.repeats_ids  # entries of one id keep their order
        in_order = {name for name, each in self._nodes.items() if changed or each.destination.in_order}
        self._source = source
        self._ends = [(e.destination, "/".join(e.route)) for e in ends(plan.nodes)[node.entry]] if changed else []
        self._outbox = OutboxStage(root, source, epoch, self._hashes, in_order, deletes_in_order=changed)
        self.carries = source in logs_of_versions(plan.nodes)
        """Whether the documents are of a log whose entries are versions of documents."""
        self._versions = CarriedVersions() if self.carries and entries is not None else None
        self._records_all = entries is None or self.carries
        """Whether each document gets a row in ``documents``; of other logs only what is not finished does."""
        self._documents = DocumentStage(root, source, wave, epoch, many_versions=self._versions is not None)
        self._events = EventStage(root, source, wave, epoch)
        self._block: Block
        self._i = 0
        """Row of the current block that is being walked."""
        self._reread_requests = RereadRequests(now_us)
        self._entries = entries
        self._counts = dict.fromkeys(("dropped", "error_doc", "dead"), 0)
        self._process = os.getpid()
        targets = {name: target_of(node) for name, node in self._nodes.items()}
        self._target: Callable[[str], str] = lambda name: targets.get(name, name)
        self._holds = frozenset(name for name, node in self._nodes.items() if node.policy.stale == "hold")
        self._called = {n.name: n for n in plan.nodes if isinstance(n, CalledNode)}
        self._final = plan.once or (entries is not None and entries.once)
        """Errors are final: nothing is retried."""
        self._error_messages = ErrorMessages.create(plan, source, wave, self._outbox)
        self._published: list[Published] | PublishedLines = []
        """Deliveries that the walk has staged so far for the current family."""
        self._published_before = PublishedBefore(plan, source)
        self._retried: list[RetriedDelivery] = []
        """Deliveries of the current family that failed and will be retried; they share one due time."""
        self._undecided: list[tuple[Block, list[UndecidedFamily | UnreadDocument]]] = []
        """Families and unreadable documents whose outcome is still undecided, by block, in order."""
        self._unseen = False

    @property
    def is_full(self) -> bool:
        """Return whether as much is held in memory as should be, and can be written only at the end."""
        return self._documents.size >= limits.PART_BYTES

    def begin_block(self, block: Block) -> None:
        """Begin a block: until ``end_block``, calls refer to its rows, each of which is staged once."""
        self._block = block
        if not self._undecided or self._undecided[-1][1]:
            self._undecided.append((block, []))
        else:
            self._undecided[-1] = (block, [])

    def end_block(self) -> None:
        """End the block: convert its rows to columns, and close files that are large enough."""
        exit_if_forked(self._process)
        self._gather()
        if self._outbox.size >= limits.PART_BYTES:
            self._flush()

    def decide(self, health: Mapping[str, NodeHealth], reader: UnreadWalker | None) -> None:
        """Stage the outcomes that were postponed until the end of the task, when it is known whether documents or nodes
        are at fault.

        Args:
            reader: walks the documents that could not be read; None: there are none.
        """
        for block, waiting in self._undecided:
            self._block = block
            for each in waiting:
                if isinstance(each, UndecidedFamily):
                    self._stage_decided(each, health)
                elif self._spends_no_attempt(health.get(each.fault.node), each.fault) and self._keep_if_known(each):
                    self._unseen = True
                else:
                    assert reader is not None
                    _, walking = reader.walk_unread(block, each.i, each.fault)
                    if walking is not None:
                        self._i, self._published = each.i, []
                        run_walk(reader.walk, walking)
                        is_retry = block.failures_to_retry(each.i) is not None
                        family = UndecidedFamily.of(each.i, reader.walk, self._published, retry=is_retry)
                        self._stage_decided(family, health)
            self._gather()
        self._undecided = []

    def finish(self, nodes: list[NodeReport]) -> Staged:
        """Write everything that is left and return the staged files, which are fsynced.

        Args:
            nodes: reports about the nodes, for the driver.
        """
        exit_if_forked(self._process)
        self._outbox.flush()
        self._documents.flush(last=True)
        self._events.close()
        crash.point("transform.staged")
        files = (self._outbox.files, self._documents.files, self._events.files)
        staged = Staged(*files, self._counts, nodes, self._unseen, self._documents.new)
        if (log := self._entries) is not None:
            held = frozenset(log.held)
            staged = staged._replace(
                blocked=log.blocked, entries=log.read, reached=log.reached, held=held, hashes=log.hashes
            )
        return staged

    def _gather(self) -> None:
        """Move the rows gathered for the current block into Arrow columns."""
        self._outbox.gather(self._block)
        self._documents.gather(self._block)
        self._events.gather()

    def _flush(self) -> None:
        self._outbox.flush()
        self._documents.flush()

    # -- documents that meet nothing unusual -------------------------------------------------------

    def buffer(self, end: tuple[str, str], branches: str) -> OutboxBuffer:
        """Return the buffer in which upserts of this kind are gathered."""
        return self._outbox.buffer(end, branches, "upsert")

    def skipped_delivery(self, end: tuple[str, str], branches: str, why: str) -> SkippedDelivery:
        """Return a delivery that documents do not get because a router sends them to other branches."""
        return SkippedDelivery(*end, branches, why, self._hashes.of(end, "upsert"))

    def stage_plain(
        self, i: int, deliveries: Sequence[Content], skipped: Sequence[SkippedDelivery], published: str
    ) -> None:
        """Stage row ``i`` of a plain block: it has no children, nothing failed or was requested for it, and it is
        published where it was before, or it was nowhere."""
        self._outbox.add_origin(self._block, i, deliveries)
        if self._records_all:
            self._add_plain_row(i, published)
        if skipped:
            self._events.add_skipped(self._block, i, skipped)
            self._counts["dropped"] += len(skipped)

    def stage_plain_rows(
        self, buffers: Sequence[OutboxBuffer], fields: list[bytes], raws: list[bytes | None], published: str
    ) -> None:
        """Stage all rows of a block as ``stage_plain`` does, each with one content for all of these buffers."""
        self._outbox.add_origins(self._block, buffers, fields, raws)
        self._documents.add_all_plain(len(fields), published)

    # -- calls of the walk, see ``walk.WalkSink`` -------------------------------------

    def upsert(self, doc: Document, end: _End, branches: str, fields: bytes, earlier: MissingDelivery | None) -> None:
        origin = self._block.ids[self._i]
        child = doc.id != origin
        if child:
            content = content_of(fields, doc.raw) if doc.only_if_changed else ""
            published = Published(doc.id[len(origin) :], end[1], end[0], content)
            self._published.append(published)
            if content and self._published_before.contains(published):
                self._add_event(doc, end, branches, Status.INDEXED, "unchanged: the destination already has it", 0)
                return
        published = self._outbox.upsert(self._block, self._i, doc, end, branches, fields, earlier)
        if not child:
            self._published.append(published)

    def drop(self, doc: Document, end: _End, branches: str, why: str, attempt: int) -> None:
        self._add_event(doc, end, branches, Status.DROPPED, why, attempt)

    def request_reread(self, doc: Document, request: RereadRequest) -> None:
        self._reread_requests.add(self._block.ids[self._i], request)

    def savepoint(self) -> Savepoint:
        """Begin new files, and return a savepoint that covers everything staged before."""
        if not isinstance(self._published, PublishedLines):
            self._published = PublishedLines(self._published)
        outbox, events = self._outbox.savepoint(self._block), self._events.savepoint()
        request = self._reread_requests.get(self._block.ids[self._i])
        return Savepoint(outbox, events, self._published.mark(), self._counts.copy(), request)

    def roll_back(self, savepoint: Savepoint) -> None:
        """Remove all that was staged since the savepoint."""
        assert isinstance(self._published, PublishedLines)
        self._published.cut(savepoint.published)
        self._outbox.roll_back(savepoint.outbox)
        self._events.roll_back(savepoint.events)
        self._counts.update(savepoint.counts)
        self._reread_requests.restore(self._block.ids[self._i], savepoint.reread)

    # -- outcomes of a document and its family -------------------------------------------------

    def stage_walk(self, i: int, walk: WalkOutcome, stage_deliveries: Callable[[], None], *, retry: bool) -> None:
        """Stage the outcome of row ``i`` and its family.

        Args:
            walk: outcome of the walk; complete after the call of ``stage_deliveries``.
            stage_deliveries: makes the walk's calls of this sink.
        """
        self._i = i
        self._published = []
        self.begin_version(i)
        self._published_before.begin(self._block, i)
        stage_deliveries()
        published = self._published
        if self._entries is not None and (walk.new_failures or walk.ended_failures):
            self._entries.hold_key(self._block, i, ended=not walk.new_failures)
        if walk.new_failures:
            self._undecided[-1][1].append(UndecidedFamily.of(i, walk, published, retry=retry))
            if self._versions is not None:
                self._versions.add_undecided(self._block, i, published)
        elif self._block.first_seen and self._block.ids[i] not in self._reread_requests:
            if self._records_all:
                self._add_plain_row(i, encode_published(published))
        else:
            self._stage_family(i, FamilyOutcome(walk.ended_failures, walk.reached, walk.unneeded), published, retry)
        self._outbox.end_family(self._block)

    def must_wait(self, i: int) -> bool:
        """Return whether row ``i`` must wait for an earlier export of its key, as far as is known so far."""
        return self._entries is not None and self._entries.waits(self._block, i)

    def stage_if_waiting(self, i: int) -> bool:
        """Return whether row ``i`` waits for an earlier export of its key; if so, stage its deliveries as waiting."""
        if not self.must_wait(i):
            return False
        if self._block.known(i) is None:
            self._i = i
            for end in self._ends:
                operation: Operation = "delete" if self._block.deletes(i) else "upsert"
                self._add_event(
                    self._member_stub(""), end, "", Status.ERROR, _WAITS_FOR_KEY, 0, self._now_us, operation
                )
            owed = [MissingDelivery(*end, 0) for end in self._ends]
            self._add_row(i, given="", due=self._now_us, failures=[FailedMember("", self._source, "", "", owed)])
        return True

    def defer_unread(self, i: int, fault: NodeError) -> None:
        """Postpone row ``i``, which could not be read, until ``decide``."""
        self._undecided[-1][1].append(UnreadDocument(i, fault))

    def stage_deletion(self, i: int) -> None:
        """Stage deletes for a document deleted at its source: for every member, wherever it was published."""
        self.begin_version(i)
        block, known = self._block, self._block.known(i)
        if known is None or block.key_hashes:
            self._stage_unrecorded_deletion(i)
            if known is not None:
                self._add_row(i, given="")
            elif self.carries:
                self._add_row(
                    i, "delete", given=encode_published([Published("", end[1], end[0]) for end in self._ends])
                )
            return
        if known.operation == "delete" and not known.given:
            return  # it is deleted already
        if self._entries is None:
            block.versions[i], block.fingerprints[i] = known.version, ""
        self._supersede(i)
        self._i = i
        for published in decode_published(known.given):
            self._stage_delete(published)
        self._add_row(i, "delete", given=known.given)

    def _stage_unrecorded_deletion(self, i: int) -> None:
        """Stage deletes for a deleted export, or a document without a row, at every destination it may have reached."""
        self._i = i
        for end in self._ends:
            self._stage_delete(Published("", end[1], end[0]))
        self._outbox.end_family(self._block)

    def begin_version(self, i: int) -> None:
        """Have row ``i``, which is staged next, know what an earlier entry of the task about its document came to."""
        if self._versions is not None:
            self._versions.begin(self._block, i)

    def stage_fingerprint(self, i: int) -> None:
        """Stage the new fingerprint of an unchanged document, so that the next scan does not have to read it."""
        known = self._block.known(i)
        assert known is not None
        if known.fingerprint != self._block.fingerprints[i]:
            self._documents.add(
                {**unchanged_row(self._block.ids[i], known), "fingerprint": self._block.fingerprints[i]}
            )

    def _stage_decided(self, family: UndecidedFamily, health: Mapping[str, NodeHealth]) -> None:
        """Stage the outcome of a family now that it is known whether its documents or the nodes are at fault."""
        self._i = family.i
        is_overtaken = self._versions is not None and self._versions.is_overtaken(self._block, family.i)
        failures = list(family.ended_failures)
        held: set[str] | None = set()
        known = self._block.known(family.i)
        recorded = recorded_deliveries(known.failures) if known is not None and family.retry else set()
        for failure in family.new_failures:
            node_health = health.get(failure.fault.node)
            if self._spends_no_attempt(node_health, failure.fault):
                owed = failure.owed
                new = [(failure.doc, o, failure) for o in owed if (failure.member, o.end) not in recorded]
                self._stage_held([] if is_overtaken else new)
            else:
                owed = [self._spend_attempt(failure, o) for o in failure.owed]
                if self._error_messages is not None:
                    self._error_messages.add(self._block, family.i, failure, owed)
            failures.append(FailedMember(failure.member, failure.node, failure.route, failure.branches, owed))
            if not any(o.open for o in owed):
                continue
            # a family is held only if every open failure waits for a node in trouble; otherwise it has a due time
            if (
                held is not None
                and node_health is not None
                and (node_health.spends_no_attempt(failure.fault) or node_health.holds(failure.fault))
            ):
                held.add(failure.fault.key)
            else:
                held = None
        if self._entries is not None and self._entries.block_if_unfinished(
            self._block,
            family.i,
            failures,
            family.new_failures,
            held or (),
            self._due() or (self._now_us if held else None),
        ):
            self._retried = []
            return
        if is_overtaken:
            self._retried = []
            self._supersede(family.i)
            self._i = family.i
            self._drop_superseded(failures, None)
            return
        self._stage_family(
            family.i,
            FamilyOutcome(failures, family.reached, family.unneeded),
            family.published,
            family.retry,
            held or set(),
        )

    def _spends_no_attempt(self, node_health: NodeHealth | None, fault: NodeError) -> bool:
        """Return whether the document keeps all its attempts despite this fault."""
        return node_health is not None and not self._final and node_health.spends_no_attempt(fault)

    def _stage_held(self, owed: list[tuple[Document, MissingDelivery, MemberFailure]]) -> None:
        """Record an ERROR event for each delivery that waits without spending an attempt, so that it is accounted
        for."""
        for doc, each, failure in owed:
            why = with_traceback(f"{failure.fault.text} (no attempt is spent)", failure.fault.trace)
            self._add_event(doc, each.end, failure.branches, Status.ERROR, why, each.attempt, self._now_us)

    def _spend_attempt(self, failure: MemberFailure, owed: MissingDelivery) -> MissingDelivery:
        """Count an attempt of a missing delivery, stage the event if it was the last one, and return the updated
        delivery."""
        policy, node = self._nodes[owed.destination].policy, self._called.get(failure.fault.node)
        if self._entries is not None:
            owed = self._entries.with_attempts(self._block, self._i, owed)
        tries = _SINGLE_ATTEMPT if self._final else policy.limits if node is None else node.limits(policy)
        result = spend_attempt(failure.fault, owed, tries, self._now_us)
        attempt = result.owed.attempt
        if result.status is None:
            self._retried.append(
                RetriedDelivery(failure.doc, owed.end, failure.branches, result.why, attempt, result.patient)
            )
        else:
            self._add_event(failure.doc, owed.end, failure.branches, result.status, result.why, attempt)
        return result.owed

    def _keep_if_known(self, unread: UnreadDocument) -> bool:
        """Keep a known document unchanged while its source is unavailable, since it may or may not have changed.

        Returns False for a new or deleted document, which the caller must stage instead.
        """
        i, block = unread.i, self._block
        known = block.known(i)
        if known is None or known.operation == "delete":
            return False
        forced = block.reasons[i] == Reason.FORCED
        if forced or block.reasons[i] == Reason.RETRY:
            held = encode_held([unread.fault.key])
            if held != known.held:
                self._documents.add({**unchanged_row(block.ids[i], known), "held": held, "forced": forced})
        return True

    def _stage_family(
        self,
        i: int,
        outcome: FamilyOutcome,
        made: list[Published] | PublishedLines,
        retry: bool,
        held: Collection[str] = (),
    ) -> None:
        """Stage the family's row of ``documents``, and deletes of deliveries that the new version no longer makes."""
        if not retry:
            self._supersede(i)
        due = self._due() or (self._now_us if held else None)
        for f in self._retried:
            self._add_event(f.doc, f.end, f.branches, Status.ERROR, f.why, f.attempt, due)
        self._retried = []
        known = self._block.known(i)
        if known is not None and known.given:
            old = decode_published(known.given)
            reconciliation = reconcile(old, made, outcome, self._target, retry=retry, holds=self._holds)
            for published, why in reconciliation.replaced:
                end = (published.destination, published.route)
                self._add_event(self._member_stub(published.member), end, "", Status.DROPPED, why, 0, None, "delete")
            for published in reconciliation.kept:
                made.append(published)
            for published in reconciliation.held:
                made.append(published._replace(content=STALE))
            for published in reconciliation.deleted:
                if not self._stage_delete(published):
                    made.append(published)
        again = known.again if retry and known is not None else None
        self._add_row(
            i, given=encode_published(made), due=due, failures=outcome.failures, held=encode_held(held), again=again
        )
        if retry and held and known is not None:
            self._documents.drop_last_if_same(self._block.name(i), known)  # still waiting, and nothing else has changed

    def _due(self) -> int | None:
        """Return when this family's failed deliveries are retried; None: there are none."""
        return next_retry_us(self._retried, self._nodes, self._now_us) if self._retried else None

    def _stage_delete(self, published: Published) -> bool:
        """Stage a delete unless the destination keeps deleted documents. Returns whether the delivery can be forgotten;
        if not, it must stay recorded as published."""
        node = self._nodes.get(published.destination)
        if node is None:
            return True  # a destination of an older plan version, which no plan maintains now
        doc = self._member_stub(published.member)
        end = (published.destination, published.route)
        if isinstance(node, KeyedNode) and self._ends:
            why = "a deletion has no fields, and so no key"
            self._add_event(doc, end, "", Status.DROPPED, why, 0, None, "delete")
            return True
        if not node.policy.deletes:
            why = "deleted at the source, but this destination keeps it (deletes=False)"
            self._add_event(doc, end, "", Status.DROPPED, why, 0, None, "delete")
            return False
        self._outbox.delete(self._block, self._i, doc.id, end)
        return True

    def _supersede(self, i: int) -> None:
        """Record as DROPPED the deliveries still missing from a failed step, because a newer revision replaces them."""
        known = self._block.known(i)
        if known is None or known.due is None or self._block.revision(i) == known.revision:
            return
        self._i = i
        self._drop_superseded(known.failures, (known.version, known.revision))

    def _drop_superseded(self, failures: Sequence[FailedMember], past: tuple[str, int] | None) -> None:
        """Record as DROPPED the deliveries that are still missing because of these failures.

        Args:
            past: version and revision of the deliveries; None: those of the current row.
        """
        for failure in failures:
            doc = self._member_stub(failure.member)
            for owed in failure.owed:
                if owed.open:
                    why = "superseded by a newer version"
                    self._add_event(doc, owed.end, failure.branches, Status.DROPPED, why, owed.attempt, past=past)

    # -- single facts: events of the ledger, rows of ``documents`` ---------------------------------

    def _member_stub(self, member: str) -> Document:
        """Return a stand-in for a member of the current family, with only what an event needs."""
        origin = self._block.ids[self._i]
        doc = Document.of(origin + member, {})
        doc.parent_id = parent_of(doc.id) if member else None
        return doc

    def _add_event(
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
        """Add a ledger event for the document's current delivery, or for one of an earlier version and revision
        (``past``)."""
        i = self._i
        version, revision = past or (self._block.versions[i], self._block.revision(i))
        digest = self._hashes.of(end, operation)(doc.id, version, revision) if end[0] else ""
        delivery = (operation, end[1], branches, end[0], digest)
        origin = self._block.ids[i]
        parent = None if doc.id == origin else parent_of(doc.id)  # not doc.parent_id, which a step may have changed
        self._events.add(doc.id, parent, origin, version, revision, *delivery, status.value, message, attempt, due)
        if (count := status.value.lower()) in self._counts and past is None:
            self._counts[count] += 1

    def _add_row(
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
        """Add a row of ``documents``. ``again``: due time of an earlier request to read the document again that is
        still valid."""
        block, failures = self._block, failures or []
        again, message = self._reread_requests.take(block.ids[i], again)
        if message:
            self._i = i
            self._add_event(Document.of(block.ids[i], {}), ("", ""), "", Status.DIRTY, message, 0)
        if not self._records_all and again is None and not failures and block.known(i) is None:
            return  # the position past its place records that it was processed
        self._documents.remember(block, i, operation, given=given, due=due, failures=failures, held=held, again=again)
        if self._versions is not None:
            self._versions.add(block, i, "" if operation == "delete" else given, operation)

    def _add_plain_row(self, i: int, published: str) -> None:
        self._documents.add_plain(i, published)
        if self._versions is not None:
            self._versions.add(self._block, i, published)


# Permanent failures of steps, routers and sources as messages for the plan's error queue.
#
# A message is an outbox row like any other. It is part of the commit that records the failure, so there is exactly one
# message per failure even after a kill, and an input never produces both an output and an error on the same path.
# Deliveries refused by a destination become messages when the wave is settled (``settle.RefusalReporter``).


class ErrorMessages:
    """Adds one task's messages for the plan's error queue."""

    def __init__(self, plan: Plan, source: str, wave: int, outbox: OutboxStage, name: str) -> None:
        self._plan = plan
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._source = source
        self._wave = wave
        self._outbox = outbox
        self._name = name

    @classmethod
    def create(cls, plan: Plan, source: str, wave: int, outbox: OutboxStage) -> Self | None:
        """Return None if the plan has no error queue."""
        node = errors_node(plan.nodes)
        return None if node is None else cls(plan, source, wave, outbox, node.name)

    def add(self, block: Block, i: int, failure: MemberFailure, owed: Sequence[MissingDelivery]) -> None:
        """Add a message for a member of row ``i``'s family that failed permanently, listing the deliveries that will
        not be made."""
        ended = [o.destination for o in owed if not o.open]
        if not ended:
            return
        fields = error_fields(
            kind=self._kinds.get(failure.node, "step"),
            cause=failure.fault.text,
            where=failure.node,
            plan=(self._plan.name, self._plan.version),
            destinations=ended,
            messages=[failed_message(failure.doc.id, self._source, block.entry_fields(i))],
        )
        doc = Document.of(failure.doc.id, {})
        doc.parent_id = failure.doc.parent_id
        end = (self._name, error_route(failure.node, failure.route, self._wave))
        self._outbox.upsert(block, i, doc, end, failure.branches, encode_fields(fields), None)


# Versions of one document in one task: the entries of a log.


class CarriedVersions:
    """Outcomes of a task's entries so far, which later entries about the same documents go on from."""

    def __init__(self) -> None:
        self._last: dict[str, KnownDocument] = {}
        self._undecided: dict[str, tuple[int, int]] = {}
        """Document -> its last entry, if that has failed and is undecided: identity of its block, and row."""
        self._overtaken: set[tuple[int, int]] = set()

    def begin(self, block: Block, i: int) -> None:
        """Set what row ``i`` of the block goes on from, which is staged next."""
        if (last := self._last.get(block.ids[i])) is not None:
            block.replace_known(i, last)
            if (entry := self._undecided.pop(block.ids[i], None)) is not None:
                self._overtaken.add(entry)

    def add(self, block: Block, i: int, given: str, operation: Operation = "upsert") -> None:
        """Add the outcome of row ``i``; ``given``: what is published of its document from now on."""
        if CONTENT_BEGINS in given:  # what the destinations have is known when this wave has been delivered
            given = encode_published(
                [each if each.content == STALE else Published(*each.place) for each in decode_published(given)]
            )
        self._last[block.ids[i]] = KnownDocument(
            block.versions[i], block.revision(i), "", operation, given, None, None, None, None
        )

    def add_undecided(self, block: Block, i: int, published: Collection[Published]) -> None:
        """Add row ``i``, of which a node has failed: what the version before has published may still be there, too."""
        known = block.known(i)
        before = decode_published(known.given) if known is not None else ()
        self.add(block, i, encode_published(list({each.place: each for each in (*before, *published)}.values())))
        self._undecided[block.ids[i]] = (id(block), i)

    def is_overtaken(self, block: Block, i: int) -> bool:
        """Return whether a later entry about the document of row ``i``, which has failed, was staged."""
        return (id(block), i) in self._overtaken


# Children that need not be sent again, because the destination has the same content from the previous version.

_COMPARED: Final = (Reason.LOOK, Reason.CHANGED)
"""Reasons for which unchanged children are skipped: only the document's content can have changed. After a step's error,
or if an operator requested it, everything is sent again."""


class PublishedBefore:
    """Content published for the previous version of each document, so that unchanged children are not sent again.

    Only confirmed content counts: ``scan.changes.unconfirmed_columns`` has removed the hashes of deliveries that are
    still in the outbox.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        targets = {node.name: target_of(node) for node in plan.nodes if isinstance(node, DestinationNode)}
        paths = [(end.destination, targets[end.destination]) for end in ends(plan.nodes)[source]]
        places = Counter(place for _, place in paths)
        self._shared = frozenset(name for name, place in paths if places[place] > 1)
        """Destinations whose place several paths write to, so that the content there may have come by another path."""
        self._block: Block
        self._i = 0
        self._had: frozenset[int] | None = None
        """Hashes of the previous version's deliveries with known content; None: not read yet."""

    def begin(self, block: Block, i: int) -> None:
        """Begin the family of row ``i``, which later calls of ``contains`` refer to."""
        self._block, self._i, self._had = block, i, None

    def contains(self, published: Published) -> bool:
        """Return whether the previous version published this member, by the same path and with the same content."""
        if self._had is None:
            known = self._block.known(self._i)
            compared = known is not None and self._block.reasons[self._i] in _COMPARED
            before = decode_published(known.given) if known is not None and compared else ()
            self._had = frozenset(hash(each) for each in before if each.content)
        return hash(published) in self._had and published.destination not in self._shared


# Failures that are still undecided: is the document at fault, or the step, router or source?
#
# ``Stager.decide`` decides when the task has no more documents.


class UndecidedFamily(NamedTuple):
    """A family in which a step, a router or the source failed, and whose outcome is not decided yet.

    Attributes:
        ended_failures: failures of earlier attempts that are not tried again.
        published: what the walk published.
    """

    i: int
    new_failures: list[MemberFailure]
    ended_failures: list[FailedMember]
    reached: list[FailedMember]
    unneeded: list[str]
    published: list[Published] | PublishedLines
    retry: bool

    @classmethod
    def of(cls, i: int, walk: WalkOutcome, published: list[Published] | PublishedLines, *, retry: bool) -> Self:
        """Return the family of row ``i`` after its walk."""
        return cls(i, walk.new_failures, walk.ended_failures, walk.reached, walk.unneeded, published, retry)


class UnreadDocument(NamedTuple):
    """A document that could not be read."""

    i: int
    fault: NodeError


class WalkOutcome(Protocol):
    """Outcome of a walk before it is known whether documents or nodes are at fault, see ``Walk``."""

    @property
    def new_failures(self) -> list[MemberFailure]: ...
    @property
    def ended_failures(self) -> list[FailedMember]: ...
    @property
    def reached(self) -> list[FailedMember]: ...
    @property
    def unneeded(self) -> list[str]: ...


class UnreadWalker(Protocol):
    """Walks documents that could not be read, see ``DocumentReader``."""

    walk: Walk

    def walk_unread(self, block: Block, i: int, fault: NodeError) -> tuple[Any, Walking | None]: ...


class RetriedDelivery(NamedTuple):
    """A delivery that failed and is tried again."""

    doc: Document
    end: tuple[str, str]
    branches: str
    why: str
    attempt: int
    patient: bool
    """Whether retries are limited by time instead of number."""


class AttemptResult(NamedTuple):
    """A delivery after a failed attempt.

    Attributes:
        status: status of its event; None: the delivery is retried, and its event is added later, when the due time is
            known.
    """

    owed: MissingDelivery
    status: Status | None
    why: str
    patient: bool


def spend_attempt(fault: NodeError, owed: MissingDelivery, limits: RetryLimits, now_us: int) -> AttemptResult:
    """Count a failed attempt of a delivery, and decide whether it is retried or has failed."""
    before = Attempts(owed.attempt, owed.since, owed.transient)
    if fault.kind is ErrorKind.PERMANENT:
        rejected = MissingDelivery(*owed.end, owed.attempt + 1, False, owed.since, owed.transient)
        return AttemptResult(rejected, Status.ERROR_DOC, fault.text, False)
    failed = judge_failure(before, limits, now_us, transient=fault.kind in TRANSIENT)
    attempt, since, transient = failed.attempts
    why = f"{fault.text} (attempt {attempt}, the last)" if failed.is_last else fault.text
    return AttemptResult(
        MissingDelivery(*owed.end, attempt, not failed.is_last, since, transient or 0),
        Status.DEAD if failed.is_last else None,
        with_traceback(why, fault.trace),
        failed.is_patient,
    )


def recorded_deliveries(failures: list[FailedMember]) -> set[tuple[str, tuple[str, str]]]:
    """Return (member, end) of the deliveries in these failures that already have events in the ledger."""
    return {(f.member, o.end) for f in failures for o in f.owed}


def next_retry_us(failed: Sequence[RetriedDelivery], nodes: Mapping[str, DestinationNode], now_us: int) -> int:
    """Return when a family is retried, µs since 1970: all its failures at once, so that the origin is read once."""
    longest = max(nodes[f.end[0]].policy.longest_wait_s(f.attempt, patient=f.patient) for f in failed)
    return draw_due_us(longest, now_us)


# Requests of steps to read documents again later.


class RereadRequests:
    """Requests of one task's steps to have documents read again later, by origin."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._of: dict[str, RereadRequest] = {}

    def __contains__(self, origin: object) -> bool:
        return origin in self._of

    def add(self, origin: str, request: RereadRequest) -> None:
        """Keep a request; of several for one document the earliest time counts."""
        if (before := self._of.get(origin)) is None or request.after_s < before.after_s:
            self._of[origin] = request

    def get(self, origin: str) -> RereadRequest | None:
        return self._of.get(origin)

    def restore(self, origin: str, request: RereadRequest | None) -> None:
        """Set an origin's request back to an earlier one (None: remove it)."""
        self._of.pop(origin, None)
        if request is not None:
            self._of[origin] = request

    def take(self, origin: str, before: int | None) -> tuple[int | None, str]:
        """Return when the document is to be read again, µs since 1970, and the message for the ledger ("" if the time
        has not changed).

        Args:
            before: the time of an earlier request that still counts.
        """
        request = self._of.pop(origin, None)
        if request is None:
            return before, ""
        at = self._now_us + int(request.after_s * 1e6)
        if before is not None and before <= at:
            return before, ""
        when = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        return at, f"partial: it is read again after {when} UTC" + (f" ({request.why})" if request.why else "")
