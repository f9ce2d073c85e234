"""Which cases of a test are run each time, and which by `make prove` alone. See tests/README.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """The first case and every so many after it are run each time; the others are marked ``slow``."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[] if n % every == 0 else [pytest.mark.slow]
        )
        for n, case in enumerate(cases)
    ]


def covering(cases: Sequence[Mapping[str, int]]) -> list[int]:
    """Choose some of a test's cases, by their indices, where several parametrizations multiply each other: of two each
    value stands in a chosen case, of three or more each two values that stand together in any case.

    Args:
        cases: the place of each argument's value in the list of its parametrization; arguments of one parametrization
            have the same.
    """
    columns = {tuple(case[name] for case in cases) for name in (cases[0] if cases else ())}
    axes = sorted(column for column in columns if len(set(column)) > 1)
    if len(axes) < 2:
        return [*range(len(cases))]
    at_once = 1 if len(axes) == 2 else 2
    having = [set(itertools.combinations(enumerate(values), at_once)) for values in zip(*axes, strict=True)]
    left = set().union(*having)
    chosen = []
    while left:
        best = max(range(len(cases)), key=lambda n: len(having[n] & left))  # of equals the first
        chosen.append(best)
        left -= having[best]
    return sorted(chosen)


def missing(items: list[pytest.Item], chosen: set[pytest.Item]) -> set[pytest.Item]:
    """Choose a test, the simplest that there is, of each rule that no chosen one proves, and of each file with tests
    of servers of which none is chosen."""
    found: dict[str, pytest.Item] = {}
    for item in sorted(items, key=_needs):
        for topic in _topics(item):
            found.setdefault(topic, item)
    have = {topic for item in chosen for topic in _topics(item)}
    return {item for topic, item in found.items() if topic not in have}


def _topics(item: pytest.Item) -> set[str]:
    """Return the rules that a test proves without Spark, and the file of a test that needs a server."""
    rules = {rule for mark in item.iter_markers("rule") for rule in mark.args}
    match _needs(item):
        case 0:
            return rules
        case 1:
            return {*rules, item.nodeid.partition("::")[0]}
        case _:
            return set()


def _needs(item: pytest.Item) -> int:
    """0: neither Spark nor a server; 1: a server; 2: a test of `make prove`, or one of Spark."""
    if item.get_closest_marker("slow") or item.get_closest_marker("spark"):
        return 2
    return 1 if item.get_closest_marker("server") else 0
