"""The way of a document onwards from a node: steps are called, routers choose, and what comes of it is said."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from ferryman import limits
from ferryman.document import Document
from ferryman.engine.transform.calling import Calling
from ferryman.engine.transform.compiled import CompiledNode, stations
from ferryman.engine.transform.ends import Ends, Stage, Way, held
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.node_errors import AWAY, NodeError
from ferryman.engine.transform.returned import Many, Returned
from ferryman.errors import Dropped, PermanentError, Unsupported, shown, unless_interrupt
from ferryman.plan import Plan, StepNode, source_named
from ferryman.plan.keyed import counted_once
from ferryman.records.family import FailedMember, Owed


class Members(Protocol):
    """What a step has made of one document goes on from here."""

    def add(self, go: Callable[[Any], None]) -> None:
        """One of them goes on, now or as soon as it can."""

    def wait(self) -> None:
        """Until all that were added are through, and what was said of them stands in their order."""


class OneByOne:
    """Each member goes to its end before the next one begins."""

    def __init__(self, walk: Onwards) -> None:
        self._walk = walk

    def add(self, go: Callable[[Any], None]) -> None:
        """See ``Members.add``."""
        go(self._walk)

    def wait(self) -> None:
        """Nothing to wait for."""


class Onwards(Ends):
    """Takes documents of one source on through the plan.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        guarded: a step's function as it is to be called.
        health: node -> how it is doing in this task.

    Attributes:
        source: where documents begin.
        members_of: how what a step has made goes on: one by one, or side by side.
        failures: where the last document's family had failed before a retry, and has ended.
        reached: failures that the last ``again`` came to and went on from.
        kept: members that were dropped as soon as they were made, for nothing of them is pending.
    """

    members_of: Callable[[Onwards], Members] = OneByOne

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
        self.source = self._stations[source_named(plan.nodes, source).entry]
        self._counted_once = source in counted_once(plan.nodes)
        self.calling = Calling(plan, source)
        self.take_over(health)
        self._returned = Returned(self._note_wish)
        self.failures: list[FailedMember] = []
        self.reached: list[FailedMember] = []
        self.kept: list[str] = []

    def take_over(self, health: Mapping[str, NodeHealth]) -> None:
        """Go on with what is known of the nodes."""
        for station in self._stations.values():
            station.pulse = health.get(station.name)

    def below_source(self) -> Iterator[CompiledNode]:
        """Every node that a document may come to, each once."""
        ahead, seen = [self.source], {id(self.source)}
        while ahead:
            station = ahead.pop()
            for each in (station.next, *station.branches.values()):
                if each is not None and id(each) not in seen:
                    seen.add(id(each))
                    ahead.append(each)
                    yield each

    def comes_to(self, names: Collection[str]) -> bool:
        """May a document come to one of these nodes?"""
        return any(station.name in names for station in self.below_source())

    def beside(self, stage: Stage) -> Self:
        """A walk of its own at the same nodes, which tells another stage: of another document, or of a member of this
        one's family."""
        walk = copy.copy(self)
        walk._stage = stage
        walk.calling = copy.copy(self.calling)
        walk._returned = self._returned.beside(walk._note_wish)
        walk.met, walk.failures, walk.reached, walk.kept = [], [], [], []
        return walk

    def join(self, member: Self) -> None:
        """What the walk of a member has met."""
        self.met += member.met
        self.reached += member.reached
        self.kept += member.kept
        self._returned.join(member._returned)

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
                    self._meet(doc, station, way, held(station))
                    return
                try:
                    out = self._called(station, doc, way.route)
                except Dropped as e:
                    self._drop_by(e, doc, station, way)
                    return
                except BaseException as e:
                    self._fail(doc, station, way, unless_interrupt(e))
                    return
                if (itself := itself_of(out, doc)) is None:
                    self._go_several(doc, out, station, way)
                    return
                doc = itself
            elif station.delivers:
                self._deliver(doc, station, way)
            elif station.router is not None:
                if self._is_closed(station):
                    self._meet(doc, station, way, held(station))
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
        members = self.members_of(self)
        for each in out:
            members.add(_going_on(doc, each, station, way))
        members.wait()

    def _go_many(self, doc: Document, many: Many, station: CompiledNode, way: Way) -> None:
        """The same, of more documents than are held at once: each goes on while the step makes others. If the step
        fails after all, what has been said of them is taken back: nothing of the call counts, however far it came."""
        mark, met = self._stage.mark(), len(self.met)
        self._returned.begin(many)
        itself: list[Document] = []
        members = self.members_of(self)
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
            members.add(_going_on(doc, each, station, way))
            fault = self._too_many_wait(met)
        members.wait()
        fault = fault or self._too_many_wait(met)
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

    def _too_many_wait(self, met: int) -> NodeError | None:
        """If more members wait for a node than can be remembered one by one: why they do.

        Args:
            met: of what has been met, that which is not theirs.
        """
        if len(self.met) - met < limits.WAITING_MEMBERS or self.met[-1].fault.kind not in AWAY:
            return None
        return self.met[-1].fault

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
        if (wish := doc.asked_again) is None:
            return
        if self._counted_once:
            raise PermanentError("again(): entries of a log are not read again where a keyed node counts them.")
        self._stage.again(doc, wish)

    def _choose(self, doc: Document, station: CompiledNode) -> list[str]:
        """The branches that the router takes."""
        assert station.router is not None
        id = doc.id
        try:
            answer = station.router.choose(doc)
        finally:
            doc.id = id
        chosen = self.branches_of(station, answer)
        if station.pulse is not None and not station.pulse.steady:
            station.pulse.succeeded()
        return chosen

    def branches_of(self, station: CompiledNode, answer: Any) -> list[str]:
        """Branches that a router's answer names: at least one.

        Raises:
            PermanentError: it is wrong.
        """
        assert station.router is not None
        several = station.router.copies and not isinstance(answer, str)
        chosen: list[Any] = list(answer) if several else [answer]
        for name in chosen:
            if name not in station.branches:
                raise PermanentError(
                    f"chose {shown(name)}, which is not one of its branches {', '.join(station.branches)}"
                )
        if len(set(chosen)) < len(chosen):
            raise PermanentError(f"chose a branch twice: {', '.join(chosen)}")
        if not chosen:
            raise PermanentError("chose no branch: to drop a document, return None in a step")
        return chosen


def itself_of(out: Sequence[Document] | Many, doc: Document) -> Document | None:
    """The document that a step was called for, if it has returned that and nothing else."""
    return out[0] if not isinstance(out, Many) and len(out) == 1 and out[0].id == doc.id else None


def _going_on(doc: Document, each: Document, station: CompiledNode, way: Way) -> Callable[[Onwards], None]:
    """The way of what a step has made of this document: itself, or a child, whose deliveries have had no attempt."""
    own = each.id == doc.id or way.wanted is None
    fresh = way if own else way._replace(wanted={end: Owed(*end, 0) for end in way.wanted or ()})
    return lambda walk: walk._go(each, station.next, fresh)
