"""Checks of keyed nodes, and which sources feed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from ferryman import limits
from ferryman.plan.nodes import (
    Combining,
    KeyedNode,
    Node,
    SourceNode,
    keyed_nodes,
)
from ferryman.sources.log import Log


def bad_keyed(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the faults of a plan's keyed nodes, each with its remedy."""
    keyed = keyed_nodes(nodes)
    for node in keyed:
        yield from _bad_options(node)
        changeable = [s.name for s in sources_above(node, nodes) if not isinstance(s.source, Log)]
        if changeable and isinstance(node.update, Combining) and node.update.inverse is None:
            yield (
                f"{node.name}: documents of {', '.join(changeable)} may change or vanish, and what they added has "
                "to be taken back then: give inverse=, a function that makes of a value the one that undoes it."
            )


def _bad_options(node: KeyedNode) -> Iterator[str]:
    if isinstance(node.update, Combining):
        yield from _bad_combining(node.name, node.update)
    elif not callable(node.update):
        yield f"{node.name}: {node.update!r} is not a function: give update itself, without calling it."
    if not callable(node.key) and not (isinstance(node.key, str) and node.key):
        yield f"{node.name}: key={node.key!r}: give the name of a field, or a function of the document."
    for option, value in (("buckets", node.buckets), ("buffer_bytes", node.buffer_bytes)):
        if not isinstance(value, int) or value < 1:
            yield f"{node.name}: {option}={value!r}: give a whole number, 1 or more."
    if node.buckets > limits.KEY_BUCKETS_MAX:
        yield f"{node.name}: buckets={node.buckets}: give {limits.KEY_BUCKETS_MAX} at most."
    if node.timeout is not None and not (isinstance(node.timeout, (int, float)) and 0 < node.timeout < inf):
        yield f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out."
    if node.brake is not None and (not isinstance(node.brake, int) or node.brake < 1):
        yield f"{node.name}: brake={node.brake!r}: give a whole number, 1 or more, or None."


def _bad_combining(name: str, given: Combining) -> Iterator[str]:
    if not callable(given.combiner):
        yield f"{name}: {given.combiner!r} is not a function: give the combiner itself, without calling it."
    if given.value is not None and not callable(given.value) and not isinstance(given.value, str):
        yield f"{name}: value={given.value!r}: give the name of a field, or a function of the document."


def copies_meet(nodes: Sequence[Node], reached: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]) -> Iterator[str]:
    """Keyed nodes to which copies of one document come that may change; of a plan of which nothing else is wrong.

    Args:
        reached: see ``graph.ends``.
    """
    for node in keyed_nodes(nodes):
        for source in sources_above(node, nodes):
            routes = [route for name, route in reached[source.entry] if name == node.name]
            if len(routes) > 1 and not isinstance(source.source, Log):
                yield (
                    f"{node.name}: copies of one document of {source.name} come here by several routes, and their "
                    "changes could not be told apart: put it before the router, or a keyed node into each branch."
                )


def counted_once(nodes: Sequence[Node]) -> set[str]:
    """Sources of which nothing may be read again, for a key would count it twice: logs above keyed nodes, and what
    these export."""
    keyed = keyed_nodes(nodes)
    above = {s.name for node in keyed for s in sources_above(node, nodes) if isinstance(s.source, Log)}
    return above | {node.name for node in keyed}


def sources_above(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode]:
    """The sources of which documents come to this node as they are: not through another keyed node."""
    return [each for each in _fed_by(node, nodes) if isinstance(each, SourceNode)]


def keyed_above(node: KeyedNode, nodes: Sequence[Node]) -> set[str]:
    """Keyed nodes of which the exports come to this node: not through a third one."""
    return {each.name for each in _fed_by(node, nodes) if isinstance(each, KeyedNode)}


def _fed_by(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode | KeyedNode]:
    """Where what comes to this node begins."""
    by_name = {n.name: n for n in nodes}
    seen: set[str] = set()
    waiting = [*node.after]
    found: list[SourceNode | KeyedNode] = []
    while waiting:
        name = waiting.pop()
        before = by_name.get(name)
        if name in seen or before is None:
            continue
        seen.add(name)
        if isinstance(before, SourceNode | KeyedNode):
            found.append(before)
        else:
            waiting += before.after
    return found
