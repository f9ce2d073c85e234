"""The judge of comparisons: what a target holds, compared with what it should hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Verdict(NamedTuple):
    """Numbers of ids at which a target differs from the truth.

    Attributes:
        missing: ids that the target does not have.
        stale: ids of which no row has the content of the truth.
        doubled: ids with more than one row; they may be stale, too.
        not_deleted: ids that the target has and the truth does not.
    """

    missing: int = 0
    stale: int = 0
    doubled: int = 0
    not_deleted: int = 0

    @property
    def right(self) -> bool:
        return not any(self)

    def __str__(self) -> str:
        wrong = [f"{count} {name.replace('_', ' ')}" for name, count in self._asdict().items() if count]
        return ", ".join(wrong) or "right"


def judge(truth: Mapping[str, str], rows: Iterable[tuple[str, str | None]]) -> Verdict:
    """Compare the rows of a target, pairs of id and content, with the truth, a content by id."""
    found: Counter[str] = Counter()
    current = set()
    for id, content in rows:
        found[id] += 1
        if truth.get(id) == content:
            current.add(id)
    there = found.keys() & truth.keys()
    return Verdict(
        missing=len(truth.keys() - found.keys()),
        stale=len(there - current),
        doubled=sum(found[id] > 1 for id in there),
        not_deleted=len(found.keys() - truth.keys()),
    )


def join_verdicts(verdicts: Iterable[object]) -> str:
    """Return the text of the verdicts of several rounds: once, if they agree."""
    return " / ".join(dict.fromkeys(map(str, verdicts)))
