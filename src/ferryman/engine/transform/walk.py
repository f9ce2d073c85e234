"""The way of a document through the plan, in a worker's hands: steps, routers, tees; and the way back to what failed.

What an error at a node means is not decided here but when the task is through (``staging``): whether it is the
document's own, or the node's, shows only then. The walk keeps what it met.

``first`` takes a document down every way it goes, from its source on. ``again`` is a retry: it replays the way of the
family's members to the nodes at which they failed, and from there on goes only towards the deliveries that are still
pending. On the replayed part nothing is delivered or dropped a second time: a member not on the way to a failure
is dropped as soon as it is made, and a router takes the branch it took before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol, Self

from ferryman import limits
from ferryman.document import Document, RereadRequest, check_size, decode_fields, encode_fields
from ferryman.engine.results import AWAY, ErrorKind, NodeAway, NodeError, Traces, classify_error
from ferryman.engine.transform.calls import Calling, Many, Returned
from ferryman.engine.transform.health import NodeHealth
from ferryman.errors import BadDocument, Dropped, PermanentError, Unsupported, plain_text, safe_repr, unless_interrupt
from ferryman.plan import (
    DestinationNode,
    JoinNode,
    KeyedNode,
    Node,
    Plan,
    RouterNode,
    SourceNode,
    StepNode,
    ends,
    find_source,
    successors,
)
from ferryman.plan.keyed import read_once_sources
from ferryman.records.families import FailedMember, MissingDelivery, ancestry, parent_of
from ferryman.routers import Router
from ferryman.sources.log import split_joined

# What becomes of the members of a family on their way: deliveries, drops and failures.


class Way(NamedTuple):
    """How a member comes to a node, and what for.

    Attributes:
        route: branches of the copying routers so far.
        branches: choices of the other routers so far.
        wanted: deliveries to make -> what they have had; None: all, for the first time.
    """

    route: str = ""
    branches: str = ""
    wanted: dict[End, MissingDelivery] | None = None

    def copied(self, branch: str) -> Way:
        """Into a branch of a copying router."""
        return self._replace(route=joined(self.route, branch))

    def chosen(self, router: str, branch: str) -> Way:
        """Into the branch that a router has chosen."""
        return self._replace(branches=joined(self.branches, f"{router}={branch}"))

    def wants(self, end: End) -> bool:
        """Return whether this delivery is to be made."""
        return self.wanted is None or end in self.wanted


class Met(NamedTuple):
    """A member came to a node, and something went wrong.

    Attributes:
        doc: the member: enough of it for an event.
        owed: the deliveries that are missing below, as they were before.
    """

    member: str
    doc: Document
    node: str
    route: str
    branches: str
    owed: list[MissingDelivery]
    fault: NodeError


class Stage(Protocol):
    """Where the walk says what becomes of a delivery. ``attempt`` counts from 1."""

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, before: MissingDelivery | None) -> None:
        """It goes to the destination; ``before``: what it has had, if this is a retry."""

    def dropped(self, doc: Document, end: End, branches: str, why: str, attempt: int) -> None:
        """It ends on purpose."""

    def again(self, doc: Document, wish: RereadRequest) -> None:
        """A step wants its family read and walked again later."""

    def mark(self) -> Any:
        """Mark the current position, so that later records can be taken back."""

    def take_back(self, mark: Any) -> None:
        """Nothing was said since."""


class Ends:
    """Says what becomes of members of one family after the other.

    Attributes:
        row: the family's, in its task.
        batch: the batch that it belongs to; "": none.
        met: what went wrong with it.
        traces: of this task.
        heard: told of each document that fails, by its id.
    """

    def __init__(self, plan: Plan, source: str, stage: Stage) -> None:
        self._stage = stage
        self._skips = _skips(plan, source)
        self.traces = Traces()
        self.heard: Callable[[str, NodeError], None] | None = None
        self.row = 0
        self.batch = ""
        self.met: list[Met] = []
        self._origin = ""
        self._retrying = False
        self._silent: set[tuple[str, End]] = set()
        """(id, end) of what is pending in a retry, as long as nothing is said of it."""

    def _deliver(self, doc: Document, station: CompiledNode, way: Way) -> None:
        end = (station.name, way.route)
        before = None
        if way.wanted is not None:
            if end not in way.wanted:
                return
            before = way.wanted[end]
        try:
            fields = encode_fields(doc.fields)
            if doc.raw is not None and not isinstance(doc.raw, bytes):
                raise PermanentError(f"{doc.id} has a {type(doc.raw).__name__} as raw, which must be bytes or None")
            check_size(fields, doc.raw)
            if station.accepts is not None:  # of the document as it is kept, and whatever is done to it there
                station.accepts(Document.of(doc.id, decode_fields(fields), doc.raw))
        except BaseException as e:
            only = {end: MissingDelivery(*end, 0) if before is None else before}
            self._fail(doc, station, way._replace(wanted=only), unless_interrupt(e))
            return
        if self._retrying:
            self._silent.discard((doc.id, end))
        self._stage.upsert(doc, end, way.branches, fields, before)

    def _refuse(self, doc: Document, station: CompiledNode, way: Way) -> None:
        """A step could not make this child."""
        error = doc.refused if isinstance(doc.refused, Unsupported) else BadDocument(plain_text(doc.refused))
        if isinstance(error, Unsupported) and self._skips:
            self._drop_by(Dropped(plain_text(error)), doc, station, way)
        else:
            self._fail(doc, station, way, error)

    def _meant(self, error: Dropped | Unsupported, pulse: NodeHealth) -> Dropped | Unsupported:
        """A step lets a document go, or does not read it, which is the same where its source says so."""
        if isinstance(error, Unsupported) and not self._skips:
            return error
        pulse.dropped()
        return error if isinstance(error, Dropped) else Dropped(plain_text(error))

    def _drop_by(self, error: Dropped, doc: Document, station: CompiledNode, way: Way) -> None:
        """A step lets it go."""
        self._drop(doc, station.ends_by(way.route), way, plain_text(error) or f"dropped by {station.where}")

    def _drop(self, doc: Document, below: Iterable[End], way: Way, why: str) -> None:
        for end in below:
            if way.wants(end):
                if self._retrying:
                    self._silent.discard((doc.id, end))
                self._stage.dropped(doc, end, way.branches, why, 1 + (way.wanted[end].attempt if way.wanted else 0))

    def _drop_untaken(self, doc: Document, station: CompiledNode, chosen: list[str], way: Way) -> None:
        """Destinations that are reached only by branches which the document does not take."""
        if below := untaken(station, chosen, way):
            self._drop(doc, below, way, why_untaken(station, chosen))

    def _is_closed(self, station: CompiledNode) -> bool:
        """Return whether this node is in trouble and must not be called for this family."""
        pulse = station.pulse
        if pulse is None or not pulse.closed or station.answered:
            return False
        return not pulse.lets(self._origin, self.row)

    def _fail(self, doc: Document, station: CompiledNode, way: Way, error: BaseException) -> None:
        """A call failed."""
        self._meet(doc, station, way, self._fault(station, error))

    def _fault(self, station: CompiledNode, error: BaseException) -> NodeError:
        if isinstance(error, NodeAway):
            return held(station)
        fault = classify_error(error, station.name, station.where, traces=self.traces)
        if self.heard is not None:
            self.heard(self._origin, fault)
        if station.pulse is not None:
            station.pulse.failed(fault, self._origin, self.row, self.batch, again=self._retrying)
        return fault

    def _meet(self, doc: Document, station: CompiledNode, way: Way, fault: NodeError) -> None:
        """Nothing goes on from here, for now."""
        ends, wanted = station.ends_by(way.route), way.wanted
        owed = (
            [MissingDelivery(*end, 0) for end in ends] if wanted is None else [wanted[e] for e in ends if e in wanted]
        )
        if self._retrying:
            self._silent.difference_update((doc.id, o.end) for o in owed)
        member = self._member(doc.id)
        only = self._relative(member)
        self.met.append(Met(member, only, station.name, way.route, way.branches, owed, fault))

    def _member(self, id: str) -> str:
        return id[len(self._origin) :]

    def _relative(self, member: str) -> Document:
        """A member of the family by name: enough of it for an event, and nothing that a step has set."""
        found = Document.of(self._origin + member, {})
        found.origin_id = self._origin
        found.parent_id = parent_of(found.id) if member else None
        return found


def untaken(station: CompiledNode, chosen: list[str], way: Way) -> list[End]:
    """Deliveries below a router that are reached only by branches which were not chosen."""
    assert station.router is not None
    if len(chosen) == len(station.branches):
        return []
    copies = station.router.copies
    taken = {
        end
        for name in chosen
        for end in station.branches[name].ends_by(way.copied(name).route if copies else way.route)
    }
    return [end for end in station.ends_by(way.route) if end not in taken]


def why_untaken(station: CompiledNode, chosen: list[str]) -> str:
    """Return the ledger's text for deliveries that no branch accepted."""
    return f"not its branch: {station.where} sent it to {', '.join(chosen)}"


def _skips(plan: Plan, source: str) -> bool:
    """Return whether documents that no step reads are dropped."""
    return find_source(plan.nodes, source).source.unsupported == "skip"


def held(station: CompiledNode) -> NodeError:
    """Return the error for a document held because its node is unavailable."""
    assert station.pulse is not None
    return NodeError(ErrorKind.HELD, station.name, f"waits for {station.where}, which {station.pulse.why}")


# The way of a document onwards from a node: steps are called, routers choose, and what comes of it is said.


class Members(Protocol):
    """Walks the documents that a step made of one document."""

    def add(self, go: Callable[[Any], None]) -> None:
        """One of them goes on, now or as soon as it can."""

    def wait(self) -> None:
        """Until all that were added are through, and what was said of them stands in their order."""


class OneByOne:
    """Each member goes to its end before the next one begins."""

    def __init__(self, walk: Onwards) -> None:
        self._walk = walk

    def add(self, go: Callable[[Any], None]) -> None:
        """Walk one of the documents now, see ``Members.add``."""
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
        self.source = self._stations[find_source(plan.nodes, source).entry]
        self._counted_once = source in read_once_sources(plan.nodes)
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
        """Add the outcome of a member's walk to this one's."""
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
        """Walk the documents that a step made of one document."""
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
        """Walk more documents than are held in memory, while the step still makes others. If the step fails after all,
        all records about them are taken back: nothing of the call counts."""
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
        """Call the step and return its documents of this family, at least one."""
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
                    f"chose {safe_repr(name)}, which is not one of its branches {', '.join(station.branches)}"
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
    fresh = way if own else way._replace(wanted={end: MissingDelivery(*end, 0) for end in way.wanted or ()})
    return lambda walk: walk._go(each, station.next, fresh)


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
        """Record the document as dropped by its source."""
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
        """Return the open failures; keep what of them is closed."""
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
        """Return the members that failures descend from among a step's documents; the others are dropped."""
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
        """End what was pending and is not made any more."""
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
    """Return the closed part of a failure, kept so that an operator can open it again."""
    ended = [o for o in failure.owed if not o.open]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, ended)


def _branch_taken(branches: str, station: CompiledNode) -> CompiledNode:
    """The branch that was taken at a router before."""
    assert station.router is not None
    taken = dict(choice.partition("=")[::2] for choice in branches.split("/"))
    return station.branches[taken[station.name]]


# The nodes of a plan, ready to be walked.

End = tuple[str, str]
"""(destination, whole route)."""


@dataclass(slots=True)
class CompiledNode:
    """A node, ready to be walked."""

    name: str
    ends: tuple[tuple[str, str], ...]
    """(destination, rest of the route from here)."""
    step: Callable[[Document], Any] | None = None
    router: Router | None = None
    branches: dict[str, CompiledNode] = field(default_factory=dict)
    delivers: bool = False
    accepts: Callable[[Document], Any] | None = None
    """Raises what keeps a document from being delivered here; None: nothing does."""
    next: CompiledNode | None = None
    where: str = ""
    """How a message names it."""
    pulse: NodeHealth | None = None
    """How it is doing; None: it is not called."""
    answered: bool = False
    """It was called for the document at hand, whatever has become of it since."""
    _whole: dict[str, tuple[End, ...]] = field(default_factory=dict)

    def ends_by(self, route: str) -> tuple[End, ...]:
        """Every delivery below, of a copy that came here by this route."""
        found = self._whole.get(route)
        if found is None:
            found = self._whole[route] = tuple((name, joined(route, rest)) for name, rest in self.ends)
        return found


def stations(
    nodes: Sequence[Node], task: int, guarded: Callable[[StepNode], Callable[..., Any]]
) -> dict[str, CompiledNode]:
    """Name -> station; routers are open.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        guarded: a step's function as it is to be called.
    """
    below, following = ends(nodes), successors(nodes)
    found = {
        n.name: CompiledNode(n.name, tuple((e.destination, "/".join(e.route)) for e in below[n.name])) for n in nodes
    }
    joins: dict[str, CompiledNode] = {}
    for node in nodes:
        station = found[node.name]
        after = {n.name: found[n.name] for n in following[node.name]}
        match node:
            case JoinNode():
                station.where = "reading it"
                call = StepNode(node.name, fn=joining(node.fn), timeout=node.timeout)
                inner = CompiledNode(node.name, station.ends, guarded(call), where=f"join {node.name}")
                inner.next = next(iter(after.values()), None)
                joins[f"{node.name}()"] = inner
                after = {node.name: inner}
            case SourceNode():
                station.where = "reading it"
            case StepNode():
                station.step = guarded(node)
                station.where = f"step {node.name}"
            case RouterNode():
                station.router = copy.copy(node.router)
                station.router.open(tuple(after), task)
                station.branches, after = after, {}
                station.where = f"router {node.name}"
            case KeyedNode():
                station.delivers, station.accepts = True, node.key_of
                station.where = f"for {node.name}"
                below_it = tuple((e.destination, "/".join(e.route)) for e in below.get(node.exports.entry, ()))
                exports = CompiledNode(node.name, below_it, where="reading it", next=next(iter(after.values()), None))
                joins[node.exports.entry] = exports
                after = {}
            case DestinationNode():
                station.delivers = True
                station.where = f"for {node.name}"
        station.next = next(iter(after.values()), None)
    return found | joins


def joined(one: str, other: str) -> str:
    """Two parts of a route, or of the branches that were chosen."""
    return f"{one}/{other}" if one and other else one or other


# A join's function as a step.


def joining(fn: Callable[..., Any]) -> Callable[[Document], Any]:
    """A step for the document that a join has made of one of each input: calls ``fn`` with those."""

    @wraps(fn)
    def joined(doc: Document) -> Any:
        out = fn(split_joined(doc))
        if out is None:
            return None
        if isinstance(out, Mapping):
            return _with(doc, out)
        if isinstance(out, Iterable) and not isinstance(out, str | bytes):
            return _children(doc, out)
        raise PermanentError(f"returned a {type(out).__name__}: return a document, a dict of fields, several, or None")

    return joined


def _children(doc: Document, out: Iterable[Any]) -> Iterator[Document]:
    for each in out:
        if not isinstance(each, Mapping):
            raise PermanentError(f"returned a {type(each).__name__} among several: return documents or dicts of fields")
        yield _with(doc.child(), each)


def _with(doc: Document, out: Mapping[str, Any]) -> Document:
    """The document with the content of what was returned."""
    fields = dict(out)
    doc.fields.clear()
    doc.fields.update(fields)
    doc.raw = out.raw if isinstance(out, Document) else None
    return doc
