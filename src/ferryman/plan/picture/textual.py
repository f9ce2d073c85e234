"""Descriptions of nodes, and the pictures made of text: JSON, Mermaid, a tree.

Descriptions are the same in every picture. They contain no secrets, and making them never fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ferryman.destinations.base import Destination, Effect
from ferryman.plan.fingerprint import fingerprint
from ferryman.plan.nodes import AltsNode, DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode
from ferryman.plan.paths import Joint, successors
from ferryman.routers import Router
from ferryman.sources.base import Source


def type_name(node: Node) -> str:
    """Return the class name of a source, router or destination, or the name of a step's function."""
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
    """Return a node's options as JSON values; {} for an object of a wrong type (``plan.source("a", "a folder")``)."""
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
    """Return the node's effect outside when it is repeated; None where it states none."""
    if isinstance(node, DestinationNode):
        effect = getattr(node.destination, "effect", None)
        return effect if isinstance(effect, Effect) else None
    return node.effect if isinstance(node, StepNode) else Effect.SAFE


def facts(node: Node) -> list[str]:
    """Return facts about a node besides its name and kind, the most important first."""
    values, words = options(node), [type_name(node)]
    if not values:
        return words
    match node:
        case JoinNode() | AltsNode():
            words = [f"{type_name(node)}, of {' and '.join(node.after)}"]
        case SourceNode():
            words += [values["place"]] if values["place"] else []
            words += [f"ids begin with {values['prefix']}"] if values["prefix"] else []
            words += [f"detect={values['detect']}"] if values["detect"] != "content" else []
        case StepNode():
            words += [values["effect"]] if node.effect is not Effect.SAFE else []
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
            words += [f"by {values['key']}"]
        case DestinationNode():
            words += [values["target"]] if values["target"] else []
            words += ["potent"] if values["effect"] == Effect.POTENT.value else []
            words += [
                values["guarantee"],
                f"{values['attempts']} {'attempt' if values['attempts'] == 1 else 'attempts'}",
            ]
            words += [] if values["deletes"] else ["ignores deletes"]
            words += ["gets what failed"] if node.errors else []
    return words


def describe(node: Node) -> str:
    """Describe a node in one line."""
    return ", ".join(facts(node))


def branch_label(before: Node, branch: Node) -> str:
    """Return the condition for a document to take this edge, such as ``kind = com``; "" if there is nothing to say."""
    if isinstance(before, RouterNode) and isinstance(before.router, Router):
        return before.router.label(branch.name)
    return ""


def _place(source: Source) -> str | None:
    """Return where a source reads; None if its own code raises."""
    try:
        return source.place()
    except Exception:
        return None


def _target(destination: Destination) -> str | None:
    """Return where a destination writes; None if its own code raises: a run reports that."""
    try:
        return destination.target()
    except Exception:
        return None


# JSON, for programs.


def as_json(what: Drawable) -> dict[str, Any]:
    """``{"plan", "version", "fingerprint", "nodes": [{"name", "kind", "after", "type", …}]}``, in order of making.

    Of a flow ``{"flow", "plans": {NAME: …}, "joints": [{"target", "writer", "destination", "reader", "source"}]}``, the
    plans in the order of their turns.
    """
    if not isinstance(what, PlanView):
        return {
            "flow": what.name,
            "plans": {what.label(plan): _plan_json(plan) for plan in what.order},
            "joints": [joint._asdict() for joint in what.joints],
        }
    return _plan_json(what)


def _plan_json(plan: PlanView) -> dict[str, Any]:
    return {
        "plan": plan.name,
        "version": plan.version,
        "fingerprint": fingerprint(plan.nodes),
        "nodes": [
            {"name": n.name, "kind": n.kind, "after": list(n.after), "type": type_name(n), **options(n)}
            for n in plan.nodes
        ],
    }


# Boxes and edges, which the drawn pictures share.
#
# An invalid plan is drawn too: there is a box for every node, one for every unknown name in an ``after``, and an edge
# for every name in an ``after``. If several nodes have one name, edges leave the first of them.

MISSING = "missing"
"""Kind and look of an unknown name that a node follows."""


@runtime_checkable
class PlanView(Protocol):
    """Parts of a ``Plan`` that a picture needs, which this package does not import, since a plan can draw itself."""

    name: str
    version: int

    @property
    def strategy(self) -> str | None: ...

    @property
    def nodes(self) -> Sequence[Node]: ...


class FlowView(Protocol):
    """Parts of a ``Flow`` that a picture needs; this package does not import that class either."""

    name: str

    @property
    def plans(self) -> Sequence[PlanView]: ...

    @property
    def order(self) -> Sequence[PlanView]: ...

    @property
    def joints(self) -> Sequence[Joint]: ...

    def label(self, plan: Any, /) -> str: ...


class Box(NamedTuple):
    """A node to be drawn."""

    name: str
    kind: str
    """Determines the shape."""
    look: str
    """Determines the colour: ``source``, ``router``, or the effect: ``safe``, ``idempotent``, ``potent``."""
    facts: tuple[str, ...]


class Edge(NamedTuple):
    """An edge between two boxes, given by their numbers."""

    start: int
    end: int
    label: str
    one_of_several: bool
    """Whether a document takes this edge or another one, not all."""


class Sketch(NamedTuple):
    boxes: list[Box]
    edges: list[Edge]


def sketch(nodes: Sequence[Node]) -> Sketch:
    """Return boxes in plan order, then boxes of unknown names; edges in the order of their ends."""
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
            edges.append(Edge(start, number, label, _picks_one_branch(before)))
    return Sketch(boxes, edges)


def _look(node: Node) -> str:
    if node.kind in ("join", "alts"):
        return "router"
    if node.kind in ("source", "router"):
        return node.kind
    return (effect_of(node) or Effect.SAFE).value


def _picks_one_branch(node: Node | None) -> bool:
    return isinstance(node, RouterNode) and isinstance(node.router, Router) and not node.router.copies


# Mermaid flowchart, which GitHub, GitLab and many editors draw.

SHAPES = {  # text to the left and right of a label
    "source": ("([", "])"),
    "step": ("[", "]"),
    "router": ("{{", "}}"),
    "join": ("{{", "}}"),
    "alts": ("{{", "}}"),
    "tee": ("[/", "/]"),
    "destination": ("[(", ")]"),
    MISSING: (">", "]"),
}

LOOKS = {  # fill and text are both given, so that dark windows cannot pair one with their own
    "source": "fill:#dbeafe,stroke:#1d4ed8,color:#172554",
    "router": "fill:#ede9fe,stroke:#6d28d9,color:#2e1065",
    "safe": "fill:#f1f5f9,stroke:#475569,color:#0f172a",
    "idempotent": "fill:#dcfce7,stroke:#15803d,color:#052e16",
    "potent": "fill:#ffedd5,stroke:#c2410c,color:#431407",
    MISSING: "fill:#fee2e2,stroke:#b91c1c,color:#450a0a,stroke-dasharray:4 3",
}


def mermaid(what: Drawable) -> str:
    """Return the flowchart's text, for a block that begins with three backticks and ``mermaid``.

    Edges from a router that chooses are dashed: a document takes one of them.
    """
    return "\n".join(_lines(what))


def _lines(what: Drawable) -> Iterator[str]:
    (boxes, edges), title = titled_sketch(what)
    yield "flowchart TD"
    yield f"    %% {_escape(title)}"
    for number, box in enumerate(boxes):
        left, right = SHAPES[box.kind]
        yield f'    n{number}{left}"{_label(box)}"{right}:::{box.look}'
    for edge in edges:
        arrow = "-.->" if edge.one_of_several else "-->"
        label = f'|"{_escape(edge.label)}"|' if edge.label else ""
        yield f"    n{edge.start} {arrow}{label} n{edge.end}"
    for look in dict.fromkeys(box.look for box in boxes):
        yield f"    classDef {look} {LOOKS[look]}"


def _label(box: Box) -> str:
    type_name, *rest = box.facts
    lines = [_escape(box.name), f"{box.kind}: {_escape(type_name)}", *map(_escape, rest)]
    return "<br/>".join(lines)


def _escape(text: str) -> str:
    """Escape all but letters, digits and harmless characters as Mermaid's entities (``#34;``)."""
    return re.sub(r"[^\w .,=:/-]|[^\S ]|^-|^\d(?=\d*[.])", lambda match: f"#{_code(match[0])};", text)


HIDDEN = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
"""Characters without width, and those that turn the direction of text, as in a regular expression's brackets."""


def _code(character: str) -> int:
    """Return a character's code; for hidden and control characters and surrogates that of the replacement character."""
    return 0xFFFD if re.match(rf"[\x00-\x1f\x7f-\x9f\ud800-\udfff{HIDDEN}]", character) else ord(character)


# Boxes and edges of a flow: those of all its plans, and an edge wherever one plan reads what another writes.

Drawable = PlanView | FlowView
"""Argument of every picture."""


class TitledSketch(NamedTuple):
    """A sketch and its title."""

    sketch: Sketch
    title: str


def titled_sketch(what: Drawable) -> TitledSketch:
    """Return boxes, edges and a title. In a flow boxes are named ``plan/node``, and plans are in the order of their
    turns."""
    if isinstance(what, PlanView):
        return TitledSketch(sketch(what.nodes), title_of(what))
    merged = Sketch([], [])
    numbers: dict[tuple[str, str], int] = {}
    for plan in what.order:
        label, first = what.label(plan), len(merged.boxes)
        boxes, edges = sketch(plan.nodes)
        for box in boxes:
            numbers.setdefault((label, box.name), len(merged.boxes))
            merged.boxes.append(box._replace(name=box_name(label, box.name)))
        merged.edges.extend(edge._replace(start=edge.start + first, end=edge.end + first) for edge in edges)
    for joint in what.joints:
        start, end = numbers[joint.writer, joint.destination], numbers[joint.reader, joint.source]
        merged.edges.append(Edge(start, end, queue_name(joint), False))
    return TitledSketch(merged, title_of(what))


def title_of(what: Drawable) -> str:
    """Return a title: ``plan plays, version 1``; ``plan bills, version 2, at-most-once``; ``flow shop, 2 plans``."""
    if isinstance(what, PlanView):
        return f"plan {what.name}, version {what.version}" + (f", {what.strategy}" if what.strategy else "")
    return f"flow {what.name}, {'1 plan' if len(what.plans) == 1 else f'{len(what.plans)} plans'}"


def box_name(plan: str, node: str) -> str:
    """Return the name of a node's box in the picture of a flow."""
    return f"{plan}/{node}"


def queue_name(joint: Joint) -> str:
    """Return a queue's name without its folder, which the box of the writer shows."""
    return joint.target.rstrip("/").rpartition("/")[2]


# Tree of lines, for a terminal.


def text(what: Drawable) -> str:
    """Draw a tree from each source; a node with several predecessors is drawn once and then referred to.

    A plan that ``check`` would refuse is drawn too: nodes that no source leads to come at the end. For a flow, draw all
    plans in the order of their turns, then the links between them.
    """
    if isinstance(what, PlanView):
        return _tree(what)
    joints = [f"{j.writer} ({j.destination}) → {j.reader} ({j.source}): {j.target}" for j in what.joints]
    parts = [title_of(what), *map(_tree, what.order), "\n".join(["joined by", "", *(joints or ["nothing"])])]
    return "\n\n".join(parts)


def _tree(plan: PlanView) -> str:
    rows = list(_rows(plan))
    label_width = max((len(label) for label, _, _ in rows), default=0)
    kind_width = max((len(kind) for _, kind, _ in rows), default=0)
    lines = [f"{label:<{label_width}}  {kind:<{kind_width}}  {what}".rstrip() for label, kind, what in rows]
    return "\n".join([title_of(plan), "", *lines])


def _rows(plan: PlanView) -> Iterator[tuple[str, str, str]]:
    """Yield (label with its branches, kind, description) for each line."""
    drawn: set[int] = set()
    for node in plan.nodes:
        if isinstance(node, SourceNode) and id(node) not in drawn:
            yield from _tree_rows(node, plan, drawn)
    for node in plan.nodes:
        if id(node) not in drawn:
            errors = isinstance(node, DestinationNode) and node.errors
            after = "" if errors else f"; after {', '.join(node.after) or 'nothing'}"
            yield node.name, node.kind, f"{describe(node)}{after}"


def _tree_rows(source: Node, plan: PlanView, drawn: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yield the lines of a source and its successors. Iterative, because a path may be longer than Python's stack."""
    following = successors(plan.nodes)
    known = {n.name for n in plan.nodes}
    waiting: list[tuple[Node, str, str, str]] = [(source, "", "", "")]
    while waiting:
        node, stem, indent, when = waiting.pop()
        if id(node) in drawn:
            yield f"{stem}{node.name}", "(above)", when
            continue
        drawn.add(id(node))
        missing = [f"after {name}, which is not in the plan" for name in node.after if name not in known]
        yield f"{stem}{node.name}", node.kind, "; ".join(filter(None, [describe(node), when, *missing]))
        after = following.get(node.name, [])
        for child in reversed(after):
            last = child is after[-1]
            label = branch_label(node, child)
            waiting.append(
                (
                    child,
                    indent + ("└─ " if last else "├─ "),
                    indent + ("   " if last else "│  "),
                    f"branch: {label}" if label else "",
                )
            )
