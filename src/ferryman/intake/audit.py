"""Holding a live queue against its layout, and fixing what can be fixed without a doubt.

Two readings are compared: a queue in use changes while it is read, and what only one of them shows is not a finding.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from ferryman.intake.dump import TOPS
from ferryman.intake.layout import Nodes, Problem, problems
from ferryman.intake.nodes import parent_of
from ferryman.intake.store import Conflict
from ferryman.intake.tree import NodeTree

FAIL_AFTER_S: Final = 3600.0
"""What is younger than an hour may be somebody's work of this moment, or of a morning: a warning."""


class AuditFinding(NamedTuple):
    """A node that is not as the layout says."""

    path: str
    rule: str
    age_s: float
    """How long ago the node was changed last."""
    level: Literal["WARN", "FAIL"]
    text: str


def audit(tree: NodeTree, *, repair: bool = False) -> list[AuditFinding]:
    """All findings, by path. ``repair``: what can be fixed is, each in one commit; the text says so."""
    before = problems(_read(tree), tree.clock())
    if not before:
        return []
    again = _read(tree)
    known = {(problem.path, problem.rule, problem.text) for problem in before}
    found = []
    for problem in problems(again, tree.clock()):
        if (problem.path, problem.rule, problem.text) in known:
            found.append(_dated(tree, problem, again, repair=repair))
    return sorted(found)


def _read(tree: NodeTree) -> Nodes:
    return {path: node for top in TOPS for path, node in tree.store.walk(top)}


def _dated(tree: NodeTree, problem: Problem, found: Nodes, *, repair: bool) -> AuditFinding:
    near = [found.get(path) for path in (problem.path, f"{problem.path}/status")]
    above = found.get(parent_of(problem.path))
    changed = [node.modified_s for node in near if node] or ([above.modified_s] if above else [])
    age = max(0.0, tree.clock() - max(changed)) if changed else 0.0
    text = problem.text
    if repair and problem.mend:
        try:
            tree.commit(list(problem.mend))
            text += " Repaired."
        except Conflict as e:
            text += f" Not repaired: {e}: it changes at this moment. Audit again."
    return AuditFinding(problem.path, problem.rule, age, "FAIL" if age >= FAIL_AFTER_S else "WARN", text)
