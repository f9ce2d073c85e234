"""Where boxes stand and edges run: the second half of a layered drawing.

Boxes do not overlap, and no edge runs through a box: between two rows it bends, within a row it goes straight down in a
cell of its own.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

BESIDE = 30.0
"""Pixels between two boxes of a row."""
BESIDE_EDGE = 18.0
"""Pixels between an edge that passes a row and its neighbours."""
BELOW = 46.0
"""Pixels between two rows of boxes; it takes more where edges go far to the side."""
BELOW_LABEL = 22.0
"""Pixels above and below a row without boxes."""
PORTS = 20.0
"""Pixels between two edges at one side of a box."""
LOOP = 24.0
"""Pixels that an edge from a box to itself takes at its right."""
ROUNDS = 60
"""Turns of straightening."""
PULL, PULL_ALONE, PULL_LONG = 1.0, 16.0, 16.0
"""How much an edge wants to be straight: any; one between two cells that have no other there; one that passes a row."""
SNAP = 14.0
"""An edge between two boxes that has no other beside it, and would bend by less than these pixels, is straight."""


class Size(NamedTuple):
    width: float
    height: float


class Arrow(NamedTuple):
    """An edge to be laid; ``label`` is the room that its label takes."""

    start: int
    end: int
    label: Size | None = None


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


class VerticalSegment(NamedTuple):
    """A piece of an edge that goes straight down. To the next one it bends."""

    x: float
    top: float
    bottom: float


class Polyline(NamedTuple):
    """An edge as it was laid, from top to bottom; no stops: from a box to itself."""

    stops: list[VerticalSegment]
    turned: bool
    """It leads upwards: its arrow is at the top."""
    label: Rect | None


class Laid(NamedTuple):
    boxes: list[Rect]
    ways: list[Polyline]
    width: float
    height: float


def laid(sizes: Sequence[Size], arrows: Sequence[Arrow]) -> Laid:
    """Places for boxes of these sizes, and ways for the arrows between them, from (0, 0) on. Any graph may be given."""
    layers = layered(len(sizes), [Link(a.start, a.end, a.label is not None) for a in arrows])
    return _Sheet(sizes, arrows, layers).laid()


class _Sheet:
    """The sheet that is drawn on: the cells of all rows, with their sizes and places."""

    def __init__(self, sizes: Sequence[Size], arrows: Sequence[Arrow], layers: Layers) -> None:
        self.boxes, self.arrows, self.layers = len(sizes), arrows, layers
        cells = sum(map(len, layers.rows))
        self.width = [s.width for s in sizes] + [0.0] * (cells - len(sizes))
        self.height = [s.height for s in sizes] + [0.0] * (cells - len(sizes))
        self.loops = {a.start for a in arrows if a.start == a.end}
        self.label_cell: dict[int, int] = {}
        for number, (arrow, chain) in enumerate(zip(arrows, layers.chains, strict=True)):
            if arrow.label is not None and len(chain) > 2:
                at = 1 if layers.turned[number] else -2  # beside the end that the arrow leads to
                cell = self.label_cell[number] = chain[at]
                self.width[cell], self.height[cell] = arrow.label
        self.leaving: list[list[int]] = [[] for _ in range(cells)]
        self.coming: list[list[int]] = [[] for _ in range(cells)]
        for number, chain in enumerate(layers.chains):
            for upper, lower in pairwise(chain):
                self.leaving[upper].append(number)
                self.coming[lower].append(number)
        for box in range(self.boxes):
            busiest = max(len(self.leaving[box]), len(self.coming[box]))
            self.width[box] = max(self.width[box], 8.0 * (busiest + 3))
        self.x = [0.0] * cells
        """Middle of each cell."""
        self.top = [0.0] * cells
        self.row_of: dict[int, int] = {cell: at for at, row in enumerate(layers.rows) for cell in row}
        self.rows: list[tuple[float, float]] = []
        """Top and bottom of each row."""

    def laid(self) -> Laid:
        self._spread()
        self._stack()
        boxes = [Rect(self.x[b] - self.width[b] / 2, self.top[b], self.width[b], self.height[b]) for b in self._all()]
        ways = self._ways()
        rights = [b.x + b.width + (LOOP if at in self.loops else 0) for at, b in enumerate(boxes)]
        rights += [stop.x for way in ways for stop in way.stops]
        rights += [way.label.x + way.label.width for way in ways if way.label]
        return Laid(boxes, ways, max(rights, default=0.0), self.rows[-1][1] if self.rows else 0.0)

    def _all(self) -> range:
        return range(self.boxes)

    def _spread(self) -> None:
        """From left to right: each cell as near to the middle of its neighbours as its row allows."""
        above: list[list[tuple[int, float]]] = [[] for _ in self.x]
        below: list[list[tuple[int, float]]] = [[] for _ in self.x]
        for chain in self.layers.chains:
            for upper, lower in pairwise(chain):
                pull = PULL_LONG if min(upper, lower) >= self.boxes else PULL
                pull = max(pull, PULL_ALONE if self._alone(upper, lower) else PULL)
                below[upper].append((lower, pull))
                above[lower].append((upper, pull))
        neighbours = [[*up, *down] for up, down in zip(above, below, strict=True)]
        rows = self.layers.rows
        for row in rows:
            self._settle(row, [[] for _ in row])
        for turn in range(ROUNDS):
            beside = neighbours if turn >= ROUNDS // 2 else (above, below)[turn % 2]
            for row in rows if turn % 2 == 0 else rows[::-1]:
                self._settle(row, [beside[cell] for cell in row])
        left = min((self.x[c] - self.width[c] / 2 for c in range(len(self.x))), default=0.0)
        self.x = [x - left for x in self.x]

    def _alone(self, upper: int, lower: int) -> bool:
        return len(self.leaving[upper]) == len(self.coming[lower]) == 1

    def _settle(self, row: list[int], beside: list[list[tuple[int, float]]]) -> None:
        """Places of least squares: the cells of a row as near as can be to where each wants to be, in their order."""
        offsets, at = [], 0.0
        for i, cell in enumerate(row):
            at += self._apart(row[i - 1], cell) if i else 0.0
            offsets.append(at)
        blocks: list[list[float]] = []  # weight, wanted place, number of cells
        for cell, near, offset in zip(row, beside, offsets, strict=True):
            weight = sum(w for _, w in near)
            wanted = sum(self.x[n] * w for n, w in near) / weight if weight else self.x[cell]
            blocks.append([weight or 0.1, wanted - offset, 1])
            while len(blocks) > 1 and blocks[-2][1] >= blocks[-1][1]:
                weight, wanted, cells = blocks.pop()
                last = blocks[-1]
                last[1] = (last[0] * last[1] + weight * wanted) / (last[0] + weight)
                last[0] += weight
                last[2] += cells
        wanted_places = [wanted for _, wanted, cells in blocks for _ in range(int(cells))]
        for cell, wanted, offset in zip(row, wanted_places, offsets, strict=True):
            self.x[cell] = wanted + offset

    def _apart(self, left: int, right: int) -> float:
        """From the middle of a cell to that of the next."""
        gap = BESIDE if max(left, right) < self.boxes else BESIDE_EDGE
        return (self.width[left] + self.width[right]) / 2 + gap + (LOOP if left in self.loops else 0.0)

    def _stack(self) -> None:
        """From top to bottom."""
        y = 0.0
        for at, row in enumerate(self.layers.rows):
            height = max(self.height[cell] for cell in row)
            if at:
                y += self._gap(at - 1)
            self.rows.append((y, y + height))
            for cell in row:
                self.top[cell] = y + (height - self.height[cell]) / 2
            y += height

    def _gap(self, at: int) -> float:
        upper, lower = self.layers.rows[at], self.layers.rows[at + 1]
        bare = min(upper) >= self.boxes or min(lower) >= self.boxes
        widest = max(
            (
                abs(self.x[a] - self.x[b])
                for chain in self.layers.chains
                for a, b in pairwise(chain)
                if self.row_of[a] == at
            ),
            default=0.0,
        )
        return (BELOW_LABEL if bare else BELOW) + min(40.0, widest / 12)

    def _ways(self) -> list[Polyline]:
        out, into = self._ports(self.leaving, 1), self._ports(self.coming, -2)
        for number, chain in enumerate(self.layers.chains):
            if len(chain) == 2 and self._alone(*chain) and abs(self.x[chain[0]] - self.x[chain[1]]) < SNAP:
                out[chain[0], number] = into[chain[1], number] = (self.x[chain[0]] + self.x[chain[1]]) / 2
        ways = []
        for number, chain in enumerate(self.layers.chains):
            stops, label = [], None
            for cell in chain:
                top, bottom = self.rows[self.row_of[cell]]
                box_top, box_bottom = self.top[cell], self.top[cell] + self.height[cell]
                if cell == chain[0]:
                    stops.append(VerticalSegment(out[cell, number], box_bottom, bottom))
                elif cell == chain[-1]:
                    stops.append(VerticalSegment(into[cell, number], top, box_top))
                else:
                    stops.append(VerticalSegment(self.x[cell], top, bottom))
            if number in self.label_cell:
                cell = self.label_cell[number]
                x = self.x[cell] - self.width[cell] / 2
                label = Rect(x, self.top[cell], self.width[cell], self.height[cell])
            ways.append(Polyline(stops, self.layers.turned[number], label))
        return ways

    def _ports(self, edges: list[list[int]], neighbour: int) -> dict[tuple[int, int], float]:
        """(box, edge) -> where it leaves or comes in: side by side, in the order of where they lead to."""
        found = {}
        for box in self._all():
            numbers = sorted(edges[box], key=lambda n: self.x[self.layers.chains[n][neighbour]])
            step = min(PORTS, (self.width[box] - 24) / max(1, len(numbers) - 1))
            for i, number in enumerate(numbers):
                found[box, number] = self.x[box] + step * (i - (len(numbers) - 1) / 2)
        return found


# Which row a box stands in, and which place in its row: the first half of a layered drawing (Sugiyama's).
#
# Rows go from top to bottom. An edge that spans several rows gets a cell of its own in each row between, so that it
# has a free way there. All choices are made by fixed rules: the same graph is always placed alike.

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
