"""A plan as a picture: text for people, a dict for programs. Drawn from the plan's data, so it cannot lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferryman.plan.graph import successors
from ferryman.plan.nodes import DestinationNode, Node, RouterNode, SourceNode, StepNode
from ferryman.plan.plan import Plan

KINDS: dict[type[Node], str] = {
    SourceNode: "source",
    StepNode: "step",
    RouterNode: "router",
    DestinationNode: "destination",
}


def text(plan: Plan) -> str:
    """A tree that begins at each source; a node that several nodes lead to is drawn once and then referred to.

    A plan that ``check`` would refuse is drawn too: what no source leads to stands at the end.
    """
    rows = list(_rows(plan))
    label_width = max((len(label) for label, _, _ in rows), default=0)
    kind_width = max((len(kind) for _, kind, _ in rows), default=0)
    lines = [f"{label:<{label_width}}  {kind:<{kind_width}}  {what}".rstrip() for label, kind, what in rows]
    return "\n".join([f"plan {plan.name}, version {plan.version}", "", *lines])


def as_json(plan: Plan) -> dict[str, Any]:
    """``{"plan", "version", "fingerprint", "nodes": [{"name", "kind", "after", "type", …}]}``, in order of making."""
    return {
        "plan": plan.name,
        "version": plan.version,
        "fingerprint": plan.fingerprint,
        "nodes": [
            {"name": n.name, "kind": kind(n), "after": list(n.after), "type": _type(n), **_options(n)}
            for n in plan.nodes
        ],
    }


def kind(node: Node) -> str:
    """``source``, ``step``, ``router``, ``tap``, ``destination``: a node's kind in the words of the glossary."""
    if isinstance(node, DestinationNode) and node.tap:
        return "tap"
    return KINDS.get(type(node), type(node).__name__.removesuffix("Node").lower())


def _rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """(drawn label, kind, what it is) for each line."""
    following = successors(plan.nodes)
    drawn: set[int] = set()

    def draw(node: Node, label: str, indent: str) -> Iterator[tuple[str, str, str]]:
        if id(node) in drawn:
            yield f"{label}{node.name}", "(above)", ""
            return
        drawn.add(id(node))
        yield f"{label}{node.name}", kind(node), _what(node)
        after = following.get(node.name, [])
        for nth, child in enumerate(after, 1):
            last = nth == len(after)
            yield from draw(child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))

    for node in plan.nodes:
        if isinstance(node, SourceNode):
            yield from draw(node, "", "")
    for node in plan.nodes:
        if id(node) not in drawn:
            drawn.add(id(node))
            yield node.name, kind(node), f"{_what(node)}; after {', '.join(node.after) or 'nothing'}"


def _type(node: Node) -> str:
    """The class of a source or destination, the name of a step's function."""
    match node:
        case SourceNode():
            return type(node.source).__name__
        case DestinationNode():
            return type(node.destination).__name__
        case RouterNode():
            return type(node.router).__name__
        case StepNode():
            fn = getattr(node.fn, "func", node.fn)  # functools.partial
            return str(getattr(fn, "__name__", type(fn).__name__))
    return type(node).__name__


def _options(node: Node) -> dict[str, Any]:
    match node:
        case SourceNode():
            return {
                "prefix": node.source.prefix,
                "detect": node.source.detect,
                "max_deleted": node.source.max_deleted,
            }
        case StepNode():
            return {"effect": node.effect.value, "mutates": node.mutates, "timeout": node.timeout}
        case RouterNode():
            return {"deterministic": node.router.deterministic, "copies": node.router.copies}
        case DestinationNode():
            policy = node.policy
            return {
                "target": node.destination.target(),
                "guarantee": policy.guarantee.value,
                "attempts": policy.attempts,
                "batch": policy.batch,
                "deletes": policy.deletes,
            }
    return {}


def _what(node: Node) -> str:
    """One line about a node, without secrets."""
    options = _options(node)
    words = [_type(node)]
    match node:
        case SourceNode():
            words += [f"ids begin with {options['prefix']}"] if options["prefix"] else []
            words += [f"detect={options['detect']}"] if options["detect"] != "content" else []
        case StepNode():
            words += [f"timeout {node.timeout:g} s"] if node.timeout else []
        case RouterNode():
            words += ["a copy down each branch" if node.router.copies else "one branch"]
            words += [] if node.router.deterministic else ["not deterministic"]
        case DestinationNode():
            words += [options["target"]] if options["target"] else []
            words += [options["guarantee"], f"{options['attempts']} attempts"]
            words += [] if options["deletes"] else ["keeps what has vanished"]
    return ", ".join(words)
