"""The paths through a plan: what follows which node, where documents come from and where they end."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, cast

from ferryman.destinations.base import Destination
from ferryman.net import places
from ferryman.plan.nodes import CalledNode, DestinationNode, KeyedNode, Node, RouterNode, SourceNode, sources_of
from ferryman.sources.base import Source
from ferryman.sources.log import Log


class End(NamedTuple):
    """A destination that can be reached from a node, and the duplicating branches on the way there."""

    destination: str
    route: tuple[str, ...]


def successors(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Name -> the nodes that follow it, in the order of their making."""
    following: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.after:
            following[name].append(node)
    return following


def ends(nodes: Sequence[Node]) -> dict[str, tuple[End, ...]]:
    """Name -> every end of a document that comes to this node, for a checked plan.

    One destination has several ends where a router above it makes copies: each route is a delivery of its own.
    """
    following = successors(nodes)
    found: dict[str, tuple[End, ...]] = {}
    for node in reversed(in_order(nodes)):
        here: dict[End, None] = {End(node.name, ()): None} if isinstance(node, DestinationNode) else {}
        for child in following[node.name]:
            copies = isinstance(node, RouterNode) and node.router.copies
            branch = (child.name,) if copies else ()
            here |= {End(end.destination, branch + end.route): None for end in found[child.name]}
        if isinstance(node, KeyedNode):  # what it exports are other documents
            mine = End(node.name, ())
            del here[mine]
            found[node.exports.entry], here = tuple(here), {mine: None}
        found[node.name] = tuple(here)
    return found


def destinations_of_sources(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Source -> the destinations, tees too, that its documents may come to; in plan order, for a checked plan."""
    reached = ends(nodes)
    return {n.name: list(dict.fromkeys(e.destination for e in reached[n.entry])) for n in sources_read(nodes)}


def called_below(nodes: Sequence[Node], source: str) -> list[str]:
    """Steps and routers that a source's documents may come to, in the order of their making, and the source, if it is
    called, too."""
    following, found = successors(nodes), {source}
    for node in in_order(nodes):
        if node.name in found:
            found |= {each.name for each in following[node.name]}
    return [n.name for n in nodes if n.name in found and isinstance(n, CalledNode)]


def conflicting_sources(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Source -> the other sources, in plan order, of which documents may reach the same target, keyed by id, under the
    same ids."""
    found: dict[str, list[str]] = {}
    for sources in sources_of_targets(nodes).values():
        for one in sources:
            others = [other.name for other in sources if other is not one and _may_clash(one, other)]
            found[one.name] = list(dict.fromkeys([*found.get(one.name, ()), *others]))
    return found


def _may_clash(one: SourceNode, other: SourceNode) -> bool:
    shorter, longer = sorted((one.source.prefix, other.source.prefix), key=len)
    return longer.startswith(shorter)


def sources_of_targets(nodes: Sequence[Node]) -> dict[str, list[SourceNode]]:
    """Targets keyed by id -> the sources whose documents come there, for a checked plan."""
    by_name, sources = {n.name: n for n in nodes}, {n.name: n for n in sources_read(nodes)}
    reached: dict[str, list[SourceNode]] = {}
    for source, names in destinations_of_sources(nodes).items():
        ends_here = [cast(DestinationNode, by_name[name]) for name in names]
        for target in dict.fromkeys(target_of(n) for n in ends_here if n.destination.keyed_by_id):
            reached.setdefault(target, []).append(sources[source])
    return reached


def sources_read(nodes: Iterable[Node]) -> list[SourceNode]:
    """The sources that are read: not those that are inputs of a join or alts, which reads them."""
    sources = sources_of([*nodes])
    inputs = {name for n in sources for name in n.after}
    return [n for n in sources if n.name not in inputs]


def logs_read(nodes: Iterable[Node]) -> list[SourceNode]:
    """Return those of the nodes that are logs."""
    return [n for n in sources_read(nodes) if isinstance(n.source, Log)]


def errors_node(nodes: Iterable[Node]) -> DestinationNode | None:
    """The destination that ``Plan.errors`` named; None: there is none."""
    return next((n for n in nodes if isinstance(n, DestinationNode) and n.errors), None)


def target_of(node: Node) -> str:
    """The physical place that a destination writes to; its own name if it is nobody else's."""
    assert isinstance(node, DestinationNode)
    return node.destination.target() or node.name


# Nodes that follow each other in a ring, also through a place outside; and the order of those that do not.


class Joint(NamedTuple):
    """A place that one plan writes and another reads.

    Attributes:
        target: the place, as ``Destination.target`` and ``Source.reads`` name it.
        writer, reader: labels of the plans.
        destination, source: their nodes.
    """

    target: str
    writer: str
    destination: str
    reader: str
    source: str


class Linked(Protocol):
    """A member of a graph: a node, or a plan of a flow."""

    @property
    def name(self) -> str: ...

    @property
    def after(self) -> Sequence[str]: ...


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Nodes so that each comes after those it follows (Kahn); without those that are in a cycle, or behind one."""
    waiting = {n.name: set(n.after) for n in nodes}
    by_name = {n.name: n for n in nodes}
    ordered: list[Node] = []
    while ready := [name for name, after in waiting.items() if not after]:
        for name in ready:
            del waiting[name]
            ordered.append(by_name[name])
        for after in waiting.values():
            after.difference_update(ready)
    return ordered


def cycles(nodes: Sequence[Linked]) -> list[list[str]]:
    """Rings of names, each from its first node on the way that documents take.

    Any plan may be given: names that are not there are passed over, and where several nodes have one name, the first
    is meant. Every edge that closes a ring is in one of the rings: no more come to light when these are opened.
    """
    numbers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        numbers.setdefault(node.name, number)
    following: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for name in node.after:
            if name in numbers:
                following[numbers[name]].append(number)
    told: set[tuple[int, int]] = set()
    rings = []
    for start in _left_over(following):
        for end in following[start]:
            if (start, end) not in told and (ring := _shortest(end, start, following)):
                told.update(pairwise([start, *ring]))
                first = ring.index(min(ring))
                rings.append([nodes[number].name for number in ring[first:] + ring[:first]])
    return rings


def _left_over(following: Sequence[Sequence[int]]) -> list[int]:
    """Return the members that are in a ring or behind one."""
    missing = [0] * len(following)
    for ends in following:
        for end in ends:
            missing[end] += 1
    ready = [number for number, count in enumerate(missing) if not count]
    for number in ready:  # grows meanwhile
        for end in following[number]:
            missing[end] -= 1
            if not missing[end]:
                ready.append(end)
    return [number for number, count in enumerate(missing) if count]


def _shortest(start: int, end: int, following: Sequence[Sequence[int]]) -> list[int]:
    """From ``start`` to ``end``, both among them; [] if there is no way."""
    before: dict[int, int | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in before:
        at = waiting.popleft()
        for number in following[at]:
            if number not in before:
                before[number] = at
                waiting.append(number)
    way: list[int] = []
    step: int | None = end if end in before else None
    while step is not None:
        way.append(step)
        step = before[step]
    return way[::-1]


def endless(nodes: Sequence[Node]) -> list[str]:
    """Sources that read what a destination of the same plan writes, by whatever name."""
    written = {
        target: n.name
        for n in reversed(nodes)
        if isinstance(n, DestinationNode) and isinstance(n.destination, Destination)
        if (target := places.resolved(n.destination.target())) is not None
    }
    return [
        f"{n.name}: reads {target}, which {written[target]} of the same plan writes: a loop without end. Make two "
        "plans of it, one that writes and one that reads, and run them together as a Flow: Flow(name, [first, second])."
        for n in nodes
        if isinstance(n, SourceNode) and isinstance(n.source, Source)
        if (target := places.resolved(n.source.reads())) in written
    ]
