"""The inputs of joins and alts: logs whose entries can be told apart."""

from __future__ import annotations

from collections.abc import Mapping

from ferryman.plan.nodes import AltsNode, JoinNode, Node, SourceNode
from ferryman.sources.log import Log


def bad_inputs(node: JoinNode | AltsNode, kinds: Mapping[str, Node]) -> list[str]:
    """What is wrong with them; ``kinds``: the plan's nodes by name."""
    found = []
    known: dict[tuple[str, str], str] = {}
    if len(node.after) < 2:
        found.append(f"{node.name}: has {len(node.after)} inputs: give two or more.")
    for name in node.after:
        source = kinds.get(name)
        if not isinstance(source, SourceNode) or not isinstance(source.source, Log) or source.after:
            found.append(f"{node.name}: its input {name} is not a log: give sources such as sources.Queue.")
        elif (place := source.source.place()) is not None:
            other = known.setdefault((place, source.source.prefix), name)
            if other != name:
                found.append(
                    f"{node.name}: its inputs {other} and {name} read the same log, so their entries have the same "
                    "ids: give one of them another prefix=."
                )
    return found
