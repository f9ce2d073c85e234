"""What becomes of the members of a family on their way: deliveries, drops and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ferryman.document import Again, Document, check_size, decode_fields, encode_fields
from ferryman.engine.transform.compiled import CompiledNode, End, joined
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.node_errors import ErrorKind, NodeAway, NodeError, Traces, classify_error
from ferryman.errors import BadDocument, Dropped, PermanentError, Unsupported, plain_text, unless_interrupt
from ferryman.plan import Plan, source_named
from ferryman.records.family import Owed, parent_of


class Way(NamedTuple):
    """How a member comes to a node, and what for.

    Attributes:
        route: branches of the copying routers so far.
        branches: choices of the other routers so far.
        wanted: deliveries to make -> what they have had; None: all, for the first time.
    """

    route: str = ""
    branches: str = ""
    wanted: dict[End, Owed] | None = None

    def copied(self, branch: str) -> Way:
        """Into a branch of a copying router."""
        return self._replace(route=joined(self.route, branch))

    def chosen(self, router: str, branch: str) -> Way:
        """Into the branch that a router has chosen."""
        return self._replace(branches=joined(self.branches, f"{router}={branch}"))

    def wants(self, end: End) -> bool:
        """Is this delivery to be made?"""
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
            only = {end: Owed(*end, 0) if before is None else before}
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
        """Is this node in trouble, and not to be called for this family?"""
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
        owed = [Owed(*end, 0) for end in ends] if wanted is None else [wanted[e] for e in ends if e in wanted]
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
    """What the ledger says of these."""
    return f"not its branch: {station.where} sent it to {', '.join(chosen)}"


def _skips(plan: Plan, source: str) -> bool:
    """Is what no step reads dropped?"""
    return source_named(plan.nodes, source).source.unsupported == "skip"


def held(station: CompiledNode) -> NodeError:
    """Of a document that waits for this node."""
    assert station.pulse is not None
    return NodeError(ErrorKind.HELD, station.name, f"waits for {station.where}, which {station.pulse.why}")
