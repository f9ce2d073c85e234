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


def keyed_findings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the faults of a plan's keyed nodes, each with its remedy."""
    keyed = keyed_nodes(nodes)
    for node in keyed:
        yield from _option_findings(node)
        changeable = [s.name for s in upstream_sources(node, nodes) if not isinstance(s.source, Log)]
        if changeable and isinstance(node.update, Combining) and node.update.inverse is None:
            yield (
                f"{node.name}: documents of {', '.join(changeable)} may change or vanish, and what they added has "
                "to be taken back then: give inverse=, a function that makes of a value the one that undoes it."
            )


def _option_findings(node: KeyedNode) -> Iterator[str]:
    if isinstance(node.update, Combining):
        yield from _combining_findings(node.name, node.update)
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


def _combining_findings(name: str, combining: Combining) -> Iterator[str]:
    if not callable(combining.combiner):
        yield f"{name}: {combining.combiner!r} is not a function: give the combiner itself, without calling it."
    if combining.value is not None and not callable(combining.value) and not isinstance(combining.value, str):
        yield f"{name}: value={combining.value!r}: give the name of a field, or a function of the document."


def converging_copy_findings(
    nodes: Sequence[Node], reached: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]
) -> Iterator[str]:
    """Yield a finding for each keyed node that several copies of one changeable document reach. The plan must be valid
    otherwise.

    Args:
        reached: the destinations that documents reach from each node, see ``paths.ends``.
    """
    for node in keyed_nodes(nodes):
        for source in upstream_sources(node, nodes):
            routes = [route for name, route in reached[source.entry] if name == node.name]
            if len(routes) > 1 and not isinstance(source.source, Log):
                yield (
                    f"{node.name}: copies of one document of {source.name} come here by several routes, and their "
                    "changes could not be told apart: put it before the router, or a keyed node into each branch."
                )


def read_once_sources(nodes: Sequence[Node]) -> set[str]:
    """Return the sources whose entries must not be processed twice, since a key would count them twice: logs upstream
    of keyed nodes, and the exports of these nodes."""
    keyed = keyed_nodes(nodes)
    logs = {s.name for node in keyed for s in upstream_sources(node, nodes) if isinstance(s.source, Log)}
    return logs | {node.name for node in keyed}


def upstream_sources(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode]:
    """Return the sources whose documents reach this node without passing another keyed node."""
    return [each for each in _upstream(node, nodes) if isinstance(each, SourceNode)]


def upstream_keyed_nodes(node: KeyedNode, nodes: Sequence[Node]) -> set[str]:
    """Return the names of the keyed nodes whose exports reach this node without passing a third one."""
    return {each.name for each in _upstream(node, nodes) if isinstance(each, KeyedNode)}


def _upstream(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode | KeyedNode]:
    """Return the nearest sources and keyed nodes from which documents reach this node."""
    by_name = {n.name: n for n in nodes}
    seen: set[str] = set()
    waiting = [*node.after]
    upstream: list[SourceNode | KeyedNode] = []
    while waiting:
        name = waiting.pop()
        previous = by_name.get(name)
        if name in seen or previous is None:
            continue
        seen.add(name)
        if isinstance(previous, SourceNode | KeyedNode):
            upstream.append(previous)
        else:
            waiting += previous.after
    return upstream
