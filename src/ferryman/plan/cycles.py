"""Nodes that follow each other in a ring, also through a place outside; and the order of those that do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from ferryman import places
from ferryman.destinations.base import Destination
from ferryman.plan.nodes import DestinationNode, Node, SourceNode
from ferryman.sources.base import Source


class Linked(Protocol):
    """What may follow others: a node, a plan of a flow."""

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
    """What is in a ring, or behind one."""
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
