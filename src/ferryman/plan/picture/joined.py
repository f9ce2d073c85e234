"""A flow as one picture: the boxes of all its plans, and an edge wherever one plan reads what another one writes."""

from __future__ import annotations

from typing import NamedTuple

from ferryman.plan.flow import Flow, Joint
from ferryman.plan.picture.sketch import Edge, Pictured, Sketch, sketch

Drawable = Pictured | Flow
"""What can be drawn."""


class Titled(NamedTuple):
    """A sketch and what it is of."""

    sketch: Sketch
    title: str


def drawn(what: Drawable) -> Titled:
    """Boxes, edges and a title. In a flow boxes are called ``plan/node``; plans stand in the order of their turns."""
    if not isinstance(what, Flow):
        return Titled(sketch(what.nodes), title_of(what))
    found = Sketch([], [])
    numbers: dict[tuple[str, str], int] = {}
    for plan in what.order:
        label, first = what.label(plan), len(found.boxes)
        boxes, edges = sketch(plan.nodes)
        for box in boxes:
            numbers.setdefault((label, box.name), len(found.boxes))
            found.boxes.append(box._replace(name=box_name(label, box.name)))
        found.edges.extend(edge._replace(start=edge.start + first, end=edge.end + first) for edge in edges)
    for joint in what.joints:
        start, end = numbers[joint.writer, joint.destination], numbers[joint.reader, joint.source]
        found.edges.append(Edge(start, end, short_name(joint), False))
    return Titled(found, title_of(what))


def title_of(what: Drawable) -> str:
    """``plan plays, version 1``; ``plan bills, version 2, at-most-once``; ``flow shop, 2 plans``."""
    if not isinstance(what, Flow):
        return f"plan {what.name}, version {what.version}" + (f", {what.strategy}" if what.strategy else "")
    return f"flow {what.name}, {'1 plan' if len(what.plans) == 1 else f'{len(what.plans)} plans'}"


def box_name(plan: str, node: str) -> str:
    """What a node's box is called in the picture of a flow."""
    return f"{plan}/{node}"


def short_name(joint: Joint) -> str:
    """Of a queue, its name: the box that writes it has all of its place."""
    return joint.target.rstrip("/").rpartition("/")[2]
