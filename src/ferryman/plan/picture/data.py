"""A plan as a dict, for programs."""

from __future__ import annotations

from typing import Any

from ferryman.plan.fingerprint import fingerprint
from ferryman.plan.picture.sketch import Pictured
from ferryman.plan.picture.words import options, type_name


def as_json(plan: Pictured) -> dict[str, Any]:
    """``{"plan", "version", "fingerprint", "nodes": [{"name", "kind", "after", "type", …}]}``, in order of making."""
    return {
        "plan": plan.name,
        "version": plan.version,
        "fingerprint": fingerprint(plan.nodes),
        "nodes": [
            {"name": n.name, "kind": n.kind, "after": list(n.after), "type": type_name(n), **options(n)}
            for n in plan.nodes
        ],
    }
