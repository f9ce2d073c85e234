"""The picture of a plan, or of a flow, with what became of the documents in each box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferryman.observe.progress import counted, plural
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.plan import Plan
    from ferryman.plan.load import Runnable
    from ferryman.plan.picture import BoxCounts

_GOOD: Final = ("delivered", "deleted", "dropped")
_BAD: Final = ("failed", "rejected", "in_doubt", "pending")


def svg_with_counts(
    plan: Runnable, states: Mapping[str, tuple[Plan, StatePath]], statuses: Mapping[str, Mapping[str, Any]]
) -> str:
    """The picture.

    Args:
        states: the plan, or those of a flow, by name, with the roots of their states.
        statuses: of each, as ``ferryman status --json`` shows it.
    """
    from ferryman.cli.options import has_run
    from ferryman.plan import Flow, picture

    boxes: dict[str, BoxCounts] = {}
    for name, (each, root) in states.items():
        for node, counts in _boxes(each, root, statuses[name]).items():
            boxes[picture.box_name(name, node) if isinstance(plan, Flow) else node] = counts
    waves = plural(sum(status["waves"] for status in statuses.values()), "wave", "waves")
    balanced = all(status["balanced"] for status in statuses.values())
    ran = any(has_run(root) for _, root in states.values())
    words = f"{waves}, {'balanced' if balanced else 'NOT BALANCED'}" if ran else "nothing has run yet"
    return picture.svg(plan, boxes, words)


def _boxes(plan: Plan, root: StatePath, status: Mapping[str, Any]) -> dict[str, BoxCounts]:
    """What stands in the boxes of a plan, by node."""
    from ferryman import account
    from ferryman.cli.options import has_run

    boxes = {name: _counts(numbers) for name, numbers in status["destinations"].items()}
    boxes |= {name: _of_source(numbers) for name, numbers in status["sources"].items()}
    if has_run(root):
        boxes |= {name: _counts(numbers) for name, numbers in account.by_node(root, plan).items()}
    return boxes


def _of_source(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    if "lag" in numbers:
        waiting = "" if not numbers["lag"] else f", {counted(numbers['lag'])} to come"
        return BoxCounts(f"{counted(numbers['read'])} read{waiting}")
    deleted = f", {counted(numbers['deleted'])} deleted" if numbers["deleted"] else ""
    return BoxCounts(plural(numbers["documents"], "document", "documents") + deleted)


def _counts(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    return BoxCounts(_words(numbers, _GOOD), _words(numbers, _BAD))


def _words(numbers: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counted(n)} {name.replace('_', ' ')}" for name in names if (n := numbers.get(name, 0)))
