"""A plan as a dict, for programs."""

from __future__ import annotations

from typing import Any

from ferryman.plan.fingerprint import fingerprint
from ferryman.plan.flow import Flow
from ferryman.plan.picture.joined import Drawable
from ferryman.plan.picture.sketch import Pictured
from ferryman.plan.picture.words import options, type_name


def as_json(what: Drawable) -> dict[str, Any]:
    """``{"plan", "version", "fingerprint", "nodes": [{"name", "kind", "after", "type", …}]}``, in order of making.

    Of a flow ``{"flow", "plans": {NAME: …}, "joints": [{"target", "writer", "destination", "reader", "source"}]}``, the
    plans in the order of their turns.
    """
    if isinstance(what, Flow):
        return {
            "flow": what.name,
            "plans": {what.label(plan): _of_plan(plan) for plan in what.order},
            "joints": [joint._asdict() for joint in what.joints],
        }
    return _of_plan(what)


def _of_plan(plan: Pictured) -> dict[str, Any]:
    return {
        "plan": plan.name,
        "version": plan.version,
        "fingerprint": fingerprint(plan.nodes),
        "nodes": [
            {"name": n.name, "kind": n.kind, "after": list(n.after), "type": type_name(n), **options(n)}
            for n in plan.nodes
        ],
    }
