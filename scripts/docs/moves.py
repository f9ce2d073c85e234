"""Generate docs/pictures/statuses.svg and the tables of docs/reference/statuses.md, from records/rows.py."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.docs.svg import INK, PALE, Box, Picture

from ferryman.records.rows import MEANING, MOVES, TERMINAL, Status

BY_OPERATOR = (Status.RESTART, Status.FORCE, Status.DIRTY)
"""Statuses set by an operator or a source. All other moves are made by a run, and are drawn."""

WIDTH, HEIGHT = 1040, 500
BOX = (128, 44)
PLACES = {  # middle of each box
    Status.PROCESSING: (148, 262),
    Status.INDEXING: (560, 88),
    Status.BATCHED: (390, 186),
    Status.ERROR: (390, 400),
    Status.INDEXED: (930, 88),
    Status.DROPPED: (930, 200),
    Status.DEAD: (930, 312),
    Status.ERROR_DOC: (930, 424),
}
COLOURS = {
    Status.PROCESSING: "#4a78b8",
    Status.BATCHED: "#35855a",
    Status.INDEXING: "#8a5fb0",
    Status.ERROR: "#c2571a",
}
"""Status -> colour of the arrows that leave it."""


def picture() -> str:
    """Return the SVG of the moves that a run makes."""
    p = Picture(WIDTH, HEIGHT, "What becomes of a delivery", "scripts/docs/moves.py")
    p.text(24, 36, "What a run makes of a delivery", size=17, bold=True)
    p.text(24, 58, "An arrow has the colour of the status it leaves.", size=13, colour=PALE)
    p.text(PLACES[Status.INDEXED][0], 52, "terminal", size=13, colour=PALE, anchor="middle")
    start = _box(Status.PROCESSING)
    p.arrow(f"M30,{start.mid_y:g} L{start.x - 1:g},{start.mid_y:g}", PALE)
    for before, after in drawn():
        p.arrow(_arrow_path(before, after), COLOURS.get(before, PALE), width=1.8)
    for status in PLACES:
        box, ends = _box(status), status in TERMINAL
        p.box(box, INK if ends else "#ffffff", INK if ends else COLOURS[status], width=2)
        p.text(
            box.mid_x,
            box.mid_y + 5,
            status.value,
            size=14.5,
            bold=True,
            anchor="middle",
            colour="#ffffff" if ends else INK,
        )
    return p.to_svg()


def drawn() -> Iterator[tuple[Status, Status]]:
    """Yield the moves that the picture shows: all but those of an operator."""
    for before, afters in MOVES.items():
        if before is not None and before not in BY_OPERATOR:
            yield from ((before, after) for after in PLACES if after in afters)


def _box(status: Status) -> Box:
    x, y = PLACES[status]
    return Box(x - BOX[0] / 2, y - BOX[1] / 2, *BOX)


def _arrow_path(before: Status, after: Status) -> str:
    a, b = _box(before), _box(after)
    if a == b:
        edge, out = (a.bottom, 34) if before is Status.ERROR else (a.y, -34)
        return f"M{a.mid_x - 16:g},{edge:g} c-12,{out} 44,{out} 33,{1 if out > 0 else -1}"
    if before in TERMINAL:  # up along the right side
        by, y = 14 + abs(a.y - b.y) / 6, b.mid_y + 12 - abs(a.y - b.y) / 14
        return f"M{a.right:g},{a.mid_y:g} C{a.right + by:g},{a.mid_y:g} {b.right + by:g},{y:g} {b.right + 1.5:g},{y:g}"
    if (before, after) == (Status.BATCHED, Status.INDEXING):
        return f"M{a.mid_x:g},{a.y:g} C{a.mid_x:g},{b.mid_y + 10:g} {a.right:g},{b.mid_y:g} {b.x - 1.5:g},{b.mid_y:g}"
    if b.x > a.right and after is not Status.INDEXING:
        y1 = _port(
            a, after, [t for s, t in drawn() if s is before and _box(t).x > a.right and t is not Status.INDEXING]
        )
        y2 = _port(b, before, [s for s, t in drawn() if t is after and _box(s).right < b.x])
        bend = (b.x - a.right) / 2
        return f"M{a.right:g},{y1:g} C{a.right + bend:g},{y1:g} {b.x - bend:g},{y2:g} {b.x - 1.5:g},{y2:g}"
    # Moves in both directions between boxes above each other: two lines side by side.
    up = b.y < a.y
    aside = 13 if up else -13
    lean = 32 if Status.INDEXING in (before, after) else 0
    x1, x2 = (a.mid_x + lean, b.mid_x - lean) if up else (a.mid_x - lean, b.mid_x + lean)
    return f"M{x1 + aside:g},{a.y if up else a.bottom:g} L{x2 + aside:g},{b.bottom + 1.5 if up else b.y - 1.5:g}"


def _port(box: Box, status: Status, among: list[Status]) -> float:
    """Return the y where an arrow meets a box's side: spread evenly, in the order of the boxes at the other ends."""
    order = sorted(among, key=lambda s: PLACES[s][1])
    return box.y + (order.index(status) + 1) * box.h / (len(order) + 1)


def table() -> str:
    """Return Markdown: each status, and its meaning; `matrix` has what may follow."""
    lines = ["| status | terminal | meaning |", "|---|---|---|"]
    lines += [f"| {status.value} | {'yes' if status in TERMINAL else 'no'} | {MEANING[status]} |" for status in Status]
    return "\n".join(lines)


def matrix() -> str:
    """Return Markdown: the table of all moves; a row is the status before, a column the one after."""
    heads = [s.value for s in Status]
    lines = ["| from \\ to | " + " | ".join(heads) + " |", "|---|" + ":-:|" * len(heads)]
    for before, after in MOVES.items():
        name = "(nothing yet)" if before is None else f"**{before.value}**"
        lines.append(f"| {name} | " + " | ".join("●" if s in after else "" for s in Status) + " |")
    return "\n".join(lines)
