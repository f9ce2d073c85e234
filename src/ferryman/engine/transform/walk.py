"""The way of a document through the plan, in a worker's hands: steps, routers, tees; and the way back to what failed.

What an error at a node means is not decided here but when the task is through (``staging``): whether it is the
document's own, or the node's, shows only then. The walk keeps what it met.

``first`` takes a document down every way it goes, from its source on. ``again`` is a retry: it replays the way of the
family's members to the nodes at which they failed, and from there on goes only towards the deliveries that are still
pending. On the replayed part nothing is delivered or dropped a second time: a member not on the way to a failure
is dropped as soon as it is made, and a router takes the branch it took before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ferryman.document import Document
from ferryman.engine.transform.compiled import CompiledNode
from ferryman.engine.transform.ends import Met, Way, held
from ferryman.engine.transform.node_errors import NodeError
from ferryman.engine.transform.onwards import Onwards, itself_of
from ferryman.engine.transform.returned import Many
from ferryman.errors import Dropped, unless_interrupt
from ferryman.records.family import FailedMember, ancestry


class Walk(Onwards):
    """Walks documents of one source, one after the other."""

    def first(self, doc: Document) -> None:
        """The whole way."""
        self._begin(doc.id, retrying=False)
        self._go(doc, self.source.next, Way())

    def first_from(self, id: str, turns: Iterable[tuple[Document, CompiledNode, Way]]) -> None:
        """The rest of the whole way, which has been walked to these nodes."""
        self._begin(id, retrying=False)
        for doc, station, way in turns:
            self._go(doc, station, way)

    def passed_over(self, doc: Document, why: str) -> None:
        """Its source lets it go."""
        self._begin(doc.id, retrying=False)
        self._drop(doc, self.source.ends_by(""), Way(), why)

    def again(self, doc: Document, failures: Sequence[FailedMember]) -> None:
        """Only the ways to what is pending."""
        owed = self._begin_again(doc.id, failures)
        self._replay(doc, self.source, Way(), owed)
        self._supersede(owed)

    def unread(self, doc: Document, fault: NodeError, failures: Sequence[FailedMember] | None) -> None:
        """It could not be read; ``failures``: those of the same version, if this is a retry."""
        if failures is None:
            self._begin(doc.id, retrying=False)
            self._meet(doc, self.source, Way(), fault)
        else:
            self._meet_again(self._begin_again(doc.id, failures), fault)

    def _begin(self, id: str, *, retrying: bool) -> None:
        self._origin = id
        self._retrying = retrying
        if self.met or self.failures or self.reached or self.kept:
            self.met, self.failures, self.reached, self.kept = [], [], [], []
        self._returned.clear()

    def _begin_again(self, id: str, failures: Sequence[FailedMember]) -> list[FailedMember]:
        """Those that are open; what of them has ended is kept."""
        self._begin(id, retrying=True)
        self.failures += [_closed(f) for f in failures if not all(o.open for o in f.owed)]
        self._silent = {(id + f.member, o.end) for f in failures for o in f.owed if o.open}
        return [f for f in failures if f.open]

    # -- back to what failed -----------------------------------------------------------------------

    def _replay(self, doc: Document, station: CompiledNode | None, way: Way, owed: list[FailedMember]) -> None:
        """Down to the nodes at which this member or what is made from it failed."""
        member = self._member(doc.id)
        while station is not None and owed:
            here = [f for f in owed if (f.member, f.node, f.route) == (member, station.name, way.route)]
            if here:
                owed = [f for f in owed if f not in here]
                try:
                    apart = doc.copy() if owed else doc
                except BaseException as e:
                    self._meet_again([*here, *owed], self._fault(station, unless_interrupt(e)))
                    return
                self.reached += here
                wanted = {o.end: o for f in here for o in f.owed if o.open}
                onwards = Way(way.route, here[0].branches, wanted)
                self._go(apart, station.next if station is self.source else station, onwards)
                if not owed:
                    return
            if station.step is not None:
                if self._is_closed(station):
                    self._meet_again(owed, held(station))
                    return
                try:
                    out = self._called(station, doc, way.route)
                    itself = itself_of(out, doc)
                    members = self._on_the_way(out, station, owed) if itself is None else {}
                except Dropped:
                    return
                except BaseException as e:
                    self._meet_again(owed, self._fault(station, unless_interrupt(e)))
                    return
                if itself is None:
                    self._replay_each(members, station, way, owed)
                    return
                doc = itself
            elif station.router is not None:
                if station.router.copies:
                    self._replay_copies(doc, station, way, owed)
                    return
                taken = _branch_taken(owed[0].branches, station)
                way = way.chosen(station.name, taken.name)
                station = taken
                continue
            station = station.next

    def _replay_copies(self, doc: Document, station: CompiledNode, way: Way, owed: list[FailedMember]) -> None:
        """Down each branch of a copying router below which this member failed."""
        for name, branch in station.branches.items():
            by = way.copied(name)
            if below := [f for f in owed if f.route == by.route or f.route.startswith(f"{by.route}/")]:
                try:
                    copy = doc.copy()
                except BaseException as e:
                    self._meet_again(below, self._fault(station, unless_interrupt(e)))
                else:
                    self._replay(copy, branch, by, below)

    def _on_the_way(
        self, out: Sequence[Document] | Many, station: CompiledNode, owed: list[FailedMember]
    ) -> dict[str, Document]:
        """Of what a step has made, the members that failures descend from; the others are dropped as they come."""
        wanted = {member for failure in owed for member in ancestry(failure.member)}
        found, kept = {}, []
        for each in iter(partial(self._next, out, station), None) if isinstance(out, Many) else out:
            member = self._member(each.id)
            if member in wanted:
                found[member] = each
            else:
                kept.append(member)
        self.kept += kept
        return found

    def _replay_each(
        self,
        members: Mapping[str, Document],
        station: CompiledNode,
        way: Way,
        owed: list[FailedMember],
    ) -> None:
        """Each member that a failure descends from goes on; of two, the younger."""
        ways: dict[str, list[FailedMember]] = {}
        for failure in owed:
            nearest = next((m for m in ancestry(failure.member) if m in members), None)
            if nearest is not None:
                ways.setdefault(nearest, []).append(failure)
        together = self.members_of(self)
        for member, each in members.items():
            if member in ways:
                together.add(_going_back(each, station, way, ways[member]))
            else:
                self.kept.append(member)
        together.wait()

    def _meet_again(self, owed: list[FailedMember], fault: NodeError) -> None:
        """The way back failed: the next retry goes to the same places."""
        for failure in owed:
            member = self._relative(failure.member)
            still = [o for o in failure.owed if o.open]
            self._silent.difference_update((member.id, o.end) for o in still)
            self.met.append(Met(failure.member, member, failure.node, failure.route, failure.branches, still, fault))

    def _supersede(self, owed: list[FailedMember]) -> None:
        """What was pending and is not made any more."""
        for failure in owed:
            member = self._relative(failure.member)
            missing = [o for o in failure.owed if o.open and (member.id, o.end) in self._silent]
            for o in missing:
                why = "superseded: the retry did not produce it again"
                self._stage.dropped(member, o.end, failure.branches, why, o.attempt)


def _going_back(each: Document, station: CompiledNode, way: Way, owed: list[FailedMember]) -> Callable[[Walk], None]:
    """The way of a member to the nodes below this one at which it failed."""
    return lambda walk: walk._replay(each, station.next, way, owed)


def _closed(failure: FailedMember) -> FailedMember:
    """What of it has ended: kept, so that an operator may open it again."""
    ended = [o for o in failure.owed if not o.open]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, ended)


def _branch_taken(branches: str, station: CompiledNode) -> CompiledNode:
    """The branch that was taken at a router before."""
    assert station.router is not None
    taken = dict(choice.partition("=")[::2] for choice in branches.split("/"))
    return station.branches[taken[station.name]]
