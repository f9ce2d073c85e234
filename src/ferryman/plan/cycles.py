"""Nodes that follow each other in a ring, and the order of those that do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ferryman.plan.nodes import Node


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Nodes so that each comes after those it follows (Kahn); without those that are in a cycle, or behind one."""
    by_name = {n.name: n for n in nodes}
    waiting: dict[str, set[str]] = {}
    for node in nodes:  # several of one name are one here
        waiting.setdefault(node.name, set()).update(node.after)
    ordered: list[Node] = []
    while ready := [name for name, after in waiting.items() if not after]:
        for name in ready:
            del waiting[name]
            ordered.append(by_name[name])
        for after in waiting.values():
            after.difference_update(ready)
    return ordered


def cycles(nodes: Sequence[Node]) -> list[list[str]]:
    """Rings of names, each from its first node on the way that documents take. Any plan may be given.

    Every edge that closes a ring is in one of them: no more come to light when these are opened one by one.
    """
    ordered = {n.name for n in in_order(nodes)}
    names = list(dict.fromkeys(n.name for n in nodes if n.name not in ordered))
    following: dict[str, dict[str, None]] = {name: {} for name in names}
    for node in nodes:
        for name in node.after:
            if name in following and node.name in following:
                following[name][node.name] = None
    told: set[tuple[str, str]] = set()
    rings = []
    for start, ends in following.items():
        for end in ends:
            if (start, end) not in told and (back := _shortest(end, start, following)):
                told.update(zip([start, *back], back, strict=False))
                first = min(range(len(back)), key=lambda at, back=back: names.index(back[at]))  # type: ignore[misc]
                rings.append(back[first:] + back[:first])
    return rings


def _shortest(start: str, end: str, following: Mapping[str, Mapping[str, None]]) -> list[str]:
    """Names from ``start`` to ``end``, both among them; [] if there is no way."""
    before: dict[str, str | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in before:
        at = waiting.popleft()
        for name in following[at]:
            if name not in before:
                before[name] = at
                waiting.append(name)
    way: list[str] = []
    step: str | None = end if end in before else None
    while step is not None:
        way.append(step)
        step = before[step]
    return way[::-1]
