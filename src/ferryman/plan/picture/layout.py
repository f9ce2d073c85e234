"""Where boxes stand and edges run: the second half of a layered drawing.

Boxes do not overlap, and no edge runs through a box: between two rows it bends, within a row it goes straight down in a
cell of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ferryman.plan.picture.layers import Layers, Link, layered

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
