"""The cases of the matrix: what a plan is made of, where its state and its queues are, and on what it runs.

Features are often right alone and wrong together, so each case is one value of every axis. ``CASES`` has all that make
sense, ``pairs`` a few of them in which any two values that can meet do meet.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

AXES: Final[dict[str, tuple[str, ...]]] = {
    "source": ("memory", "files", "jsonlines", "dataframe", "queue", "changes"),
    "shape": ("line", "family", "route", "copies", "tee", "join", "alts", "keyed", "combine", "exports"),
    "mode": ("plain", "batch", "arrow", "threads", "async", "async batch", "rate"),
    "end": ("exactly", "least", "most", "sql", "queue", "errors"),
    "strategy": ("", "at-most-once"),
    "state": ("disk", "store"),
    "queues": ("disk", "store"),
    "remember": ("", "remembered"),
}
"""Axis -> its values."""

ALIKE: Final[dict[str, str]] = {
    **dict.fromkeys(("memory", "jsonlines", "dataframe"), "files"),
    "threads": "batch",
    "async": "async batch",
    "rate": "plain",
    **dict.fromkeys(("least", "sql"), "exactly"),
}
"""Values that meet others as another one does. Each of them is in one of the few cases at least."""

LOGS: Final = ("queue", "changes")
KEYED: Final = ("keyed", "combine", "exports")
SIDE_BY_SIDE: Final = ("batch", "arrow", "threads", "async batch")
"""Modes that a strategy refuses: several documents in a call, or several calls at once."""


Pair = tuple[tuple[str, str], tuple[str, str]]
"""(axis, value) twice; the second is empty for a value by itself."""


class Case(msgspec.Struct, frozen=True):
    """One value of each axis."""

    source: str
    shape: str
    mode: str
    end: str
    strategy: str
    state: str
    queues: str
    remember: str

    @property
    def id(self) -> str:
        """What a test is called."""
        values = msgspec.structs.asdict(self)
        return "-".join(value.replace(" ", "_") or f"no_{axis}" for axis, value in values.items())

    @property
    def reads_queues(self) -> bool:
        """Is there a queue in its plan?"""
        return "queue" in (self.source, self.end) or self.end == "errors" or self.shape in ("join", "alts")


def refusals(case: Case) -> list[str]:
    """Why ``plan check`` refuses a plan, a part of each of its findings; []: it does not."""
    found = []
    if case.shape in ("join", "alts"):
        if case.source == "changes":
            found.append("its input docs has deletions in it, which cannot be joined with anything")
        elif case.source != "queue":
            found.append("its input docs is not a log: give sources such as sources.Queue")
    if not case.strategy:
        return found
    if case.shape in KEYED:
        found.append("a keyed node calls `update` again where a kill came between")
    if case.mode in SIDE_BY_SIDE:
        found.append("calls a step for one entry after the other")
    if case.source == "changes":
        found.append("a change that was lost would leave the key as it was")
    elif case.source not in LOGS:
        found.append("takes only sources that are read by position")
    return found


def makes_sense(case: Case) -> bool:
    """Is it another case than one that is there already?"""
    return case.reads_queues or case.queues == "disk"


def product() -> Iterator[Case]:
    """Every case that makes sense, refused or not."""
    return filter(makes_sense, (Case(*values) for values in itertools.product(*AXES.values())))


def accepted(runner: str) -> list[Case]:
    """All cases whose plans run: of DataFrames on Spark alone."""
    return [case for case in product() if not refusals(case) and (case.source != "dataframe" or runner != "process")]


def pairs(cases: Sequence[Case]) -> list[Case]:
    """Some of the cases, in which any two values stand together that do so in one of all, but for those that are
    ``ALIKE``: greedily, the one of a few hundred drawn ones that has most pairs which were not there before."""
    chance = random.Random(0)
    having: dict[Pair, list[Case]] = defaultdict(list)
    pairs_of = {case: _pairs_of(case) for case in cases}
    for case, found in pairs_of.items():
        for pair in found:
            having[pair].append(case)
    chosen: list[Case] = []
    left = set(having)
    while left:
        candidates = having[min(left)]
        drawn = chance.sample(candidates, min(len(candidates), 300))
        chosen.append(max(drawn, key=lambda case: len(pairs_of[case] & left)))
        left -= pairs_of[chosen[-1]]
    return chosen


def _pairs_of(case: Case) -> set[Pair]:
    values = [*msgspec.structs.asdict(case).items()]
    alone = {((axis, value), ("", "")) for axis, value in values}
    return alone | {*itertools.combinations([(axis, ALIKE.get(value, value)) for axis, value in values], 2)}
