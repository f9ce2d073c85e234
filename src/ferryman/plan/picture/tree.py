"""A plan as a tree of lines, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ferryman.plan.flow import Flow
from ferryman.plan.nodes import DestinationNode, Node, SourceNode
from ferryman.plan.paths import successors
from ferryman.plan.picture.joined import Drawable, title_of
from ferryman.plan.picture.sketch import Pictured
from ferryman.plan.picture.words import branch_label, what


def text(what: Drawable) -> str:
    """A tree that begins at each source; a node that several nodes lead to is drawn once and then referred to.

    A plan that ``check`` would refuse is drawn too: what no source leads to stands at the end. Of a flow all plans, in
    the order of their turns, and then what joins them.
    """
    if not isinstance(what, Flow):
        return _tree(what)
    joints = [f"{j.writer} ({j.destination}) → {j.reader} ({j.source}): {j.target}" for j in what.joints]
    parts = [title_of(what), *map(_tree, what.order), "\n".join(["joined by", "", *(joints or ["nothing"])])]
    return "\n\n".join(parts)


def _tree(plan: Pictured) -> str:
    rows = list(_rows(plan))
    label_width = max((len(label) for label, _, _ in rows), default=0)
    kind_width = max((len(kind) for _, kind, _ in rows), default=0)
    lines = [f"{label:<{label_width}}  {kind:<{kind_width}}  {what}".rstrip() for label, kind, what in rows]
    return "\n".join([title_of(plan), "", *lines])


def _rows(plan: Pictured) -> Iterator[tuple[str, str, str]]:
    """(drawn label, kind, what it is) for each line."""
    drawn: set[int] = set()
    for node in plan.nodes:
        if isinstance(node, SourceNode) and id(node) not in drawn:
            yield from _below(node, plan, drawn)
    for node in plan.nodes:
        if id(node) not in drawn:
            errors = isinstance(node, DestinationNode) and node.errors
            after = "" if errors else f"; after {', '.join(node.after) or 'nothing'}"
            yield node.name, node.kind, f"{what(node)}{after}"


def _below(source: Node, plan: Pictured, drawn: set[int]) -> Iterator[tuple[str, str, str]]:
    """A source and what follows it. A loop, not a recursion: a path may be longer than Python's stack is deep."""
    following = successors(plan.nodes)
    known = {n.name for n in plan.nodes}
    waiting: list[tuple[Node, str, str, str]] = [(source, "", "", "")]
    while waiting:
        node, stem, indent, when = waiting.pop()
        if id(node) in drawn:
            yield f"{stem}{node.name}", "(above)", when
            continue
        drawn.add(id(node))
        lost = [f"after {name}, which is not in the plan" for name in node.after if name not in known]
        yield f"{stem}{node.name}", node.kind, "; ".join(filter(None, [what(node), when, *lost]))
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
