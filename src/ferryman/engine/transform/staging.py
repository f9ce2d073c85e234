"""What a transform task stages: outbox rows, documents rows, ledger events; columns gathered, files written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Final

from ferryman import crash, limits
from ferryman.document import Again, Document, Operation
from ferryman.engine.runner.child import end_copy_of
from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.document_stage import same_again
from ferryman.engine.transform.ends import Met
from ferryman.engine.transform.error_messages import ErrorMessages
from ferryman.engine.transform.facts import StagedFacts
from ferryman.engine.transform.health import NodeHealth, NodeReport
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.node_errors import NodeError
from ferryman.engine.transform.reconcile import WalkOutcome, reconcile
from ferryman.engine.transform.staged import Mark, Staged
from ferryman.engine.transform.unchanged import Unchanged
from ferryman.engine.transform.undecided import (
    Failed,
    Left,
    Trail,
    Undecided,
    Unread,
    Unreader,
    places_of,
    retry_at,
    spend,
    undecided,
)
from ferryman.plan import CalledNode, KeyedNode, Limits, Plan, target_of
from ferryman.records.family import (
    FailedMember,
    Owed,
    Published,
    PublishedLines,
    content_of,
    decode_published,
    encode_held,
    encode_published,
)
from ferryman.records.reasons import with_traceback
from ferryman.records.statuses import Status
from ferryman.storage.files import StatePath

_End = tuple[str, str]

_ONCE: Final = Limits(1, None)

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
        """What the walk has published so far of this document's family."""
        self._unchanged = Unchanged(plan, source)
        self._failed: list[Failed] = []
        """The family's failures that are tried again; they share a due time."""
        self._undecided: list[tuple[Block, list[Undecided | Unread]]] = []
        """By block, in their order."""
        self._unseen = False

    def begin(self, block: Block) -> None:
        """What is said from now on is about rows of this block, each of them once."""
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
        """What was said of single documents, as Arrow columns."""
        self._outbox.gather(self._block)
        self._documents.gather(self._block)
        self._events.gather()

    def _flush(self) -> None:
        self._outbox.flush()
        self._documents.flush()

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
        published = self._outbox.upsert(self._block, self._i, doc, end, branches, fields, before)
        if not child:
            self._given.append(published)

    def dropped(self, doc: Document, end: _End, branches: str, why: str, attempt: int) -> None:
        self._event(doc, end, branches, Status.DROPPED, why, attempt)

    def again(self, doc: Document, wish: Again) -> None:
        self._wishes.add(self._block.ids[self._i], wish)

    def mark(self) -> Mark:
        """What comes now goes into files of its own."""
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
            owed = [Owed(*end, 0) for end in self._ends]
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
        """What went wrong is known to be the documents' or the nodes'."""
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

    def _hold(self, owed: list[tuple[Document, Owed, Met]]) -> None:
        """No attempt is spent; said once of each delivery, so that it is accounted for."""
        for doc, each, met in owed:
            why = with_traceback(f"{met.fault.text} (no attempt is spent)", met.fault.trace)
            self._event(doc, each.end, met.branches, Status.ERROR, why, each.attempt, self._now_us)

    def _spent(self, met: Met, owed: Owed) -> Owed:
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
