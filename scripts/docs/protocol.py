"""Generate docs/pictures/protocol.svg: a wave's five phases, who works in each, and the state after a kill."""

from __future__ import annotations

from scripts.docs.svg import INK, PALE, Box, Picture, rounded

from ferryman import limits

# Left edge and width of each phase's column.
COLUMNS = {
    "scan": (120, 214),
    "transform": (362, 214),
    "commit": (612, 172),
    "deliver": (832, 216),
    "settle": (1092, 214),
}
HEADS = {
    "scan": ("1 scan", "new, changed, deleted, pending"),
    "transform": ("2 transform", "run the steps"),
    "commit": ("3 commit", "one transaction"),
    "deliver": ("4 deliver", "send, chunk by chunk"),
    "settle": ("5 settle", "update the ledger"),
}
# Name, upper edge, height, fill, colour of the boxes' edges.
LANES = {
    "outside": ("the outside", 84, 84, "#f5f6f8", "#9aa5b1"),
    "executors": ("executors", 180, 116, "#eaf6ee", "#5a9e74"),
    "driver": ("driver", 308, 108, "#eaf1fb", "#5b86c4"),
    "state": ("state", 428, 132, "#fff7e3", "#c99a3a"),
}
KILLED = {
    "scan": ("Nothing is kept.", "The next start lists again."),
    "transform": ("Files that no table names.", "They are removed; the same", "documents are processed again."),
    "commit": ("Whole or nothing: the log", "has the entry, or not."),
    "deliver": (
        "A durable result: done.",
        "None: sent again, skipped by",
        "its hash, or in doubt, as the",
        "guarantee says.",
    ),
    "settle": ("It is repeated,", "with the same result."),
}
# Boxes: (lane, phase) -> a heading in the box and lines below it.
BOXES = {
    ("outside", "scan"): ("sources", ("folders, tables, lists",)),
    ("outside", "deliver"): ("destinations", ("databases, indexes, …",)),
    ("executors", "scan"): ("list", ("each source partition", "into a scratch file")),
    ("executors", "transform"): ("read, run steps, stage", ("each document once,", "all its steps in one process")),
    ("executors", "deliver"): ("claim · send · record", ("rows of one destination,", "oldest first, in chunks")),
    ("executors", "settle"): ("rewrite", ("outbox files of which", "some rows stay")),
    ("driver", "scan"): (
        "detect changes, split",
        ("one join with documents;", f"a wave is ≤ {limits.WAVE_BYTES // limits.GIB} GiB listed"),
    ),
    ("driver", "commit"): ("commit", ("outbox rows, drops,", "errors, versions")),
    ("driver", "deliver"): ("dispatch", ("rows that are due,", "healthy destinations")),
    ("driver", "settle"): ("close · read · commit", ("ledger first: it fixes", "the journal's result")),
    ("state", "transform"): ("staged files", ("in the tables' folders,", "in no table yet", "")),
    ("state", "commit"): ("outbox", ("names every staged", "file of the wave", "")),
    ("state", "deliver"): ("journal", ("claims, results;", "events as ledger files", "")),
    ("state", "settle"): (
        "ledger · documents",
        ("events;", "last known rows;", "outbox: what is pending"),
    ),
}
WIDTH, HEIGHT = 1330, 676
BAR = "#b42318"


def picture() -> str:
    """Return the SVG."""
    p = Picture(WIDTH, HEIGHT, "A wave: scan, transform, commit, deliver, settle", "scripts/docs/protocol.py")
    for phase, (head, below) in HEADS.items():
        x, w = COLUMNS[phase]
        p.text(x + w / 2, 40, head, size=19, bold=True, anchor="middle", colour=BAR if phase == "commit" else INK)
        p.text(x + w / 2, 62, below, size=13, colour=PALE, anchor="middle")
    for name, top, height, fill, _ in LANES.values():
        p.box(Box(12, top, WIDTH - 24, height), fill, radius=10)
        p.text(26, top + 26, name, size=14, bold=True, colour=PALE)
    _bar(p)
    at = {key: _box(p, *key, *words) for key, words in BOXES.items()}
    _arrows(p, at)
    _killed(p)
    return p.to_svg()


def _box(p: Picture, lane: str, phase: str, heading: str, lines: tuple[str, ...]) -> Box:
    _, top, height, _, edge = LANES[lane]
    x, w = COLUMNS[phase]
    inset = 14
    box = Box(x + 6, top + inset, w - 12, height - 2 * inset)
    p.box(box, "#ffffff", edge)
    used = [line for line in lines if line]
    first = box.mid_y - (len(used) * 17) / 2 + 5
    p.text(box.mid_x, first, heading, size=14.5, bold=True, anchor="middle")
    p.lines(box.mid_x, first + 18, used, leading=17, size=13, colour=PALE, anchor="middle")
    return box


def _bar(p: Picture) -> None:
    """Draw the line that nothing crosses before the commit."""
    x = COLUMNS["deliver"][0] - 28
    p.line(x, 78, x, LANES["state"][1] + LANES["state"][2] + 8, BAR, width=2, dash="7 5")
    p.text(x - 8, 108, "nothing leaves", size=13, colour=BAR, bold=True, anchor="end")
    p.text(x - 8, 126, "before this line", size=13, colour=BAR, bold=True, anchor="end")


def _arrows(p: Picture, at: dict[tuple[str, str], Box]) -> None:
    source, read = at["outside", "scan"], at["executors", "transform"]
    listing, judge = at["executors", "scan"], at["driver", "scan"]
    staged, commit, outbox = at["state", "transform"], at["driver", "commit"], at["state", "commit"]
    target, send, deal = at["outside", "deliver"], at["executors", "deliver"], at["driver", "deliver"]
    journal, settle, tables = at["state", "deliver"], at["driver", "settle"], at["state", "settle"]
    rewrite = at["executors", "settle"]
    down = [(source, listing), (listing, judge), (commit, outbox), (settle, tables)]
    for above, below in down:
        p.arrow(f"M{above.mid_x:g},{above.bottom:g} L{above.mid_x:g},{below.y - 1:g}")
    p.arrow(rounded([(source.right, source.mid_y), (read.mid_x, source.mid_y), (read.mid_x, read.y - 1)]))
    p.arrow(rounded([(judge.right, judge.mid_y), (read.x + 40, judge.mid_y), (read.x + 40, read.bottom + 1)]))
    p.arrow(f"M{read.mid_x + 40:g},{read.bottom:g} L{read.mid_x + 40:g},{staged.y - 1:g}")
    gap = commit.x - 18
    p.arrow(
        rounded([(staged.right, staged.mid_y), (gap, staged.mid_y), (gap, commit.mid_y), (commit.x - 1, commit.mid_y)])
    )
    gap = deal.x - 18
    p.arrow(rounded([(outbox.right, outbox.mid_y), (gap, outbox.mid_y), (gap, deal.mid_y), (deal.x - 1, deal.mid_y)]))
    p.arrow(f"M{deal.x + 46:g},{deal.y:g} L{deal.x + 46:g},{send.bottom + 1:g}")
    p.arrow(f"M{send.mid_x:g},{send.y:g} L{send.mid_x:g},{target.bottom + 1:g}", BAR, width=2.4)
    gap, noted = send.right + 16, journal.mid_y - 22
    p.arrow(rounded([(send.right, send.mid_y), (gap, send.mid_y), (gap, noted), (journal.right + 1, noted)]))
    gap, read_at = settle.x - 20, journal.mid_y + 22
    p.arrow(rounded([(journal.right, read_at), (gap, read_at), (gap, settle.mid_y), (settle.x - 1, settle.mid_y)]))
    p.arrow(f"M{settle.mid_x:g},{settle.y - 1:g} L{settle.mid_x:g},{rewrite.bottom + 1:g}", both=True)


def _killed(p: Picture) -> None:
    top = LANES["state"][1] + LANES["state"][2] + 30
    p.lines(26, top + 4, ("killed", "here?"), size=14, bold=True, colour=BAR, leading=18)
    for phase, lines in KILLED.items():
        x, w = COLUMNS[phase]
        p.line(x + 6, top - 12, x + w - 6, top - 12, BAR, width=2)
        p.lines(x + 8, top + 6, lines, size=13, leading=18)
