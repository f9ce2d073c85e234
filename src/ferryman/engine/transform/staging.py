"""Staging of a transform task's results: outbox rows, documents rows and ledger events are collected in columns and
written as whole files."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

from ferryman import crash, limits
from ferryman.document import Document, Operation, RereadRequest, encode_fields
from ferryman.engine.batches import Reason
from ferryman.engine.results import TRANSIENT, ErrorKind, Mark, NodeError, NodeReport, Staged
from ferryman.engine.runner.child import end_copy_of
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.rows import (
    Content,
    DeliveryHashes,
    DocumentStage,
    EventStage,
    OutboxBuffer,
    OutboxStage,
    Untaken,
    same_again,
)
from ferryman.engine.transform.walk import Met, Walk
from ferryman.plan import (
    CalledNode,
    DestinationNode,
    KeyedNode,
    Plan,
    RetryLimits,
    ends,
    errors_node,
    find_source,
    target_of,
)
from ferryman.records.families import (
    FailedMember,
    MissingDelivery,
    Published,
    PublishedLines,
    ancestry,
    content_of,
    decode_published,
    encode_held,
    encode_published,
    parent_of,
)
from ferryman.records.rows import Status, error_fields, error_route, failed_message, with_traceback
from ferryman.sources import Log
from ferryman.storage.files import StatePath

# Single facts that a transform task stages: events of the ledger, rows of ``documents``.


class StagedFacts:
    """Stages what one task learns about its documents."""

    def __init__(
        self, plan: Plan, source: str, root: StatePath, wave: int, now_us: int, epoch: int, entries: LogEntries | None
    ) -> None:
        self._now_us = now_us
        self._nodes = {n.name: n for n in plan.nodes if isinstance(n, DestinationNode)}
        self._hashes = DeliveryHashes((plan.name, plan.version, source))
        node = find_source(plan.nodes, source)
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


_End = tuple[str, str]

_ONCE: Final = RetryLimits(1, None)

_BEHIND: Final = "waits for an earlier export of its key, which a step or router could not take"


class Stager(StagedFacts):
    """Gathers what becomes of a task's documents, block by block. Delivery hashes are made here and nowhere else."""

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
        super().__init__(plan, source, root, wave, now_us, epoch, entries)
        self._process = os.getpid()
        targets = {name: target_of(node) for name, node in self._nodes.items()}
        self._target: Callable[[str], str] = lambda name: targets.get(name, name)
        self._called = {n.name: n for n in plan.nodes if isinstance(n, CalledNode)}
        self._final = plan.once or (entries is not None and entries.once)
        """No error is tried again."""
        self._errors = ErrorMessages.of(plan, source, wave, self._outbox)
        self._given: list[Published] | PublishedLines = []
        """Deliveries that the walk has published so far of this document's family."""
        self._unchanged = Unchanged(plan, source)
        self._failed: list[Failed] = []
        """The family's failures that are tried again; they share a due time."""
        self._undecided: list[tuple[Block, list[Undecided | Unread]]] = []
        """By block, in their order."""
        self._unseen = False

    def begin(self, block: Block) -> None:
        """Begin a block: following calls are about its rows, each of them once."""
        self._block = block
        if not self._undecided or self._undecided[-1][1]:
            self._undecided.append((block, []))
        else:
            self._undecided[-1] = (block, [])

    def end(self) -> None:
        """The block is through."""
        end_copy_of(self._process)
        self._gather()
        if self._outbox.size >= limits.PART_BYTES:
            self._flush()

    def decide(self, health: Mapping[str, NodeHealth], feed: Unreader) -> None:
        """All documents are through: whose fault was what went wrong?"""
        for block, waiting in self._undecided:
            self._block = block
            for each in waiting:
                if isinstance(each, Undecided):
                    self._decided(each, health)
                elif self._gives_back(health.get(each.fault.node), each.fault) and self._stays(each):
                    self._unseen = True
                else:
                    _, go = feed.unread(block, each.i, each.fault)
                    if go is not None:
                        self._i, self._given = each.i, []
                        go()
                        self._decided(undecided(each.i, feed.walk, self._given, block), health)
            self._gather()
        self._undecided = []

    def finish(self, nodes: list[NodeReport]) -> Staged:
        """Write what is left; everything staged is fsynced when this returns.

        Args:
            nodes: what is to be told of them.
        """
        end_copy_of(self._process)
        self._flush()
        self._events.close()
        crash.point("transform.staged")
        files = (self._outbox.files, self._documents.files, self._events.files)
        staged = Staged(*files, self._counts, nodes, self._unseen, self._documents.new)
        if (log := self._entries) is not None:
            held = frozenset(log.held)
            staged = staged._replace(blocked=log.blocked, entries=log.read, reached=log.reached, held=held)
        return staged

    def _gather(self) -> None:
        """Convert the records of single documents to Arrow columns."""
        self._outbox.gather(self._block)
        self._documents.gather(self._block)
        self._events.gather()

    def _flush(self) -> None:
        self._outbox.flush()
        self._documents.flush()

    # -- what a walk says of a delivery; see ``walk.Stage`` ------------------------------------------

    def upsert(self, doc: Document, end: _End, branches: str, fields: bytes, before: MissingDelivery | None) -> None:
        origin = self._block.ids[self._i]
        child = doc.id != origin
        if child:
            content = content_of(fields, doc.raw) if doc.only_if_changed else ""
            given = Published(doc.id[len(origin) :], end[1], end[0], content)
            self._given.append(given)
            if content and self._unchanged.has(given):
                self._event(doc, end, branches, Status.INDEXED, "unchanged: it is there as it is", 0)
                return
        published = self._outbox.upsert(self._block, self._i, doc, end, branches, fields, before)
        if not child:
            self._given.append(published)

    def dropped(self, doc: Document, end: _End, branches: str, why: str, attempt: int) -> None:
        self._event(doc, end, branches, Status.DROPPED, why, attempt)

    def again(self, doc: Document, wish: RereadRequest) -> None:
        self._wishes.add(self._block.ids[self._i], wish)

    def mark(self) -> Mark:
        """Begin new files and return what was staged before them."""
        if not isinstance(self._given, PublishedLines):
            self._given = PublishedLines(self._given)
        outbox, events = self._outbox.mark(self._block), self._events.mark()
        wish = self._wishes.of(self._block.ids[self._i])
        return Mark(outbox, events, self._given.mark(), self._counts.copy(), wish)

    def take_back(self, mark: Mark) -> None:
        """Remove what came since."""
        assert isinstance(self._given, PublishedLines)
        self._given.cut(mark.given)
        self._outbox.take_back(mark.outbox)
        self._events.take_back(mark.events)
        self._counts.update(mark.counts)
        self._wishes.put_back(self._block.ids[self._i], mark.wish)

    # -- what becomes of a document and its family -----------------------------------------------------

    def walked(self, i: int, walk: Trail, go: Callable[[], None], *, retry: bool) -> None:
        """Let the walk go, and stage what it says of row ``i`` and its family."""
        self._i = i
        self._given = []
        self._unchanged.begin(self._block, i)
        go()
        given = self._given
        if self._entries is not None and (walk.met or walk.failures):
            self._entries.hold(self._block, i, ended=not walk.met)
        if walk.met:
            found = Undecided(i, walk.met, walk.failures, walk.reached, walk.kept, given, retry)
            self._undecided[-1][1].append(found)
        elif self._block.first_seen and self._block.ids[i] not in self._wishes:
            if self._entries is None:
                self._documents.add_new(i, encode_published(given))
        else:
            self._family(i, walk, given, retry)
        self._outbox.end_family(self._block)

    def will_wait(self, i: int) -> bool:
        """Does row ``i`` wait for an earlier export of its key, as far as is known by now?"""
        return self._entries is not None and self._entries.waits(self._block, i)

    def waits(self, i: int) -> bool:
        """If row ``i`` waits for an earlier export of its key, remember it and say so of its deliveries."""
        if not self.will_wait(i):
            return False
        if self._block.known(i) is None:
            self._i = i
            for end in self._ends:
                operation: Operation = "delete" if self._block.deletes(i) else "upsert"
                self._event(self._relative(""), end, "", Status.ERROR, _BEHIND, 0, self._now_us, operation)
            owed = [MissingDelivery(*end, 0) for end in self._ends]
            self._remember(i, given="", due=self._now_us, failures=[FailedMember("", self._source, "", "", owed)])
        return True

    def unread(self, i: int, fault: NodeError) -> None:
        """Row ``i`` could not be read."""
        self._undecided[-1][1].append(Unread(i, fault))

    def gone(self, i: int) -> None:
        """It was deleted from its source: a delete of each member wherever it was given."""
        block, known = self._block, self._block.known(i)
        if known is None or block.key_hashes:
            self._deleted_export(i)
            if known is not None:
                self._remember(i, given="")
            return
        block.versions[i], block.fingerprints[i] = known.version, ""
        self._supersede(i)
        self._i = i
        for given in decode_published(known.given):
            self._delete(given)
        self._remember(i, "delete", given=known.given)

    def _deleted_export(self, i: int) -> None:
        """Nothing is remembered of what was exported before, so it is deleted wherever it may have come to."""
        self._i = i
        for end in self._ends:
            if isinstance(self._nodes[end[0]], KeyedNode):
                why = "a deletion has no fields, and so no key"
                self._event(self._relative(""), end, "", Status.DROPPED, why, 0, None, "delete")
            else:
                self._delete(Published("", end[1], end[0]))
        self._outbox.end_family(self._block)

    def touched(self, i: int) -> None:
        """Same content: remember its fingerprint if that is new, so that the next scan need not read."""
        known = self._block.known(i)
        assert known is not None
        if known.fingerprint != self._block.fingerprints[i]:
            self._documents.add({**same_again(self._block.ids[i], known), "fingerprint": self._block.fingerprints[i]})

    def _decided(self, found: Undecided, health: Mapping[str, NodeHealth]) -> None:
        """Record outcomes after it is known whether the documents or the nodes are at fault."""
        self._i = found.i
        failures = list(found.failures)
        held: set[str] | None = set()
        known = self._block.known(found.i)
        told = places_of(known.failures) if known is not None and found.retry else set()
        for met in found.met:
            pulse = health.get(met.fault.node)
            if self._gives_back(pulse, met.fault):
                owed = met.owed
                self._hold([(met.doc, o, met) for o in owed if (met.member, o.end) not in told])
            else:
                owed = [self._spent(met, o) for o in met.owed]
                if self._errors is not None:
                    self._errors.add(self._block, found.i, met, owed)
            failures.append(FailedMember(met.member, met.node, met.route, met.branches, owed))
            if not any(o.open for o in owed):
                continue
            if held is not None and pulse is not None and (pulse.gives_back(met.fault) or pulse.holds(met.fault)):
                held.add(met.fault.key)
            else:
                held = None
        if self._entries is not None and self._entries.holds(
            self._block, found.i, failures, found.met, held or (), self._due() or (self._now_us if held else None)
        ):
            self._failed = []
            return
        self._family(found.i, Left(failures, found.reached, found.kept), found.given, found.retry, held or set())

    def _gives_back(self, pulse: NodeHealth | None, fault: NodeError) -> bool:
        """Does it spend none of the attempts?"""
        return pulse is not None and not self._final and pulse.gives_back(fault)

    def _hold(self, owed: list[tuple[Document, MissingDelivery, Met]]) -> None:
        """No attempt is spent; said once of each delivery, so that it is accounted for."""
        for doc, each, met in owed:
            why = with_traceback(f"{met.fault.text} (no attempt is spent)", met.fault.trace)
            self._event(doc, each.end, met.branches, Status.ERROR, why, each.attempt, self._now_us)

    def _spent(self, met: Met, owed: MissingDelivery) -> MissingDelivery:
        """An attempt of this delivery is spent; whether it is tried again."""
        policy, node = self._nodes[owed.destination].policy, self._called.get(met.fault.node)
        if self._entries is not None:
            owed = self._entries.had(self._block, self._i, owed)
        tries = _ONCE if self._final else policy.limits if node is None else node.limits(policy)
        spent = spend(met.fault, owed, tries, self._now_us)
        attempt = spent.owed.attempt
        if spent.status is None:
            self._failed.append(Failed(met.doc, owed.end, met.branches, spent.why, attempt, spent.patient))
        else:
            self._event(met.doc, owed.end, met.branches, spent.status, spent.why, attempt)
        return spent.owed

    def _stays(self, unread: Unread) -> bool:
        """A known document of which the source is away stays as it is: nobody knows whether it has changed. False: it
        is new, and must be remembered."""
        i, block = unread.i, self._block
        known = block.known(i)
        if known is None or known.operation == "delete":
            return False
        forced = block.reasons[i] == Reason.FORCED
        if forced or block.reasons[i] == Reason.RETRY:
            held = encode_held([unread.fault.key])
            if held != known.held:
                self._documents.add({**same_again(block.ids[i], known), "held": held, "forced": forced})
        return True

    def _family(
        self, i: int, walk: WalkOutcome, made: list[Published] | PublishedLines, retry: bool, held: Collection[str] = ()
    ) -> None:
        """The row of ``documents``; deletes of what is not made any more."""
        if not retry:
            self._supersede(i)
        due = self._due() or (self._now_us if held else None)
        for f in self._failed:
            self._event(f.doc, f.end, f.branches, Status.ERROR, f.why, f.attempt, due)
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
        if retry and held and known is not None:
            self._documents.drop_last_if_same(self._block.name(i), known)  # it waits on; nothing is new

    def _due(self) -> int | None:
        """When this family's failures are tried again."""
        return retry_at(self._failed, self._nodes, self._now_us) if self._failed else None

    def _delete(self, given: Published) -> bool:
        """Send a delete, unless the destination keeps what it has; is it settled?"""
        node = self._nodes.get(given.destination)
        if node is None:
            return True  # an older version of the plan had it: it is nobody's now
        doc = self._relative(given.member)
        end = (given.destination, given.route)
        if not node.policy.deletes:
            why = "deleted at the source, but this destination keeps it (deletes=False)"
            self._event(doc, end, "", Status.DROPPED, why, 0, None, "delete")
            return False
        self._outbox.delete(self._block, self._i, doc.id, end)
        return True

    def _supersede(self, i: int) -> None:
        """End deliveries that exist only as a step's error when something newer is committed."""
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


# Final failures of steps, routers and sources as messages for the plan's error queue.
#
# A message is a row of the outbox like any other, in the commit that says of the input that it failed: so there is one
# for each failure, whatever is killed, and an input never has both an output and an error on one path. What a
# destination refuses becomes a message when the wave settles (``settle.refused``).


class ErrorMessages:
    """Messages for the plan's error queue, of one task."""

    def __init__(self, plan: Plan, source: str, wave: int, outbox: OutboxStage, name: str) -> None:
        self._plan = plan
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._source = source
        self._wave = wave
        self._outbox = outbox
        self._name = name

    @classmethod
    def of(cls, plan: Plan, source: str, wave: int, outbox: OutboxStage) -> Self | None:
        """None: the plan has no error queue."""
        node = errors_node(plan.nodes)
        return None if node is None else cls(plan, source, wave, outbox, node.name)

    def add(self, block: Block, i: int, met: Met, owed: Sequence[MissingDelivery]) -> None:
        """A member of the family of row ``i`` failed for good on the way to those deliveries that are not open."""
        ended = [o.destination for o in owed if not o.open]
        if not ended:
            return
        fields = error_fields(
            kind=self._kinds.get(met.node, "step"),
            cause=met.fault.text,
            where=met.node,
            plan=(self._plan.name, self._plan.version),
            destinations=ended,
            messages=[failed_message(met.doc.id, self._source, block.entry_fields(i))],
        )
        doc = Document.of(met.doc.id, {})
        doc.parent_id = met.doc.parent_id
        end = (self._name, error_route(met.node, met.route, self._wave))
        self._outbox.upsert(block, i, doc, end, met.branches, encode_fields(fields), None)


# What a new version leaves of what the old one gave: what stays given, what is to be taken out, what is replaced.


class WalkOutcome(Protocol):
    """Outcome of a walk beside its deliveries, see ``Walk``. ``failures`` are all open failures of the family."""

    @property
    def failures(self) -> list[FailedMember]: ...
    @property
    def reached(self) -> list[FailedMember]: ...
    @property
    def kept(self) -> list[str]: ...


class Reconciliation(NamedTuple):
    """The old version's deliveries by what becomes of them."""

    stays: PublishedLines
    """It stays given, for now."""
    gone: PublishedLines
    """The new version does not make them, nor may it still."""
    replaced: list[tuple[Published, str]]
    """Another way leads, or may still lead, to the same place: no delete, and why."""


def reconcile(
    old: Iterable[Published],
    made: Collection[Published],
    walk: WalkOutcome,
    target: Callable[[str], str],
    *,
    retry: bool,
) -> Reconciliation:
    """Compare what was given with what a walk has made.

    A whole walk speaks of all the family; a retry only of what lies below the failures that it reached, but for members
    that it dropped. Where the walk failed, the old version stays: the new one may still come.

    Args:
        made: what the walk gave.
        target: destination -> the place that it writes to.
    """
    places, kept = {_mark(g.place) for g in made}, set(walk.kept)
    reached, failed = _Below(walk.reached), _Below(walk.failures)
    found = Reconciliation(PublishedLines(), PublishedLines(), [])
    stale = PublishedLines()
    for each in old:
        if (place := _mark(each.place)) in places:
            continue
        spoken_of = not retry or (reached.has(each) and kept.isdisjoint(ancestry(each.member)))
        if spoken_of and not failed.has(each):
            stale.append(each)
        else:
            found.stays.append(each)
            places.add(place)
    targets = {_mark((g.member, target(g.destination))) for g in stale}
    if targets:
        ways = (_mark((g.member, target(g.destination))) for g in itertools.chain(made, found.stays))
        targets.intersection_update([way for way in ways if way in targets])
    for each in stale:
        if _mark((each.member, target(each.destination))) in targets:
            found.replaced.append((each, "replaced: the new version reaches the same destination by another path"))
        elif (heir := failed.heir(each, target)) is not None:
            found.replaced.append((each, "kept: the new version may still reach the same destination by another path"))
            if (place := _mark(heir.place)) not in places:  # if it never comes, deleting is its business
                places.add(place)
                found.stays.append(heir)
        else:
            found.gone.append(each)
    return found


_mark = hash
"""64 bits that stand for a place: of a million members, names would take ten times the memory, and that two of them
have the same is as likely as 1 in 10⁷."""


class _Below:
    """Nodes below failed ones, by the member that failed: a family may be large."""

    def __init__(self, failures: Iterable[FailedMember]) -> None:
        self._owed: dict[str, list[MissingDelivery]] = defaultdict(list)
        for failure in failures:
            self._owed[failure.member] += failure.owed
        self._ends = {member: {o.end for o in owed} for member, owed in self._owed.items()}

    def has(self, given: Published) -> bool:
        """Would one of the failures have given that, had it not failed?"""
        end = (given.destination, given.route)
        return any(end in self._ends.get(member, ()) for member in ancestry(given.member))

    def heir(self, given: Published, target: Callable[[str], str]) -> Published | None:
        """A missing delivery that would overwrite that one."""
        for member in ancestry(given.member):
            for owed in self._owed.get(member, ()):
                if target(owed.destination) == target(given.destination):
                    return Published(given.member, owed.route, owed.destination)
        return None


# Children that need not be sent again: a destination has them as they are, from the version before.

_COMPARED: Final = (Reason.LOOK, Reason.CHANGED)
"""Why a document is processed whose version before counts: its content differs, and nothing but that. Where a step's
error is pending, or an operator has all sent again, all is sent."""


class Unchanged:
    """Knows what the version before gave, of one document after the other.

    What waits in the outbox is not known to be there: ``scan.unconfirmed_of`` has forgotten its content.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        targets = {node.name: target_of(node) for node in plan.nodes if isinstance(node, DestinationNode)}
        ways = [(end.destination, targets[end.destination]) for end in ends(plan.nodes)[source]]
        places = Counter(place for _, place in ways)
        self._shared = frozenset(name for name, place in ways if places[place] > 1)
        """Destinations to whose place several ways lead: what is there may have come by another one."""
        self._block: Block
        self._i = 0
        self._had: frozenset[int] | None = None
        """Hashes of what the version before gave with a content, once that is asked for."""

    def begin(self, block: Block, i: int) -> None:
        """Begin a family: following questions are about this row's."""
        self._block, self._i, self._had = block, i, None

    def has(self, given: Published) -> bool:
        """Was just this given, with this content?"""
        if self._had is None:
            known = self._block.known(self._i)
            compared = known is not None and self._block.reasons[self._i] in _COMPARED
            had = decode_published(known.given) if known is not None and compared else ()
            self._had = frozenset(hash(each) for each in had if each.content)
        return hash(given) in self._had and given.destination not in self._shared


# Failures of which it is not known yet whose they are: the document's own, or those of the step, router or source.
#
# That shows when a task is through; see ``Stager.decide``.


class Undecided(NamedTuple):
    """A family of which a step, a router or the source failed.

    Attributes:
        failures: where it had failed before, and has ended.
        given: what the walk published.
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
    """Outcome of a walk before it is known whose fault its failures are, see ``Walk``."""

    @property
    def met(self) -> list[Met]: ...


class Unreader(Protocol):
    """Goes on with a document that could not be read; see ``DocumentReader``."""

    walk: Walk

    def unread(self, block: Block, i: int, fault: NodeError) -> tuple[Any, Callable[[], None] | None]: ...


class Left(NamedTuple):
    """Outcome of a walk, see ``WalkOutcome``."""

    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]


class Failed(NamedTuple):
    """A delivery that failed and is tried again."""

    doc: Document
    end: tuple[str, str]
    branches: str
    why: str
    attempt: int
    patient: bool
    """Whether attempts are limited by time, not by number."""


class Spent(NamedTuple):
    """A delivery after a failed attempt.

    Attributes:
        status: of its event; None: it is tried again, the event comes with its due time.
    """

    owed: MissingDelivery
    status: Status | None
    why: str
    patient: bool


def spend(fault: NodeError, owed: MissingDelivery, limits: RetryLimits, now_us: int) -> Spent:
    """An attempt of a delivery is spent on a fault of its own; is it tried again?"""
    attempt, transient, since = owed.attempt + 1, owed.transient, owed.since
    if fault.kind is ErrorKind.PERMANENT:
        return Spent(MissingDelivery(*owed.end, attempt, False, since, transient), Status.ERROR_DOC, fault.text, False)
    waited_s = None
    if fault.kind in TRANSIENT:
        since, transient = since or now_us, transient + 1
        waited_s = (now_us - since) / 1e6
    last = limits.is_exhausted(attempt, transient, waited_s)
    why = f"{fault.text} (attempt {attempt}, the last)" if last else fault.text
    return Spent(
        MissingDelivery(*owed.end, attempt, not last, since, transient),
        Status.DEAD if last else None,
        with_traceback(why, fault.trace),
        waited_s is not None and limits.patience_s is not None,
    )


def undecided(i: int, walk: Trail, given: list[Published] | PublishedLines, block: Block) -> Undecided:
    """Return the undecided outcome of a document that could not be read, once that is known to be its own fault."""
    return Undecided(i, walk.met, walk.failures, walk.reached, walk.kept, given, block.to_retry(i) is not None)


def places_of(failures: list[FailedMember]) -> set[tuple[str, tuple[str, str]]]:
    """(member, end) of deliveries of which the ledger has events."""
    return {(f.member, o.end) for f in failures for o in f.owed}


def retry_at(failed: Sequence[Failed], nodes: Mapping[str, DestinationNode], now_us: int) -> int:
    """When a family's failures are tried again, µs since 1970: together, so that the origin is read once."""
    longest = max(nodes[f.end[0]].policy.longest_wait_s(f.attempt, patient=f.patient) for f in failed)
    return now_us + int(random.uniform(0, longest) * 1e6)


# Documents that a step wants to be read again later.


class Wishes:
    """Requests to read a document again, of one task, by origin."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._of: dict[str, RereadRequest] = {}

    def __contains__(self, origin: object) -> bool:
        return origin in self._of

    def add(self, origin: str, wish: RereadRequest) -> None:
        """Keep a request to read again; of several times the earliest counts."""
        if (before := self._of.get(origin)) is None or wish.after_s < before.after_s:
            self._of[origin] = wish

    def of(self, origin: str) -> RereadRequest | None:
        return self._of.get(origin)

    def put_back(self, origin: str, wish: RereadRequest | None) -> None:
        """Restore an earlier request."""
        self._of.pop(origin, None)
        if wish is not None:
            self._of[origin] = wish

    def fulfil(self, origin: str, before: int | None) -> tuple[int | None, str]:
        """When it is read again, µs since 1970, and what the ledger says of that; "": nothing new.

        Args:
            before: the time of before, where it still counts.
        """
        wish = self._of.pop(origin, None)
        if wish is None:
            return before, ""
        at = self._now_us + int(wish.after_s * 1e6)
        if before is not None and before <= at:
            return before, ""
        when = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        return at, f"partial: it is read again after {when} UTC" + (f" ({wish.why})" if wish.why else "")
