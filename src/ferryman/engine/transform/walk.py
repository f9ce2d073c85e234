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
from typing import Any, Final

from ferryman import limits
from ferryman.document import Document
from ferryman.engine.transform.calling import Calling
from ferryman.engine.transform.compiled import CompiledNode, stations
from ferryman.engine.transform.ends import Ends, Met, Stage, Way
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.node_errors import OF_NODE, ErrorKind, NodeError
from ferryman.engine.transform.returned import Many, Returned
from ferryman.errors import Dropped, PermanentError, Unsupported, unless_interrupt
from ferryman.plan import Plan, StepNode, source_named
from ferryman.records.family import FailedMember, Owed, ancestry


class Walk(Ends):
    """Walks documents of one source, one after the other.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        guarded: a step's function as it is to be called.
        health: node -> how it is doing in this task.

    Attributes:
        failures: where the last document's family had failed before a retry, and has ended.
        reached: failures that the last ``again`` came to and went on from.
        kept: members that were dropped as soon as they were made, for nothing of them is pending.
    """

    def __init__(
        self,
        plan: Plan,
        source: str,
        stage: Stage,
        *,
        task: int,
        guarded: Callable[[StepNode], Callable[..., Any]],
        health: Mapping[str, NodeHealth],
    ) -> None:
        super().__init__(plan, source, stage)
        self._stations = stations(plan.nodes, task, guarded)
        self._source = self._stations[source_named(plan.nodes, source).entry]
        self.calling = Calling(plan, source)
        self.take_over(health)
        self._returned = Returned(self._note_wish)
        self.failures: list[FailedMember] = []
        self.reached: list[FailedMember] = []
        self.kept: list[str] = []

    # -- what a worker asks for --------------------------------------------------------------------

    def take_over(self, health: Mapping[str, NodeHealth]) -> None:
        """Go on with what is known of the nodes."""
        for station in self._stations.values():
            station.pulse = health.get(station.name)

    def first(self, doc: Document) -> None:
        """The whole way."""
        self._begin(doc.id, retrying=False)
        self._go(doc, self._source.next, Way())

    def passed_over(self, doc: Document, why: str) -> None:
        """Its source lets it go."""
        self._begin(doc.id, retrying=False)
        self._drop(doc, self._source.ends_by(""), Way(), why)

    def again(self, doc: Document, failures: Sequence[FailedMember]) -> None:
        """Only the ways to what is pending."""
        owed = self._begin_again(doc.id, failures)
        self._replay(doc, self._source, Way(), owed)
        self._supersede(doc, owed)

    def unread(self, doc: Document, fault: NodeError, failures: Sequence[FailedMember] | None) -> None:
        """It could not be read; ``failures``: those of the same version, if this is a retry."""
        if failures is None:
            self._begin(doc.id, retrying=False)
            self._meet(doc, self._source, Way(), fault)
        else:
            self._meet_again(self._begin_again(doc.id, failures), doc, fault)

    # -- onwards -----------------------------------------------------------------------------------

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

    def _go(self, doc: Document, station: CompiledNode | None, way: Way) -> None:
        """From this node on, as for the first time."""
        while station is not None:
            if way.wanted is not None and way.wanted.keys().isdisjoint(station.ends_by(way.route)):
                return
            if doc.refused is not None:
                self._refuse(doc, station, way)
                return
            if station.step is not None:
                if self._is_closed(station):
                    self._meet(doc, station, way, _held(station))
                    return
                try:
                    out = self._called(station, doc, way.route)
                except Dropped as e:
                    self._drop_by(e, doc, station, way)
                    return
                except BaseException as e:
                    self._fail(doc, station, way, unless_interrupt(e))
                    return
                if (itself := _itself(out, doc)) is None:
                    self._go_several(doc, out, station, way)
                    return
                doc = itself
            elif station.delivers:
                self._deliver(doc, station, way)
            elif station.router is not None:
                if self._is_closed(station):
                    self._meet(doc, station, way, _held(station))
                    return
                try:
                    chosen = self._choose(doc, station)
                    copies = [doc.copy() for _ in chosen[1:]] if station.router.copies else []
                except BaseException as e:
                    self._fail(doc, station, way, unless_interrupt(e))
                    return
                self._drop_untaken(doc, station, chosen, way)
                if station.router.copies:
                    for name, each in zip(chosen, [*copies, doc], strict=True):
                        self._go(each, station.branches[name], way.copied(name))
                    return
                way = way.chosen(station.name, chosen[0])
                station = station.branches[chosen[0]]
                continue
            station = station.next

    def _go_several(
        self,
        doc: Document,
        out: Sequence[Document] | Many,
        station: CompiledNode,
        way: Way,
    ) -> None:
        """What a step has made of a document goes on."""
        if isinstance(out, Many):
            self._go_many(doc, out, station, way)
        else:
            self._go_each(doc, out, station, way)

    def _go_each(self, doc: Document, out: Iterable[Document], station: CompiledNode, way: Way) -> None:
        """The document and children of it; a child's deliveries have had no attempt yet."""
        for each in out:
            own = each.id == doc.id or way.wanted is None
            fresh = way if own else way._replace(wanted={end: Owed(*end, 0) for end in way.wanted or ()})
            self._go(each, station.next, fresh)

    def _go_many(self, doc: Document, many: Many, station: CompiledNode, way: Way) -> None:
        """The same, of more documents than are held at once: each goes on while the step makes others. If the step
        fails after all, what has been said of them is taken back: nothing of the call counts, however far it came."""
        mark, met = self._stage.mark(), len(self.met)
        self._returned.begin(many)
        itself: list[Document] = []
        fault: NodeError | None = None
        error: BaseException | None = None
        while fault is None:
            try:
                each = self._next(many, station)
            except BaseException as e:
                error = unless_interrupt(e)
                break
            if each is None:
                break
            if each is doc:
                itself.append(each)  # it goes last: the step may still need it as it is
                continue
            self._go_each(doc, [each], station, way)
            if len(self.met) - met >= limits.WAITING_MEMBERS and self.met[-1].fault.kind in _AWAY:
                fault = self.met[-1].fault
        if error is None and fault is None:
            self._returned.end(failed=False)
            self._go_each(doc, itself, station, way)
            return
        self._returned.end(failed=True)
        self._stage.take_back(mark)
        del self.met[met:]
        if fault is not None:
            self._meet(doc, station, way, fault)
        elif isinstance(error, Dropped):
            self._drop_by(error, doc, station, way)
        else:
            assert error is not None
            self._fail(doc, station, way, error)

    def _called(self, station: CompiledNode, doc: Document, route: str) -> Sequence[Document] | Many:
        """What the step makes of it: documents of this family, at least one."""
        assert station.step is not None
        assert station.pulse is not None
        id, calling = doc.id, self.calling
        calling.step, calling.route = station.name, route
        try:
            try:
                out = station.step(doc)
            finally:
                doc.id = id  # its id is the source's, whatever a step does to the object
                self._note_wish(doc)
            if out is doc:
                found: Sequence[Document] | Many | None = (doc,)
            else:
                found = None if out is None else self._returned.take(doc, station.where, route, out)
        except (Dropped, Unsupported) as e:
            raise self._meant(e, station.pulse) from None
        finally:
            calling.step = ""
        if found is None:
            station.pulse.dropped(silently=True)
            raise Dropped
        if not station.pulse.steady and not isinstance(found, Many):
            station.pulse.returned()
        return found

    def _next(self, many: Many, station: CompiledNode) -> Document | None:
        """The next document that the step makes; None: it has made all."""
        assert station.pulse is not None
        self.calling.step, self.calling.route = station.name, many.route
        try:
            each = many.next()
        except (Dropped, Unsupported) as e:
            raise self._meant(e, station.pulse) from None
        finally:
            self.calling.step = ""
        if each is None and not station.pulse.steady:
            station.pulse.returned()
        return each

    def _note_wish(self, doc: Document) -> None:
        if (wish := doc.asked_again) is not None:
            self._stage.again(doc, wish)

    def _choose(self, doc: Document, station: CompiledNode) -> list[str]:
        """The branches that the router takes."""
        assert station.router is not None
        answer = station.router.choose(doc)
        several = station.router.copies and not isinstance(answer, str)
        chosen: list[Any] = list(answer) if several else [answer]
        for name in chosen:
            if name not in station.branches:
                raise PermanentError(f"chose {name!r}, which is not one of its branches {', '.join(station.branches)}")
        if len(set(chosen)) < len(chosen):
            raise PermanentError(f"chose a branch twice: {', '.join(chosen)}")
        if not chosen:
            raise PermanentError("chose no branch: to drop a document, return None in a step")
        if station.pulse is not None and not station.pulse.steady:
            station.pulse.succeeded()
        return chosen

    # -- back to what failed -----------------------------------------------------------------------

    def _replay(self, doc: Document, station: CompiledNode | None, way: Way, owed: list[FailedMember]) -> None:
        """Down to the nodes at which this member or what is made from it failed."""
        member = self._member(doc.id)
        while station is not None and owed:
            here = [f for f in owed if (f.member, f.node, f.route) == (member, station.name, way.route)]
            if here:
                owed = [f for f in owed if f not in here]
                self.reached += here
                wanted = {o.end: o for f in here for o in f.owed if o.open}
                apart = doc.copy() if owed else doc
                onwards = Way(way.route, here[0].branches, wanted)
                self._go(apart, station.next if station is self._source else station, onwards)
                if not owed:
                    return
            if station.step is not None:
                if self._is_closed(station):
                    self._meet_again(owed, doc, _held(station))
                    return
                try:
                    out = self._called(station, doc, way.route)
                    itself = _itself(out, doc)
                    members = self._on_the_way(out, station, owed) if itself is None else {}
                except Dropped:
                    return
                except BaseException as e:
                    self._meet_again(owed, doc, self._fault(station, unless_interrupt(e)))
                    return
                if itself is None:
                    self._replay_each(members, station, way, owed)
                    return
                doc = itself
            elif station.router is not None:
                if station.router.copies:
                    for name, branch in station.branches.items():
                        by = way.copied(name)
                        if below := [f for f in owed if f.route == by.route or f.route.startswith(f"{by.route}/")]:
                            self._replay(doc.copy(), branch, by, below)
                    return
                taken = _branch_taken(owed[0].branches, station)
                way = way.chosen(station.name, taken.name)
                station = taken
                continue
            station = station.next

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
        for member, each in members.items():
            if member in ways:
                self._replay(each, station.next, way, ways[member])
            else:
                self.kept.append(member)

    def _meet_again(self, owed: list[FailedMember], doc: Document, fault: NodeError) -> None:
        """The way back failed: the next retry goes to the same places."""
        for failure in owed:
            member = self._relative(doc, failure.member)
            still = [o for o in failure.owed if o.open]
            self._silent.difference_update((member.id, o.end) for o in still)
            self.met.append(Met(failure.member, member, failure.node, failure.route, failure.branches, still, fault))

    def _supersede(self, doc: Document, owed: list[FailedMember]) -> None:
        """What was pending and is not made any more."""
        for failure in owed:
            member = self._relative(doc, failure.member)
            missing = [o for o in failure.owed if o.open and (member.id, o.end) in self._silent]
            for o in missing:
                why = "superseded: the retry did not produce it again"
                self._stage.dropped(member, o.end, failure.branches, why, o.attempt)


def _closed(failure: FailedMember) -> FailedMember:
    """What of it has ended: kept, so that an operator may open it again."""
    ended = [o for o in failure.owed if not o.open]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, ended)


def _branch_taken(branches: str, station: CompiledNode) -> CompiledNode:
    """The branch that was taken at a router before."""
    assert station.router is not None
    taken = dict(choice.partition("=")[::2] for choice in branches.split("/"))
    return station.branches[taken[station.name]]


_AWAY: Final = (*OF_NODE, ErrorKind.CONNECTION)
"""Of such faults those of one family's members are alike."""


def _itself(out: Sequence[Document] | Many, doc: Document) -> Document | None:
    """The document that a step was called for, if it has returned that and nothing else."""
    return out[0] if not isinstance(out, Many) and len(out) == 1 and out[0].id == doc.id else None


def _held(station: CompiledNode) -> NodeError:
    assert station.pulse is not None
    return NodeError(ErrorKind.HELD, station.name, f"waits for {station.where}, which {station.pulse.why}")
