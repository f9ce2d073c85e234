"""Layout of a layered drawing (Sugiyama's method): positions of boxes, and the course of the edges between them.

Boxes do not overlap, and no edge crosses a box: an edge bends between two rows, and passes a row vertically in a cell
of its own.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

BOX_GAP = 30.0
"""Pixels between two boxes of a row."""
EDGE_GAP = 18.0
"""Pixels between an edge that passes a row and the neighbouring cells."""
ROW_GAP = 46.0
"""Pixels between two rows of boxes; more where edges lead far to the side."""
LABEL_ROW_GAP = 22.0
"""Pixels above and below a row without boxes."""
PORT_GAP = 20.0
"""Pixels between two edges at one side of a box."""
LOOP_WIDTH = 24.0
"""Pixels that an edge from a box to itself takes at its right."""
ROUNDS = 60
"""Iterations of straightening edges."""
PULL, PULL_ALONE, PULL_LONG = 1.0, 16.0, 16.0
"""Weights of straight edges: of any edge; of the only edge between two cells; of an edge that passes a row."""
SNAP = 14.0
"""Pixels: the only edge between two boxes is made straight if it would bend by less than this."""


class Size(NamedTuple):
    width: float
    height: float


class Arrow(NamedTuple):
    """An edge to be laid out; ``label`` is the size of its label."""

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
    """A vertical part of an edge. A curve joins it to the next one."""

    x: float
    top: float
    bottom: float


class Polyline(NamedTuple):
    """Course of an edge, from top to bottom; without segments it leads from a box to itself."""

    segments: list[VerticalSegment]
    is_reversed: bool
    """It leads upwards: its arrowhead is at the top."""
    label: Rect | None


class GraphLayout(NamedTuple):
    boxes: list[Rect]
    polylines: list[Polyline]
    width: float
    height: float


def lay_out(sizes: Sequence[Size], arrows: Sequence[Arrow]) -> GraphLayout:
    """Lay out boxes of these sizes and the arrows between them, with (0, 0) at the top left. Any graph may be given."""
    layers = assign_layers(len(sizes), [Link(a.start, a.end, a.label is not None) for a in arrows])
    return _LayoutBuilder(sizes, arrows, layers).build()


class _LayoutBuilder:
    """Cells of all rows with their sizes and positions: those of boxes, and those of edges that pass a row."""

    def __init__(self, sizes: Sequence[Size], arrows: Sequence[Arrow], layers: Layers) -> None:
        self.boxes, self.arrows, self.layers = len(sizes), arrows, layers
        cells = sum(map(len, layers.rows))
        self.width = [s.width for s in sizes] + [0.0] * (cells - len(sizes))
        self.height = [s.height for s in sizes] + [0.0] * (cells - len(sizes))
        self.loops = {a.start for a in arrows if a.start == a.end}
        self.label_cell: dict[int, int] = {}
        for number, (arrow, chain) in enumerate(zip(arrows, layers.chains, strict=True)):
            if arrow.label is not None and len(chain) > 2:
                at = 1 if layers.is_reversed[number] else -2  # beside the end that the arrow leads to
                cell = self.label_cell[number] = chain[at]
                self.width[cell], self.height[cell] = arrow.label
        self.outgoing: list[list[int]] = [[] for _ in range(cells)]
        self.incoming: list[list[int]] = [[] for _ in range(cells)]
        for number, chain in enumerate(layers.chains):
            for upper, lower in pairwise(chain):
                self.outgoing[upper].append(number)
                self.incoming[lower].append(number)
        for box in range(self.boxes):
            busiest = max(len(self.outgoing[box]), len(self.incoming[box]))
            self.width[box] = max(self.width[box], 8.0 * (busiest + 3))
        self.x = [0.0] * cells
        """Horizontal middle of each cell."""
        self.top = [0.0] * cells
        self.row_of: dict[int, int] = {cell: at for at, row in enumerate(layers.rows) for cell in row}
        self.rows: list[tuple[float, float]] = []
        """Top and bottom of each row."""

    def build(self) -> GraphLayout:
        self._assign_x()
        self._assign_y()
        boxes = [
            Rect(self.x[b] - self.width[b] / 2, self.top[b], self.width[b], self.height[b]) for b in self._box_numbers()
        ]
        polylines = self._route_edges()
        right_ends = [b.x + b.width + (LOOP_WIDTH if at in self.loops else 0) for at, b in enumerate(boxes)]
        right_ends += [segment.x for line in polylines for segment in line.segments]
        right_ends += [line.label.x + line.label.width for line in polylines if line.label]
        return GraphLayout(boxes, polylines, max(right_ends, default=0.0), self.rows[-1][1] if self.rows else 0.0)

    def _box_numbers(self) -> range:
        return range(self.boxes)

    def _assign_x(self) -> None:
        """Set the horizontal position of each cell, as near to the middle of its neighbours as its row allows."""
        above: list[list[tuple[int, float]]] = [[] for _ in self.x]
        below: list[list[tuple[int, float]]] = [[] for _ in self.x]
        for chain in self.layers.chains:
            for upper, lower in pairwise(chain):
                pull = PULL_LONG if min(upper, lower) >= self.boxes else PULL
                pull = max(pull, PULL_ALONE if self._is_only_link(upper, lower) else PULL)
                below[upper].append((lower, pull))
                above[lower].append((upper, pull))
        neighbours = [[*up, *down] for up, down in zip(above, below, strict=True)]
        rows = self.layers.rows
        for row in rows:
            self._place_row(row, [[] for _ in row])
        for turn in range(ROUNDS):
            beside = neighbours if turn >= ROUNDS // 2 else (above, below)[turn % 2]
            for row in rows if turn % 2 == 0 else rows[::-1]:
                self._place_row(row, [beside[cell] for cell in row])
        left = min((self.x[c] - self.width[c] / 2 for c in range(len(self.x))), default=0.0)
        self.x = [x - left for x in self.x]

    def _is_only_link(self, upper: int, lower: int) -> bool:
        return len(self.outgoing[upper]) == len(self.incoming[lower]) == 1

    def _place_row(self, row: list[int], beside: list[list[tuple[int, float]]]) -> None:
        """Place the cells of a row in their order, each as near to its wanted position as possible (least squares).

        Neighbouring cells whose wanted positions conflict are merged into blocks, which move as one (pool adjacent
        violators).
        """
        offsets, at = [], 0.0
        for i, cell in enumerate(row):
            at += self._distance(row[i - 1], cell) if i else 0.0
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

    def _distance(self, left: int, right: int) -> float:
        """Return the least distance between the middles of two neighbouring cells."""
        gap = BOX_GAP if max(left, right) < self.boxes else EDGE_GAP
        return (self.width[left] + self.width[right]) / 2 + gap + (LOOP_WIDTH if left in self.loops else 0.0)

    def _assign_y(self) -> None:
        """Set the vertical position of each row and cell, from top to bottom."""
        y = 0.0
        for at, row in enumerate(self.layers.rows):
            height = max(self.height[cell] for cell in row)
            if at:
                y += self._row_gap(at - 1)
            self.rows.append((y, y + height))
            for cell in row:
                self.top[cell] = y + (height - self.height[cell]) / 2
            y += height

    def _row_gap(self, at: int) -> float:
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
        return (LABEL_ROW_GAP if bare else ROW_GAP) + min(40.0, widest / 12)

    def _route_edges(self) -> list[Polyline]:
        departures, arrivals = self._ports(self.outgoing, 1), self._ports(self.incoming, -2)
        for number, chain in enumerate(self.layers.chains):
            if len(chain) == 2 and self._is_only_link(*chain) and abs(self.x[chain[0]] - self.x[chain[1]]) < SNAP:
                departures[chain[0], number] = arrivals[chain[1], number] = (self.x[chain[0]] + self.x[chain[1]]) / 2
        polylines = []
        for number, chain in enumerate(self.layers.chains):
            segments, label = [], None
            for cell in chain:
                top, bottom = self.rows[self.row_of[cell]]
                box_top, box_bottom = self.top[cell], self.top[cell] + self.height[cell]
                if cell == chain[0]:
                    segments.append(VerticalSegment(departures[cell, number], box_bottom, bottom))
                elif cell == chain[-1]:
                    segments.append(VerticalSegment(arrivals[cell, number], top, box_top))
                else:
                    segments.append(VerticalSegment(self.x[cell], top, bottom))
            if number in self.label_cell:
                cell = self.label_cell[number]
                x = self.x[cell] - self.width[cell] / 2
                label = Rect(x, self.top[cell], self.width[cell], self.height[cell])
            polylines.append(Polyline(segments, self.layers.is_reversed[number], label))
        return polylines

    def _ports(self, edges: list[list[int]], neighbour: int) -> dict[tuple[int, int], float]:
        """Return (box, edge) -> x of the port where the edge meets the box; ports are ordered like the cells that their
        edges lead to."""
        ports = {}
        for box in self._box_numbers():
            numbers = sorted(edges[box], key=lambda n: self.x[self.layers.chains[n][neighbour]])
            step = min(PORT_GAP, (self.width[box] - 24) / max(1, len(numbers) - 1))
            for i, number in enumerate(numbers):
                ports[box, number] = self.x[box] + step * (i - (len(numbers) - 1) / 2)
        return ports


# Rows and order of boxes: the first half of the method.
#
# Rows are numbered from top to bottom. An edge that spans several rows gets a cell of its own in each row between,
# which keeps its course free. All choices are deterministic: equal graphs are laid out alike.

SWEEPS = 12
"""Iterations of reordering; crossings rarely get fewer after the fourth."""


class Link(NamedTuple):
    """An edge between two boxes, by their numbers; a labelled one gets a row for its label."""

    start: int
    end: int
    labelled: bool = False


class Layers(NamedTuple):
    """Rows of numbered cells: first the boxes in the given order, then the cells of long edges."""

    rows: list[list[int]]
    """Cells from left to right, row by row."""
    chains: list[list[int]]
    """For each link the cells it passes, from the upper box to the lower; [] from a box to itself."""
    is_reversed: list[bool]
    """For each link, whether it leads upwards or to its own box, and so closes a cycle."""


def assign_layers(count: int, links: Sequence[Link]) -> Layers:
    """Assign ``count`` boxes to rows and order the rows. Any graph may be given."""
    is_reversed = _reversed_links(count, links)
    downwards = [Link(b, a, at) if up else Link(a, b, at) for (a, b, at), up in zip(links, is_reversed, strict=True)]
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
    return Layers(_reduce_crossings(rows, chains, cells), chains, is_reversed)


def _reversed_links(count: int, links: Sequence[Link]) -> list[bool]:
    """Return for each link whether it closes a cycle: it leads to a box on the current path of a depth-first search, or
    to its own box."""
    outgoing = _outgoing(count, links)
    is_reversed = [a == b for a, b, _ in links]
    done, open_ = [False] * count, [False] * count
    for start in _start_order(count, links):
        if done[start]:
            continue
        path = [(start, iter(outgoing[start]))]
        open_[start] = True
        while path:
            box, rest = path[-1]
            for link in rest:
                end = links[link].end
                if open_[end]:
                    is_reversed[link] = True
                elif not done[end]:
                    open_[end] = True
                    path.append((end, iter(outgoing[end])))
                    break
            else:
                path.pop()
                open_[box], done[box] = False, True
    return is_reversed


def _outgoing(count: int, links: Sequence[Link]) -> list[list[int]]:
    leaving: list[list[int]] = [[] for _ in range(count)]
    for number, link in enumerate(links):
        leaving[link.start].append(number)
    return leaving


def _start_order(count: int, links: Sequence[Link]) -> list[int]:
    """Return all boxes, those without incoming links first."""
    led_to = {link.end for link in links if link.start != link.end}
    return sorted(range(count), key=lambda box: box in led_to)


def _depth_first(count: int, links: Sequence[Link]) -> list[int]:
    """Return the boxes in the order of a depth-first search, which keeps related boxes together."""
    outgoing = _outgoing(count, links)
    visited: dict[int, None] = {}
    waiting = _start_order(count, links)[::-1]
    while waiting:
        box = waiting.pop()
        if box not in visited:
            visited[box] = None
            waiting += [links[link].end for link in reversed(outgoing[box])]
    return list(visited)


def _ranks(count: int, links: Sequence[Link]) -> list[int]:
    """Return the row of each box: the length of the longest path to it; a labelled link counts as two rows."""
    outgoing = _outgoing(count, links)
    missing = [0] * count
    for a, b, _ in links:
        missing[b] += a != b
    ranks = [0] * count
    ready = [box for box in range(count) if not missing[box]]
    for box in ready:  # grows meanwhile
        for number in outgoing[box]:
            _, end, labelled = links[number]
            if end != box:
                ranks[end] = max(ranks[end], ranks[box] + 1 + labelled)
                missing[end] -= 1
                if not missing[end]:
                    ready.append(end)
    return ranks


def _reduce_crossings(rows: list[list[int]], chains: Sequence[list[int]], cells: int) -> list[list[int]]:
    """Reorder the rows so that few edges cross: each cell moves to the middle of its neighbours, in downward and upward
    sweeps; then neighbouring cells swap if that reduces crossings."""
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
            rows[at] = _sort_by_neighbours(rows[at], _positions(fixed), neighbours)
        _swap_neighbours(rows, above, below)
        if (now := _crossings(rows, below)) < fewest:
            best, fewest = [row[:] for row in rows], now
    return best


def _sort_by_neighbours(row: list[int], places: dict[int, int], neighbours: list[list[int]]) -> list[int]:
    keys = {}
    for at, cell in enumerate(row):
        positions = [places[n] for n in neighbours[cell]]
        keys[cell] = sum(positions) / len(positions) if positions else float(at)
    return sorted(row, key=keys.__getitem__)


def _swap_neighbours(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    for at, row in enumerate(rows):
        up = _positions(rows[at - 1]) if at else {}
        down = _positions(rows[at + 1]) if at + 1 < len(rows) else {}
        for i in range(len(row) - 1):
            a, b = row[i], row[i + 1]
            as_is = _crossings_of_pair(above[a], above[b], up) + _crossings_of_pair(below[a], below[b], down)
            swapped = _crossings_of_pair(above[b], above[a], up) + _crossings_of_pair(below[b], below[a], down)
            if swapped < as_is:
                row[i], row[i + 1] = b, a


def _crossings_of_pair(left: list[int], right: list[int], places: dict[int, int]) -> int:
    """Count the crossings of the edges of two cells, of which the first is to the left."""
    return sum(places[x] > places[y] for x in left for y in right)


def _positions(row: list[int]) -> dict[int, int]:
    return {cell: at for at, cell in enumerate(row)}


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    crossings = 0
    for upper, lower in pairwise(rows):
        places = _positions(lower)
        seen_ends: list[int] = []
        for cell in upper:
            ends = sorted(places[n] for n in below[cell])
            crossings += sum(len(seen_ends) - bisect_right(seen_ends, end) for end in ends)
            for end in ends:
                insort(seen_ends, end)
    return crossings
