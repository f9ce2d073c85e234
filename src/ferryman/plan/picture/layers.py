"""Which row a box stands in, and which place in its row: the first half of a layered drawing (Sugiyama's).

Rows go from top to bottom. An edge that spans several rows gets a cell of its own in each row between, so that it has a
free way there. All choices are made by fixed rules: the same graph is always placed alike.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

SWEEPS = 12
"""Turns of reordering; crossings rarely get fewer after the fourth."""


class Link(NamedTuple):
    """An edge between two boxes, by their numbers; a labelled one gets a row for its label."""

    start: int
    end: int
    labelled: bool = False


class Layers(NamedTuple):
    """Cells are numbered: the boxes as they came, then those of long edges."""

    rows: list[list[int]]
    """Cells from left to right, row by row."""
    chains: list[list[int]]
    """For each link the cells it passes, from the upper box to the lower; [] from a box to itself."""
    turned: list[bool]
    """For each link: does it lead upwards, or to where it comes from? It closes a cycle."""


def layered(count: int, links: Sequence[Link]) -> Layers:
    """Rows for ``count`` boxes; any graph may be given."""
    turned = _turned(count, links)
    downwards = [Link(b, a, at) if up else Link(a, b, at) for (a, b, at), up in zip(links, turned, strict=True)]
    ranks = _ranks(count, downwards)
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box in _depth_first(count, downwards):
        rows[ranks[box]].append(box)
    chains: list[list[int]] = []
    cells = count
    for a, b, _ in downwards:
        between = list(range(cells, cells + max(0, ranks[b] - ranks[a] - 1)))
        cells += len(between)
        chains.append([] if a == b else [a, *between, b])
        for rank, cell in enumerate(between, ranks[a] + 1):
            rows[rank].append(cell)
    return Layers(_untangled(rows, chains, cells), chains, turned)


def _turned(count: int, links: Sequence[Link]) -> list[bool]:
    """The links that lead back to a box above them on the way from where the walk began, and those to themselves."""
    leaving = _leaving(count, links)
    turned = [a == b for a, b, _ in links]
    done, open_ = [False] * count, [False] * count
    for start in _beginnings(count, links):
        if done[start]:
            continue
        way = [(start, iter(leaving[start]))]
        open_[start] = True
        while way:
            box, rest = way[-1]
            for link in rest:
                end = links[link].end
                if open_[end]:
                    turned[link] = True
                elif not done[end]:
                    open_[end] = True
                    way.append((end, iter(leaving[end])))
                    break
            else:
                way.pop()
                open_[box], done[box] = False, True
    return turned


def _leaving(count: int, links: Sequence[Link]) -> list[list[int]]:
    leaving: list[list[int]] = [[] for _ in range(count)]
    for number, link in enumerate(links):
        leaving[link.start].append(number)
    return leaving


def _beginnings(count: int, links: Sequence[Link]) -> list[int]:
    """All boxes; those that nothing leads to first."""
    led_to = {link.end for link in links if link.start != link.end}
    return sorted(range(count), key=lambda box: box in led_to)


def _depth_first(count: int, links: Sequence[Link]) -> list[int]:
    """Boxes in the order of a walk that goes down first: what belongs together comes together."""
    leaving = _leaving(count, links)
    found: dict[int, None] = {}
    waiting = _beginnings(count, links)[::-1]
    while waiting:
        box = waiting.pop()
        if box not in found:
            found[box] = None
            waiting += [links[link].end for link in reversed(leaving[box])]
    return list(found)


def _ranks(count: int, links: Sequence[Link]) -> list[int]:
    """The longest way to each box, in rows; a labelled link is two rows long."""
    leaving = _leaving(count, links)
    missing = [0] * count
    for a, b, _ in links:
        missing[b] += a != b
    ranks = [0] * count
    ready = [box for box in range(count) if not missing[box]]
    for box in ready:  # grows meanwhile
        for number in leaving[box]:
            _, end, labelled = links[number]
            if end != box:
                ranks[end] = max(ranks[end], ranks[box] + 1 + labelled)
                missing[end] -= 1
                if not missing[end]:
                    ready.append(end)
    return ranks


def _untangled(rows: list[list[int]], chains: Sequence[list[int]], cells: int) -> list[list[int]]:
    """The rows reordered so that few edges cross: each cell moves to the middle of its neighbours, down and up in turn;
    then neighbours change places where that helps."""
    above: list[list[int]] = [[] for _ in range(cells)]
    below: list[list[int]] = [[] for _ in range(cells)]
    for chain in chains:
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
    best, fewest = [row[:] for row in rows], _crossings(rows, below)
    for turn in range(SWEEPS):
        if not fewest:
            break
        for at in range(1, len(rows)) if turn % 2 == 0 else range(len(rows) - 2, -1, -1):
            fixed, neighbours = (rows[at - 1], above) if turn % 2 == 0 else (rows[at + 1], below)
            rows[at] = _by_middle(rows[at], _places(fixed), neighbours)
        _swap(rows, above, below)
        if (now := _crossings(rows, below)) < fewest:
            best, fewest = [row[:] for row in rows], now
    return best


def _by_middle(row: list[int], places: dict[int, int], neighbours: list[list[int]]) -> list[int]:
    keys = {}
    for at, cell in enumerate(row):
        found = [places[n] for n in neighbours[cell]]
        keys[cell] = sum(found) / len(found) if found else float(at)
    return sorted(row, key=keys.__getitem__)


def _swap(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    for at, row in enumerate(rows):
        up = _places(rows[at - 1]) if at else {}
        down = _places(rows[at + 1]) if at + 1 < len(rows) else {}
        for i in range(len(row) - 1):
            a, b = row[i], row[i + 1]
            as_is = _between(above[a], above[b], up) + _between(below[a], below[b], down)
            swapped = _between(above[b], above[a], up) + _between(below[b], below[a], down)
            if swapped < as_is:
                row[i], row[i + 1] = b, a


def _between(left: list[int], right: list[int], places: dict[int, int]) -> int:
    """Crossings of the edges of two cells, of which the first stands to the left."""
    return sum(places[x] > places[y] for x in left for y in right)


def _places(row: list[int]) -> dict[int, int]:
    return {cell: at for at, cell in enumerate(row)}


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    crossings = 0
    for upper, lower in pairwise(rows):
        places = _places(lower)
        passed: list[int] = []
        for cell in upper:
            ends = sorted(places[n] for n in below[cell])
            crossings += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return crossings
