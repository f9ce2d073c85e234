"""Paths through a plan: successors of nodes, and the sources and destinations that they connect."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, cast

from ferryman.destinations.base import Destination
from ferryman.net import relative_paths
from ferryman.plan.nodes import (
    CalledNode,
    DestinationNode,
    ExportsNode,
    KeyedNode,
    Node,
    RouterNode,
    SourceNode,
    sources_of,
)
from ferryman.sources.base import Source
from ferryman.sources.log import Log


class End(NamedTuple):
    """A destination that can be reached from a node, and the branches of copying routers on the path to it."""

    destination: str
    route: tuple[str, ...]


def successors(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Return name -> the nodes that follow it, in plan order."""
    following: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.after:
            following[name].append(node)
    return following


def ends(nodes: Sequence[Node]) -> dict[str, tuple[End, ...]]:
    """Return name -> all ends of the paths from this node, for a checked plan.

    A destination has several ends if a router upstream of it makes copies: each route is a delivery of its own.
    """
    following = successors(nodes)
    ends_of: dict[str, tuple[End, ...]] = {}
    for node in reversed(topological_order(nodes)):
        own_ends: dict[End, None] = {End(node.name, ()): None} if isinstance(node, DestinationNode) else {}
        for child in following[node.name]:
            copies = isinstance(node, RouterNode) and node.router.copies
            branch = (child.name,) if copies else ()
            own_ends |= {End(end.destination, branch + end.route): None for end in ends_of[child.name]}
        if isinstance(node, KeyedNode):  # what it exports are other documents
            own_end = End(node.name, ())
            del own_ends[own_end]
            ends_of[node.exports.entry], own_ends = tuple(own_ends), {own_end: None}
        ends_of[node.name] = tuple(own_ends)
    return ends_of


def destinations_of_sources(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return source -> the destinations (tees too) that its documents may reach, in plan order, for a checked plan."""
    reached = ends(nodes)
    return {n.name: list(dict.fromkeys(e.destination for e in reached[n.entry])) for n in sources_read(nodes)}


def called_nodes_below(nodes: Sequence[Node], source: str) -> list[str]:
    """Return the steps and routers that a source's documents may reach, and the source itself if it is called, in plan
    order."""
    following, reached = successors(nodes), {source}
    for node in topological_order(nodes):
        if node.name in reached:
            reached |= {each.name for each in following[node.name]}
    return [n.name for n in nodes if n.name in reached and isinstance(n, CalledNode)]


def conflicting_sources(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return source -> the other sources, in plan order, whose documents may overwrite its own in a target keyed by
    id."""
    conflicts: dict[str, list[str]] = {}
    for sources in sources_of_targets(nodes).values():
        for one in sources:
            others = [other.name for other in sources if other is not one and _ids_may_conflict(one, other)]
            conflicts[one.name] = list(dict.fromkeys([*conflicts.get(one.name, ()), *others]))
    return conflicts


def overwriting_destinations(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return source -> the destinations whose late deletes would remove its documents: they are keyed by id, write to a
    target that it reaches, and take what is older than what they have."""
    keyed = [n for n in nodes if isinstance(n, DestinationNode) and n.destination.keyed_by_id]
    unordered = [n for n in keyed if not n.destination.compares_sequences]
    found: dict[str, list[str]] = {}
    for target, sources in sources_of_targets(nodes).items():
        for source in sources:
            found.setdefault(source.name, []).extend(n.name for n in unordered if target_of(n) == target)
    return found


def _ids_may_conflict(one: SourceNode, other: SourceNode) -> bool:
    shorter, longer = sorted((one.source.prefix, other.source.prefix), key=len)
    return longer.startswith(shorter)


def sources_of_targets(nodes: Sequence[Node]) -> dict[str, list[SourceNode]]:
    """Return target keyed by id -> the sources whose documents reach it, for a checked plan."""
    by_name, sources = {n.name: n for n in nodes}, {n.name: n for n in sources_read(nodes)}
    reached: dict[str, list[SourceNode]] = {}
    for source, names in destinations_of_sources(nodes).items():
        ends_here = [cast(DestinationNode, by_name[name]) for name in names]
        for target in dict.fromkeys(target_of(n) for n in ends_here if n.destination.keyed_by_id):
            reached.setdefault(target, []).append(sources[source])
    return reached


def sources_read(nodes: Iterable[Node]) -> list[SourceNode]:
    """Return the sources that the engine reads: those that are inputs of a join or alts are read by that node."""
    sources = sources_of([*nodes])
    inputs = {name for n in sources for name in n.after}
    return [n for n in sources if n.name not in inputs]


def logs_read(nodes: Iterable[Node]) -> list[SourceNode]:
    """Return the sources that the engine reads and that are logs."""
    return [n for n in sources_read(nodes) if isinstance(n.source, Log)]


def logs_of_versions(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the logs whose entries are versions of documents, of which ``documents`` has rows as of those of other
    sources. Exports of keyed nodes are not among them: each is recorded by its place."""
    return frozenset(
        n.name
        for n in nodes
        if isinstance(n, SourceNode)
        and not isinstance(n, ExportsNode)
        and isinstance(n.source, Log)
        and n.source.repeats_ids
    )


def destinations_of_many_versions(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the destinations that may get several versions of a document in one wave, see ``Log.many_versions``."""
    many = {n.name for n in nodes if isinstance(n, SourceNode) and getattr(n.source, "many_versions", False)}
    reached = destinations_of_sources(nodes) if many else {}
    return frozenset(name for source in many for name in reached.get(source, ()))


def errors_node(nodes: Iterable[Node]) -> DestinationNode | None:
    """Return the destination that ``Plan.errors`` added; None if there is none."""
    return next((n for n in nodes if isinstance(n, DestinationNode) and n.errors), None)


def target_of(node: Node) -> str:
    """Return the physical place that a destination writes to; the node's name if no other node can write there."""
    assert isinstance(node, DestinationNode)
    return node.destination.target() or node.name


def nodes_by_target(nodes: Sequence[Node]) -> dict[str, list[DestinationNode]]:
    """Return target -> the nodes that write to it, see ``target_of``."""
    found: dict[str, list[DestinationNode]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, DestinationNode):
            found[target_of(node)].append(node)
    return found


# Cycles of nodes, also through an external place that one plan writes and reads; and the topological order.


class Joint(NamedTuple):
    """A link between two plans: a place that one of them writes and the other reads.

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


class GraphMember(Protocol):
    """A member of a graph: a node, or a plan of a flow."""

    @property
    def name(self) -> str: ...

    @property
    def after(self) -> Sequence[str]: ...


def topological_order(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes so that each comes after those it follows (Kahn); nodes in or behind a cycle are left out."""
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


def cycles(nodes: Sequence[GraphMember]) -> list[list[str]]:
    """Return cycles as lists of names in the direction of the documents, each from its first node in plan order.

    Any plan may be given: unknown names are ignored, and a name that several nodes have means the first of them. Every
    edge that closes a cycle is in one of those returned, so breaking these leaves no other.
    """
    numbers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        numbers.setdefault(node.name, number)
    following: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for name in node.after:
            if name in numbers:
                following[numbers[name]].append(number)
    reported: set[tuple[int, int]] = set()
    rings = []
    for start in _in_or_behind_cycles(following):
        for end in following[start]:
            if (start, end) not in reported and (ring := _shortest_path(end, start, following)):
                reported.update(pairwise([start, *ring]))
                first = ring.index(min(ring))
                rings.append([nodes[number].name for number in ring[first:] + ring[:first]])
    return rings


def _in_or_behind_cycles(following: Sequence[Sequence[int]]) -> list[int]:
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


def _shortest_path(start: int, end: int, following: Sequence[Sequence[int]]) -> list[int]:
    """Return the shortest path from ``start`` to ``end``, both included; [] if there is none."""
    previous: dict[int, int | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in previous:
        current_node = waiting.popleft()
        for number in following[current_node]:
            if number not in previous:
                previous[number] = current_node
                waiting.append(number)
    path: list[int] = []
    current: int | None = end if end in previous else None
    while current is not None:
        path.append(current)
        current = previous[current]
    return path[::-1]


def loop_findings(nodes: Sequence[Node]) -> list[str]:
    """Return a finding for each source that reads what a destination of the same plan writes, by whatever name."""
    written = {
        target: n.name
        for n in reversed(nodes)
        if isinstance(n, DestinationNode) and isinstance(n.destination, Destination)
        if (target := relative_paths.resolve(n.destination.target())) is not None
    }
    return [
        f"{n.name}: reads {target}, which {written[target]} of the same plan writes: a loop without end. Make two "
        "plans of it, one that writes and one that reads, and run them together as a Flow: Flow(name, [first, second])."
        for n in nodes
        if isinstance(n, SourceNode) and isinstance(n.source, Source)
        if (target := relative_paths.resolve(n.source.reads())) in written
    ]
