"""Changes of a plan since its last run: in its structure, its steps' code, its targets."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from ferryman.plan.fingerprint import code_of
from ferryman.plan.nodes import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode
from ferryman.plan.plan import Plan
from ferryman.plan.reach import PACKAGE, PYTHON, reach_of


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as a state stores it.

    Attributes:
        type: class of its source, router or destination; "" for a step.
        code: hash of the code and parameters of a step or router; "" for the others.
        target: the place that a destination writes to.
        reaches: facts of what the code of a step or router reaches, see ``plan.reach``; None: it was recorded by a
            version of Ferryman that did not look.
    """

    kind: str
    type: str
    after: list[str]
    code: str = ""
    target: str | None = None
    reaches: dict[str, str] | None = None

    def changed_parts(self, now: NodeRecord) -> list[str]:
        """Return what has changed of the node's code since this record: ``CODE`` for its own, then what it reaches."""
        own = [CODE] if self.code != now.code else []
        if self.reaches is None or now.reaches is None:
            return own
        names = sorted(self.reaches.keys() | now.reaches.keys())
        return own + [name for name in names if self.reaches.get(name) != now.reaches.get(name)]


CODE: Final = "its code"

Structure = Mapping[str, NodeRecord]
"""Structure of a plan: name -> node."""


DELIVERED_KINDS: Final = ("destination", "tee", "keyed")
"""Kinds of nodes for which there are deliveries, and rows in the outbox."""


class Differences(NamedTuple):
    """Differences between two plans, a line each."""

    structure: list[str]
    code: list[str]
    """Names of the nodes whose code differs, with what it is that they reach that differs."""
    targets: list[str]


def structure(plan: Plan) -> dict[str, NodeRecord]:
    """Return the structure of a plan, which its state stores."""
    return {node.name: _record(node) for node in plan.nodes}


def changes(before: Structure, after: Structure) -> Differences:
    """Return the differences between two structures, as changes from ``before`` to ``after``."""
    differences = Differences([], [], [])
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None:
            assert new is not None
            differences.structure.append(f"{new.kind} {name} is new")
        elif new is None:
            differences.structure.append(f"{old.kind} {name} was removed")
        elif (old.kind, old.type) != (new.kind, new.type):
            differences.structure.append(f"{name} is {_describe(new)} now, it was {_describe(old)}")
        elif old.after != new.after:
            differences.structure.append(
                f"{name} follows {_join_names(new.after)} now, it followed {_join_names(old.after)}"
            )
        elif parts := old.changed_parts(new):
            differences.code.append(name + _describe_parts(old, new, parts))
        elif old.target != new.target:
            differences.targets.append(f"{name} writes to {new.target} now, it wrote to {old.target}")
    return differences


def changed_sources(before: Structure, after: Structure) -> list[str]:
    """Return the sources of both structures whose documents now take other paths, steps or destinations."""
    return [
        name
        for name, node in after.items()
        if node.kind in ("source", "join", "alts")
        and name in before
        and _have_changed(_subgraph_below(before, name), _subgraph_below(after, name))
    ]


def keyed_node_names(plan: Structure) -> set[str]:
    """Return the names of a plan's keyed nodes."""
    return {name for name, node in plan.items() if node.kind == "keyed"}


def reachable_destinations(plan: Structure, source: str) -> set[str]:
    """Return the destinations, tees and keyed nodes that a source's entries may reach."""
    below, waiting = set[str](), {source}
    while waiting:
        following = {name for name, node in plan.items() if waiting.intersection(node.after)} - below
        below |= following
        waiting = {name for name in following if plan[name].kind not in ("keyed", "join", "alts")}
    return {name for name in below if plan[name].kind in DELIVERED_KINDS}


def _subgraph_below(plan: Structure, source: str) -> dict[str, NodeRecord]:
    """Return the nodes that a source's documents can reach, with only the edges between them."""
    reached = {source}
    while more := {name for name, node in plan.items() if name not in reached and reached.intersection(node.after)}:
        reached |= more
    return {
        name: msgspec.structs.replace(plan[name], after=[a for a in plan[name].after if a in reached])
        for name in sorted(reached)
    }


def is_version(part: str) -> bool:
    """Return whether a changed part is the version of a package or of Python."""
    return part == PYTHON or part.startswith(PACKAGE)


def _have_changed(before: Structure, after: Structure) -> bool:
    """Return whether nodes are there in one structure only, or differ."""
    return before.keys() != after.keys() or any(
        old.changed_parts(after[name]) or _without_code(old) != _without_code(after[name])
        for name, old in before.items()
    )


def _without_code(node: NodeRecord) -> NodeRecord:
    return msgspec.structs.replace(node, code="", reaches=None)


def _describe_parts(old: NodeRecord, new: NodeRecord, parts: list[str]) -> str:
    """Return in brackets what it is that has changed, if it is more than the node's own code."""
    if parts == [CODE]:
        return ""
    before, now = old.reaches or {}, new.reaches or {}
    if PYTHON in parts:  # its code is other code there
        parts = [PYTHON]
    texts = [
        f"{name} {now.get(name, 'not used')} instead of {before.get(name, 'none')}" if is_version(name) else name
        for name in parts
    ]
    more = f" and {len(texts) - _MOST_PARTS} more" if len(texts) > _MOST_PARTS else ""
    return f" ({', '.join(texts[:_MOST_PARTS])}{more})"


_MOST_PARTS: Final = 5


def _record(node: Node) -> NodeRecord:
    after = list(node.after)
    match node:
        case JoinNode(source=port):
            return NodeRecord(node.kind, type(port).__name__, after, _hash(node), reaches=reach_of(node).facts)
        case SourceNode(source=port):
            return NodeRecord(node.kind, type(port).__name__, after)
        case StepNode():
            return NodeRecord(node.kind, "", after, _hash(node), reaches=reach_of(node).facts)
        case RouterNode(router=port):
            return NodeRecord(node.kind, type(port).__name__, after, _hash(node), reaches=reach_of(node).facts)
        case KeyedNode():
            return NodeRecord(node.kind, "", after, _hash(node), reaches=reach_of(node).facts)
        case DestinationNode(destination=port):
            return NodeRecord(node.kind, type(port).__name__, after, target=port.target())
    raise TypeError(f"{node!r} is not a node")


def _hash(node: StepNode | RouterNode | JoinNode | KeyedNode) -> str:
    h = blake2b(digest_size=8)
    for part in code_of(node):
        h.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return h.hexdigest()


def _describe(node: NodeRecord) -> str:
    return f"a {node.kind}" + (f" ({node.type})" if node.type else "")


def _join_names(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
