"""Picture of a plan or a flow with what its ledger counts: in its boxes, and on the edges where that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferryman import account
from ferryman.limits import format_count, plural
from ferryman.plan import Flow, Plan, SourceNode
from ferryman.plan.picture import BoxCounts, box_name, svg
from ferryman.state.state import IDENTITY
from ferryman.storage import files
from ferryman.storage.files import StatePath

_GOOD: Final = ("delivered", "deleted", "dropped")
_BAD: Final = ("failed", "rejected", "in_doubt", "pending")


def svg_with_counts(
    plan: Plan | Flow,
    states: Mapping[str, tuple[Plan, StatePath]],
    statuses: Mapping[str, Mapping[str, Any]],
    by_node: Mapping[str, Mapping[str, int]] | None = None,
) -> str:
    """Draw the plan or flow as SVG, with counts of deliveries in its boxes.

    Args:
        states: the plan, or those of a flow, by name, with the roots of their states.
        statuses: status of each plan, as ``ferryman status --json`` shows it.
        by_node: the result of ``account.by_node`` for a single plan; None: ask for it.
    """
    boxes: dict[str, BoxCounts] = {}
    edges: dict[tuple[str, str], str] = {}
    for name, (each, root) in states.items():
        prefix = (lambda node, name=name: box_name(name, node)) if isinstance(plan, Flow) else str
        for node, counts in box_counts(each, root, statuses[name], by_node).items():
            boxes[prefix(node)] = counts
        for (start, end), text in _edge_counts(each, statuses[name]):
            edges[prefix(start), prefix(end)] = text
    waves = plural(sum(status["waves"] for status in statuses.values()), "wave", "waves")
    balanced = all(status["balanced"] for status in statuses.values())
    ran = any(files.exists(root / IDENTITY) for _, root in states.values())
    words = f"{waves}, {'balanced' if balanced else 'NOT BALANCED'}" if ran else "nothing has run yet"
    return svg(plan, boxes, words, edges)


def box_counts(
    plan: Plan, root: StatePath, status: Mapping[str, Any], by_node: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, BoxCounts]:
    """Return node -> the counts in its box."""
    boxes = {name: _delivery_counts(numbers) for name, numbers in status["destinations"].items()}
    boxes |= {name: _source_counts(numbers) for name, numbers in status["sources"].items()}
    if files.exists(root / IDENTITY):
        found = account.by_node(root, plan) if by_node is None else by_node
        boxes |= {name: _delivery_counts(numbers) for name, numbers in found.items()}
    return boxes


def _edge_counts(plan: Plan, status: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (start, end) -> how many documents or deliveries took an edge, where the ledger knows: behind a source, and
    before a destination that one node alone leads to."""
    for node in plan.nodes:
        numbers = status["destinations"].get(node.name)
        if numbers is not None and len(node.after) == 1 and not isinstance(node, SourceNode):
            yield (node.after[0], node.name), format_count(sum(numbers.values()))
            continue
        for before in node.after:
            if (read := status["sources"].get(before)) is not None:
                yield (before, node.name), format_count(read["read"] if "lag" in read else read["documents"])


def _source_counts(numbers: Mapping[str, int]) -> BoxCounts:
    if "lag" in numbers:
        to_come = "" if not numbers["lag"] else f", {format_count(numbers['lag'])} to come"
        return BoxCounts(f"{format_count(numbers['read'])} read{to_come}")
    deleted = f", {format_count(numbers['deleted'])} deleted" if numbers["deleted"] else ""
    return BoxCounts(plural(numbers["documents"], "document", "documents") + deleted)


def _delivery_counts(numbers: Mapping[str, int]) -> BoxCounts:
    return BoxCounts(_describe_counts(numbers, _GOOD), _describe_counts(numbers, _BAD))


def _describe_counts(numbers: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{format_count(n)} {name.replace('_', ' ')}" for name in names if (n := numbers.get(name, 0)))
