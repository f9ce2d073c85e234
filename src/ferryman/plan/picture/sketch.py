"""A plan as boxes and edges: what the drawn pictures have in common.

Whatever is wrong with the plan, it has a box for every node, one for every name that is followed and not there, and an
edge for every name in an ``after``. Where several nodes have one name, edges leave the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ferryman.destinations.base import Effect
from ferryman.plan.nodes import Node, RouterNode
from ferryman.plan.picture.words import branch_label, effect_of, facts
from ferryman.routers.base import Router

MISSING = "missing"
"""Kind and look of a name that is followed and not in the plan."""


class Pictured(Protocol):
    """What a picture shows: a ``Plan``, which this package does not import, for a plan can draw itself."""

    name: str
    version: int

    @property
    def strategy(self) -> str | None: ...

    @property
    def nodes(self) -> Sequence[Node]: ...


class Box(NamedTuple):
    """A node to be drawn."""

    name: str
    kind: str
    """Decides the shape."""
    look: str
    """Decides the colour: ``source``, ``router``, or what repeating it does: ``safe``, ``idempotent``, ``potent``."""
    facts: tuple[str, ...]


class Edge(NamedTuple):
    """From one box to another, by their numbers."""

    start: int
    end: int
    label: str
    one_of_several: bool
    """The document takes this way or another one."""


class Sketch(NamedTuple):
    boxes: list[Box]
    edges: list[Edge]


def sketch(nodes: Sequence[Node]) -> Sketch:
    """Boxes in the order of the nodes' making, then those that are missing; edges in the order of their ends."""
    boxes = [Box(n.name, n.kind, _look(n), tuple(facts(n))) for n in nodes]
    numbers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        numbers.setdefault(node.name, number)
    edges = []
    for number, node in enumerate(nodes):
        for name in node.after:
            if name not in numbers:
                numbers[name] = len(boxes)
                boxes.append(Box(name, MISSING, MISSING, ("not in the plan",)))
            start = numbers[name]
            before = nodes[start] if start < len(nodes) else None
            label = branch_label(before, node) if before else ""
            edges.append(Edge(start, number, label, _chooses(before)))
    return Sketch(boxes, edges)


def _look(node: Node) -> str:
    if node.kind in ("join", "alts"):
        return "router"
    if node.kind in ("source", "router"):
        return node.kind
    return (effect_of(node) or Effect.SAFE).value


def _chooses(node: Node | None) -> bool:
    return isinstance(node, RouterNode) and isinstance(node.router, Router) and not node.router.copies
