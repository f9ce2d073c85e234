"""What a node is, in words; the same in every picture. No secrets are among them, and none of them can fail."""

from __future__ import annotations

from typing import Any

from ferryman.destinations.base import Destination, Effect
from ferryman.plan.keyed_nodes import KeyedNode
from ferryman.plan.nodes import AltsNode, DestinationNode, JoinNode, Node, RouterNode, SourceNode, StepNode
from ferryman.routers.base import Router
from ferryman.sources.base import Source


def type_name(node: Node) -> str:
    """The class of a source, a router or a destination, the name of a step's function."""
    match node:
        case JoinNode():
            return _name_of(node.fn)
        case AltsNode():
            return "in turns"
        case SourceNode():
            return type(node.source).__name__
        case KeyedNode():
            return _name_of(getattr(node.update, "combiner", node.update))
        case DestinationNode():
            return type(node.destination).__name__
        case RouterNode():
            return type(node.router).__name__
        case StepNode():
            return _name_of(node.fn)
    return type(node).__name__


def _name_of(fn: Any) -> str:
    fn = getattr(fn, "func", fn)  # functools.partial
    return str(getattr(fn, "__name__", type(fn).__name__))


def options(node: Node) -> dict[str, Any]:
    """JSON values; {} for what is not what its kind says (``plan.source("a", "a folder")``)."""
    match node:
        case JoinNode() | AltsNode():
            return {"inputs": list(node.after)}
        case SourceNode(source=Source() as source):
            return {
                "place": _place(source),
                "prefix": source.prefix,
                "detect": source.detect,
                "max_deleted": source.max_deleted,
            }
        case StepNode():
            called = {"batch": node.batch, "arrow": node.arrow, "concurrency": node.concurrency, "rate": node.rate}
            return {"effect": node.effect.value, "mutates": node.mutates, "timeout": node.timeout, **called}
        case RouterNode(router=Router() as router):
            return {"deterministic": router.deterministic, "copies": router.copies}
        case KeyedNode():
            key = _name_of(node.key) if callable(node.key) else node.key
            return {"key": key, "buckets": node.buckets, "attempts": node.policy.attempts}
        case DestinationNode(destination=Destination() as destination, policy=policy):
            effect = effect_of(node)
            return {
                "target": _target(destination),
                "effect": effect.value if effect else None,
                "guarantee": policy.guarantee.value,
                "attempts": policy.attempts,
                "batch": policy.batch,
                "deletes": policy.deletes,
            }
    return {}


def effect_of(node: Node) -> Effect | None:
    """What repeating it does outside; None where it does not say."""
    if isinstance(node, DestinationNode):
        found = getattr(node.destination, "effect", None)
        return found if isinstance(found, Effect) else None
    return node.effect if isinstance(node, StepNode) else Effect.SAFE


def facts(node: Node) -> list[str]:
    """What there is to say about a node beside its name and kind, the most important first."""
    told, words = options(node), [type_name(node)]
    if not told:
        return words
    match node:
        case JoinNode() | AltsNode():
            words = [f"{type_name(node)}, of {' and '.join(node.after)}"]
        case SourceNode():
            words += [told["place"]] if told["place"] else []
            words += [f"ids begin with {told['prefix']}"] if told["prefix"] else []
            words += [f"detect={told['detect']}"] if told["detect"] != "content" else []
        case StepNode():
            words += [told["effect"]] if node.effect is not Effect.SAFE else []
            words += [] if node.mutates else ["leaves the document as it is"]
            words += ["record batches"] if node.arrow else []
            words += [f"batches of {node.rows}"] if node.in_batches else []
            words += [f"{node.concurrency} calls at once"] if node.concurrency != 1 else []
            words += [f"{node.rate}/s" if isinstance(node.rate, (int, float)) else str(node.rate)] if node.rate else []
            words += [f"timeout {node.timeout:g} s"] if isinstance(node.timeout, (int, float)) and node.timeout else []
        case RouterNode():
            words += ["a copy down each branch" if node.router.copies else "one branch"]
            words += [] if node.router.deterministic else ["not deterministic"]
        case KeyedNode():
            words += [f"by {told['key']}"]
        case DestinationNode():
            words += [told["target"]] if told["target"] else []
            words += ["potent"] if told["effect"] == Effect.POTENT.value else []
            words += [told["guarantee"], f"{told['attempts']} {'attempt' if told['attempts'] == 1 else 'attempts'}"]
            words += [] if told["deletes"] else ["ignores deletes"]
            words += ["gets what failed"] if node.errors else []
    return words


def what(node: Node) -> str:
    """One line about a node."""
    return ", ".join(facts(node))


def branch_label(before: Node, branch: Node) -> str:
    """When a document takes this edge: ``kind = com``; "" where there is nothing to say."""
    if isinstance(before, RouterNode) and isinstance(before.router, Router):
        return before.router.label(branch.name)
    return ""


def _place(source: Source) -> str | None:
    """Other people's code, too."""
    try:
        return source.place()
    except Exception:
        return None


def _target(destination: Destination) -> str | None:
    """Other people's code: a URL that cannot be read is for the run to refuse."""
    try:
        return destination.target()
    except Exception:
        return None
