"""The nodes of a plan, ready to be walked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferryman.document import Document
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.joining import joining
from ferryman.plan import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode, ends, successors
from ferryman.routers import Router

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
