"""A plan's picture with what became of its documents in each box."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferryman.observe.progress import counted, plural

if TYPE_CHECKING:
    from ferryman.plan import Plan
    from ferryman.plan.picture import BoxCounts

_GOOD: Final = ("delivered", "deleted", "dropped")
_BAD: Final = ("failed", "rejected", "in_doubt", "pending")


def svg_with_counts(plan: Plan, root: Path, status: Mapping[str, Any]) -> str:
    """The picture. ``status``: as ``ferryman status --json`` shows it."""
    from ferryman import account
    from ferryman.cli.options import has_run
    from ferryman.plan import picture

    boxes = {name: _counts(numbers) for name, numbers in status["destinations"].items()}
    boxes |= {name: _of_source(numbers) for name, numbers in status["sources"].items()}
    ran = has_run(root)
    if ran:
        boxes |= {name: _counts(numbers) for name, numbers in account.by_node(root, plan).items()}
    waves = plural(status["waves"], "wave", "waves")
    words = f"{waves}, {'balanced' if status['balanced'] else 'NOT BALANCED'}" if ran else "nothing has run yet"
    return picture.svg(plan, boxes, words)


def _of_source(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    deleted = f", {counted(numbers['deleted'])} deleted" if numbers["deleted"] else ""
    return BoxCounts(plural(numbers["documents"], "document", "documents") + deleted)


def _counts(numbers: Mapping[str, int]) -> BoxCounts:
    from ferryman.plan.picture import BoxCounts

    return BoxCounts(_words(numbers, _GOOD), _words(numbers, _BAD))


def _words(numbers: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counted(n)} {name.replace('_', ' ')}" for name in names if (n := numbers.get(name, 0)))
