"""Changes of a plan since its last run: in its structure, its steps' code, its targets."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from ferryman.plan.fingerprint import code_of
from ferryman.plan.nodes import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode
from ferryman.plan.plan import Plan


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as a state remembers it.

    Attributes:
        type: class of its source, router or destination; "" for a step.
        code: hash of what a step or a router does; "" for the others.
        target: where a destination writes to.
    """

    kind: str
    type: str
    after: list[str]
    code: str = ""
    target: str | None = None


Structure = Mapping[str, NodeRecord]
"""Name -> node."""


DELIVERED: Final = ("destination", "tee", "keyed")
"""Kinds of nodes for which there are deliveries, and rows in the outbox."""


class Differences(NamedTuple):
    """Differences between two plans, a line each."""

    structure: list[str]
    code: list[str]
    """Names of nodes."""
    targets: list[str]


def structure(plan: Plan) -> dict[str, NodeRecord]:
    """Return what a state stores about a plan."""
    return {node.name: _record(node) for node in plan.nodes}


def changes(before: Structure, after: Structure) -> Differences:
    """Return the changes from ``before`` to ``after``."""
    found = Differences([], [], [])
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None:
            assert new is not None
            found.structure.append(f"{new.kind} {name} is new")
        elif new is None:
            found.structure.append(f"{old.kind} {name} was removed")
        elif (old.kind, old.type) != (new.kind, new.type):
            found.structure.append(f"{name} is {_called(new)} now, it was {_called(old)}")
        elif old.after != new.after:
            found.structure.append(f"{name} follows {_list(new.after)} now, it followed {_list(old.after)}")
        elif old.code != new.code:
            found.code.append(name)
        elif old.target != new.target:
            found.targets.append(f"{name} writes to {new.target} now, it wrote to {old.target}")
    return found


def changed_sources(before: Structure, after: Structure) -> list[str]:
    """Sources that both have, and whose documents go another way now, or through other steps, or elsewhere."""
    return [
        name
        for name, node in after.items()
        if node.kind in ("source", "join", "alts") and name in before and _below(before, name) != _below(after, name)
    ]


def keyed_of(plan: Structure) -> set[str]:
    """The keyed nodes of a plan, by their names."""
    return {name for name, node in plan.items() if node.kind == "keyed"}


def reached(plan: Structure, source: str) -> set[str]:
    """The destinations, tees and keyed nodes that a source's entries may come to."""
    found, waiting = set[str](), {source}
    while waiting:
        following = {name for name, node in plan.items() if waiting.intersection(node.after)} - found
        found |= following
        waiting = {name for name in following if plan[name].kind not in ("keyed", "join", "alts")}
    return {name for name in found if plan[name].kind in DELIVERED}


def _below(plan: Structure, source: str) -> dict[str, NodeRecord]:
    """All that a source's documents can come to; edges from elsewhere are left out."""
    reached = {source}
    while more := {name for name, node in plan.items() if name not in reached and reached.intersection(node.after)}:
        reached |= more
    return {
        name: msgspec.structs.replace(plan[name], after=[a for a in plan[name].after if a in reached])
        for name in sorted(reached)
    }


def _record(node: Node) -> NodeRecord:
    after = list(node.after)
    match node:
        case JoinNode(source=what):
            return NodeRecord(node.kind, type(what).__name__, after, _hash(node))
        case SourceNode(source=what):
            return NodeRecord(node.kind, type(what).__name__, after)
        case StepNode():
            return NodeRecord(node.kind, "", after, _hash(node))
        case RouterNode(router=what):
            return NodeRecord(node.kind, type(what).__name__, after, _hash(node))
        case KeyedNode():
            return NodeRecord(node.kind, "", after, _hash(node))
        case DestinationNode(destination=what):
            return NodeRecord(node.kind, type(what).__name__, after, target=what.target())
    raise TypeError(f"{node!r} is not a node")


def _hash(node: StepNode | RouterNode | JoinNode | KeyedNode) -> str:
    h = blake2b(digest_size=8)
    for part in code_of(node):
        h.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return h.hexdigest()


def _called(node: NodeRecord) -> str:
    return f"a {node.kind}" + (f" ({node.type})" if node.type else "")


def _list(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
