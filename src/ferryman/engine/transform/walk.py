"""The way of a document through the plan, in a worker's hands: steps, routers, tees; and the way back to what failed.

What an error at a node means is not decided here but when the task is through (``staging``): whether it is the
document's own, or the node's, shows only then. The walk keeps what it met.

``first`` takes a document down every way it goes, from its source on. ``again`` is a retry: it replays the way of the
family's members to the nodes at which they failed, and from there on goes only towards the deliveries that are still
owed. On the replayed part nothing is delivered or dropped a second time: a member that is not on the way to a failure
is let go as soon as it is made, and a router takes the branch it took before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from ferryman import limits
from ferryman.document import Again, Document, check_size, encode_fields
from ferryman.engine.transform.compiled import CompiledNode, End, joined, stations
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.node_errors import OF_NODE, ErrorKind, NodeError, Traces, classify_error
from ferryman.engine.transform.returned import Many, Returned
from ferryman.errors import BadDocument, Dropped, PermanentError, Unsupported, plain_text, unless_interrupt
from ferryman.plan import Plan, SourceNode, StepNode
from ferryman.records.family import FailedMember, Owed, ancestry, parent_of

_Wanted = dict[End, Owed] | None
"""Deliveries to make -> what they have had; None: all, for the first time."""


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
    owed: list[Owed]
    fault: NodeError


class Stage(Protocol):
    """Where the walk says what becomes of a delivery. ``attempt`` counts from 1."""

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, before: Owed | None) -> None:
        """It goes to the destination; ``before``: what it has had, if this is a retry."""

    def dropped(self, doc: Document, end: End, branches: str, why: str, attempt: int) -> None:
        """It ends on purpose."""

    def again(self, doc: Document, wish: Again) -> None:
        """A step wants its family read and walked again later."""

    def mark(self) -> Any:
        """What is said from now on may be taken back."""

    def take_back(self, mark: Any) -> None:
        """Nothing was said since."""


class Walk:
    """Walks documents of one source, one after the other.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        guarded: a step's function as it is to be called.
        pulses: node -> how it is doing in this task.

    Attributes:
        row: the last document's, in its task.
        batch: the batch that it belongs to; "": none.
        met: what went wrong with the last document's family.
        failures: where it had failed before a retry, and has ended.
        reached: failures that the last ``again`` came to and went on from.
        kept: members that were let go as soon as they were made, for nothing of them is owed.
        traces: of this task.
        heard: told of each document that fails, by its id.
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
        self._stage = stage
        self._stations = stations(plan.nodes, task, guarded)
        self._source = self._stations[source]
        self._skips = _skips(plan, source)
        self.traces = Traces()
        self.heard: Callable[[str, NodeError], None] | None = None
        self.take_over(health)
        self.row = 0
        self.batch = ""
        self._origin = ""
        self._returned = Returned(self._note_wish)
        self._silent: set[tuple[str, End]] = set()
        """(id, end) of what is owed in a retry, as long as nothing is said of it."""
        self._retrying = False
        self.met: list[Met] = []
        self.failures: list[FailedMember] = []
        self.reached: list[FailedMember] = []
        self.kept: list[str] = []

    # -- what a worker asks for --------------------------------------------------------------------

    def take_over(self, health: Mapping[str, NodeHealth]) -> None:
        """Go on with what is known of the nodes."""
        for name, station in self._stations.items():
            station.pulse = health.get(name)

    def first(self, doc: Document) -> None:
        """The whole way."""
        self._begin(doc.id, retrying=False)
        self._go(doc, self._source.next, "", "", None)

    def again(self, doc: Document, failures: Sequence[FailedMember]) -> None:
        """Only the ways to what is owed."""
        owed = self._begin_again(doc.id, failures)
        self._replay(doc, self._source, "", "", owed)
        self._supersede(doc, owed)

    def unread(self, doc: Document, fault: NodeError, failures: Sequence[FailedMember] | None) -> None:
        """It could not be read; ``failures``: those of the same version, if this is a retry."""
        if failures is None:
            self._begin(doc.id, retrying=False)
            self._meet(doc, self._source, "", "", None, fault)
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

    def _go(self, doc: Document, station: CompiledNode | None, route: str, branches: str, wanted: _Wanted) -> None:
        """From this node on, as for the first time."""
        while station is not None:
            if wanted is not None and wanted.keys().isdisjoint(station.ends_by(route)):
                return
            if doc.refused is not None:
                self._refuse(doc, station, route, branches, wanted)
                return
            if station.step is not None:
                if self._is_closed(station):
                    self._meet(doc, station, route, branches, wanted, _held(station))
                    return
                try:
                    out = self._called(station, doc, route)
                except Dropped as e:
                    self._drop_by(e, doc, station, route, branches, wanted)
                    return
                except BaseException as e:
                    self._fail(doc, station, route, branches, wanted, unless_interrupt(e))
                    return
                if (itself := _itself(out, doc)) is None:
                    self._go_several(doc, out, station, route, branches, wanted)
                    return
                doc = itself
            elif station.delivers:
                self._deliver(doc, station, route, branches, wanted)
            elif station.router is not None:
                if self._is_closed(station):
                    self._meet(doc, station, route, branches, wanted, _held(station))
                    return
                try:
                    chosen = self._choose(doc, station)
                    copies = [doc.copy() for _ in chosen[1:]] if station.router.copies else []
                except BaseException as e:
                    self._fail(doc, station, route, branches, wanted, unless_interrupt(e))
                    return
                self._drop_untaken(doc, station, chosen, route, branches, wanted)
                if station.router.copies:
                    for name, each in zip(chosen, [*copies, doc], strict=True):
                        self._go(each, station.branches[name], joined(route, name), branches, wanted)
                    return
                branches = joined(branches, f"{station.name}={chosen[0]}")
                station = station.branches[chosen[0]]
                continue
            station = station.next

    def _go_several(
        self,
        doc: Document,
        out: Sequence[Document] | Many,
        station: CompiledNode,
        route: str,
        branches: str,
        wanted: _Wanted,
    ) -> None:
        """What a step has made of a document goes on."""
        if isinstance(out, Many):
            self._go_many(doc, out, station, route, branches, wanted)
        else:
            self._go_each(doc, out, station, route, branches, wanted)

    def _go_each(
        self, doc: Document, out: Iterable[Document], station: CompiledNode, route: str, branches: str, wanted: _Wanted
    ) -> None:
        """The document and children of it; a child's deliveries have had no attempt yet."""
        for each in out:
            own = each.id == doc.id or wanted is None
            self._go(each, station.next, route, branches, wanted if own else {e: Owed(*e, 0) for e in wanted or ()})

    def _go_many(
        self, doc: Document, many: Many, station: CompiledNode, route: str, branches: str, wanted: _Wanted
    ) -> None:
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
            self._go_each(doc, [each], station, route, branches, wanted)
            if len(self.met) - met >= limits.WAITING_MEMBERS and self.met[-1].fault.kind in _AWAY:
                fault = self.met[-1].fault
        if error is None and fault is None:
            self._returned.end(failed=False)
            self._go_each(doc, itself, station, route, branches, wanted)
            return
        self._returned.end(failed=True)
        self._stage.take_back(mark)
        del self.met[met:]
        if fault is not None:
            self._meet(doc, station, route, branches, wanted, fault)
        elif isinstance(error, Dropped):
            self._drop_by(error, doc, station, route, branches, wanted)
        else:
            assert error is not None
            self._fail(doc, station, route, branches, wanted, error)

    def _called(self, station: CompiledNode, doc: Document, route: str) -> Sequence[Document] | Many:
        """What the step makes of it: documents of this family, at least one."""
        assert station.step is not None
        assert station.pulse is not None
        id = doc.id
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
        if found is None:
            station.pulse.dropped(silently=True)
            raise Dropped
        if not station.pulse.steady and not isinstance(found, Many):
            station.pulse.returned()
        return found

    def _next(self, many: Many, station: CompiledNode) -> Document | None:
        """The next document that the step makes; None: it has made all."""
        assert station.pulse is not None
        try:
            each = many.next()
        except (Dropped, Unsupported) as e:
            raise self._meant(e, station.pulse) from None
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
                raise PermanentError(f"chose {name!r}, which is none of its branches {', '.join(station.branches)}")
        if len(set(chosen)) < len(chosen):
            raise PermanentError(f"chose a branch twice: {', '.join(chosen)}")
        if not chosen:
            raise PermanentError("chose no branch: to let a document go, drop it in a step")
        if station.pulse is not None and not station.pulse.steady:
            station.pulse.succeeded()
        return chosen

    def _deliver(self, doc: Document, station: CompiledNode, route: str, branches: str, wanted: _Wanted) -> None:
        end = (station.name, route)
        before = None
        if wanted is not None:
            if end not in wanted:
                return
            before = wanted[end]
        try:
            fields = encode_fields(doc.fields)
            if doc.raw is not None and not isinstance(doc.raw, bytes):
                raise PermanentError(f"{doc.id} has a {type(doc.raw).__name__} as raw, which must be bytes or None")
            check_size(fields, doc.raw)
        except Exception as e:
            only = {end: Owed(*end, 0) if wanted is None else wanted[end]}
            self._fail(doc, station, route, branches, only, e)
            return
        if self._retrying:
            self._silent.discard((doc.id, end))
        self._stage.upsert(doc, end, branches, fields, before)

    # -- ends --------------------------------------------------------------------------------------

    def _refuse(self, doc: Document, station: CompiledNode, route: str, branches: str, wanted: _Wanted) -> None:
        """A step could not make this child."""
        error = doc.refused if isinstance(doc.refused, Unsupported) else BadDocument(doc.refused or "")
        if isinstance(error, Unsupported) and self._skips:
            self._drop_by(Dropped(plain_text(error)), doc, station, route, branches, wanted)
        else:
            self._fail(doc, station, route, branches, wanted, error)

    def _meant(self, error: Dropped | Unsupported, pulse: NodeHealth) -> Dropped | Unsupported:
        """A step lets a document go, or does not read it, which is the same where its source says so."""
        if isinstance(error, Unsupported) and not self._skips:
            return error
        pulse.dropped()
        return error if isinstance(error, Dropped) else Dropped(plain_text(error))

    def _drop_by(
        self, error: Dropped, doc: Document, station: CompiledNode, route: str, branches: str, wanted: _Wanted
    ) -> None:
        """A step lets it go."""
        self._drop(doc, station.ends_by(route), branches, wanted, plain_text(error) or f"dropped by {station.where}")

    def _drop(self, doc: Document, below: Iterable[End], branches: str, wanted: _Wanted, why: str) -> None:
        for end in below:
            if wanted is None or end in wanted:
                if self._retrying:
                    self._silent.discard((doc.id, end))
                self._stage.dropped(doc, end, branches, why, 1 + (wanted[end].attempt if wanted else 0))

    def _drop_untaken(
        self, doc: Document, station: CompiledNode, chosen: list[str], route: str, branches: str, wanted: _Wanted
    ) -> None:
        """Destinations that are reached only by branches which the document does not take."""
        assert station.router is not None
        if len(chosen) == len(station.branches):
            return
        copies = station.router.copies
        taken = {
            end for name in chosen for end in station.branches[name].ends_by(joined(route, name) if copies else route)
        }
        untaken = [end for end in station.ends_by(route) if end not in taken]
        if untaken:
            self._drop(
                doc, untaken, branches, wanted, f"not its branch: {station.where} sent it to {', '.join(chosen)}"
            )

    def _is_closed(self, station: CompiledNode) -> bool:
        """Is this node in trouble, and not to be called for this family?"""
        pulse = station.pulse
        return pulse is not None and pulse.closed and not pulse.lets(self._origin, self.row)

    def _fail(
        self, doc: Document, station: CompiledNode, route: str, branches: str, wanted: _Wanted, error: BaseException
    ) -> None:
        """A call failed."""
        self._meet(doc, station, route, branches, wanted, self._fault(station, error))

    def _fault(self, station: CompiledNode, error: BaseException) -> NodeError:
        fault = classify_error(error, station.name, station.where, traces=self.traces)
        if self.heard is not None:
            self.heard(self._origin, fault)
        if station.pulse is not None:
            station.pulse.failed(fault, self._origin, self.row, self.batch, again=self._retrying)
        return fault

    def _meet(
        self, doc: Document, station: CompiledNode, route: str, branches: str, wanted: _Wanted, fault: NodeError
    ) -> None:
        """Nothing goes on from here, for now."""
        ends = station.ends_by(route)
        owed = [Owed(*end, 0) for end in ends] if wanted is None else [wanted[e] for e in ends if e in wanted]
        if self._retrying:
            self._silent.difference_update((doc.id, o.end) for o in owed)
        self.met.append(Met(self._member(doc.id), _only(doc), station.name, route, branches, owed, fault))

    # -- back to what failed -----------------------------------------------------------------------

    def _replay(
        self, doc: Document, station: CompiledNode | None, route: str, branches: str, owed: list[FailedMember]
    ) -> None:
        """Down to the nodes at which this member or what is made from it failed."""
        member = self._member(doc.id)
        while station is not None and owed:
            here = [f for f in owed if (f.member, f.node, f.route) == (member, station.name, route)]
            if here:
                owed = [f for f in owed if f not in here]
                self.reached += here
                wanted = {o.end: o for f in here for o in f.owed if o.open}
                apart = doc.copy() if owed else doc
                self._go(apart, station.next if station is self._source else station, route, here[0].branches, wanted)
                if not owed:
                    return
            if station.step is not None:
                if self._is_closed(station):
                    self._meet_again(owed, doc, _held(station))
                    return
                try:
                    out = self._called(station, doc, route)
                    itself = _itself(out, doc)
                    members = self._on_the_way(out, station, owed) if itself is None else {}
                except Dropped:
                    return
                except BaseException as e:
                    self._meet_again(owed, doc, self._fault(station, unless_interrupt(e)))
                    return
                if itself is None:
                    self._replay_each(members, station, route, branches, owed)
                    return
                doc = itself
            elif station.router is not None:
                if station.router.copies:
                    for name, branch in station.branches.items():
                        by = joined(route, name)
                        if below := [f for f in owed if f.route == by or f.route.startswith(f"{by}/")]:
                            self._replay(doc.copy(), branch, by, branches, below)
                    return
                taken = _branch_taken(owed[0].branches, station)
                branches = joined(branches, f"{station.name}={taken.name}")
                station = taken
                continue
            station = station.next

    def _on_the_way(
        self, out: Sequence[Document] | Many, station: CompiledNode, owed: list[FailedMember]
    ) -> dict[str, Document]:
        """Of what a step has made, the members that failures descend from; the others are let go as they come."""
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
        route: str,
        branches: str,
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
                self._replay(each, station.next, route, branches, ways[member])
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
        """What was owed and is not made any more."""
        for failure in owed:
            member = self._relative(doc, failure.member)
            missing = [o for o in failure.owed if o.open and (member.id, o.end) in self._silent]
            for o in missing:
                why = "superseded: the retry did not make it again"
                self._stage.dropped(member, o.end, failure.branches, why, o.attempt)

    def _member(self, id: str) -> str:
        return id[len(self._origin) :]

    def _relative(self, doc: Document, member: str) -> Document:
        """A member of this document's family by name: enough of it for an event."""
        found = Document.of(self._origin + member, {}, None, doc.version)
        found.origin_id = self._origin
        found.parent_id = parent_of(found.id) if member else None
        return found


def _closed(failure: FailedMember) -> FailedMember:
    """What of it has ended: kept, so that a person may open it again."""
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


def _only(doc: Document) -> Document:
    """Enough of it for an event."""
    only = Document.of(doc.id, {})
    only.parent_id = doc.parent_id
    return only


def _skips(plan: Plan, source: str) -> bool:
    """Is what no step reads dropped?"""
    [node] = (node for node in plan.nodes if node.name == source)
    return isinstance(node, SourceNode) and node.source.unsupported == "skip"
