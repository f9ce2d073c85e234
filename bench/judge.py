"""The judge of comparisons: what a target holds, compared with what it should hold."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple


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


def query_sqlite(file: Path, query: str) -> list[Any]:
    """Return a query's rows; none as long as a program has not made the file or the table."""
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as e:
            if "no such table" in str(e):
                return []
            raise
