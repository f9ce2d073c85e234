"""Generate docs/pictures/{job,batch,access}-states.svg and the tables of docs/reference/intake.md."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from scripts.docs import signatures
from scripts.docs.svg import INK, PALE, Box, Picture, rounded

from ferryman.intake.nodes import skeleton
from ferryman.intake.states import ACCESS, BATCH, JOB, AccessState, BatchState, JobState, Transitions

SUCCESS, FAIL, OPERATOR, OTHER = "#35855a", "#c2571a", "#4a78b8", PALE
"""Colours of arrows: done, failed, set by an operator, anything else."""

SIDE: Final = 14
"""Distance from the left edges to a line that passes a box."""


class Machine(NamedTuple):
    """A table of states, and the box of each."""

    table: Transitions[Any]
    title: str
    width: int
    height: int
    boxes: dict[Any, Box]


def _row(states: Sequence[Any], x: float, y: float, w: float, gap: float, h: float = 40) -> dict[Any, Box]:
    return {state: Box(x + at * (w + gap), y, w, h) for at, state in enumerate(states)}


_J, _B, _A = JobState, BatchState, AccessState
_WORK = [s for s in _J if s not in (_J.HELD, _J.FAILED, _J.DELETED)]

MACHINES: Final = {
    "job": Machine(
        JOB,
        "What becomes of a job",
        1080,
        380,
        {
            **_row(_WORK, 40, 150, 96, 18),
            _J.HELD: Box(40, 80, 96, 40),
            _J.FAILED: Box(40, 240, 894, 40),
            _J.DELETED: Box(40, 320, 96, 40),
        },
    ),
    "batch": Machine(
        BATCH,
        "What becomes of a batch",
        880,
        340,
        {
            **_row([_B.PENDING, _B.PROCESSING, _B.REPORTING], 40, 150, 120, 40),
            _B.COMPLETED: Box(720, 150, 120, 40),
            _B.UPDATE_REPORTING: Box(540, 195, 140, 40),
            _B.HELD: Box(40, 80, 120, 40),
            _B.FAILED: Box(200, 280, 480, 40),
            _B.DELETED: Box(40, 280, 120, 40),
        },
    ),
    "access": Machine(
        ACCESS,
        "What becomes of an access request",
        600,
        260,
        {
            **_row([_A.PENDING, _A.PROCESSING, _A.COMPLETED], 40, 90, 130, 50),
            _A.FAILED: Box(220, 190, 130, 40),
            _A.DELETED: Box(400, 190, 130, 40),
        },
    ),
}


def picture(name: str) -> str:
    """Return the SVG of one machine."""
    machine = MACHINES[name]
    p = Picture(machine.width, machine.height, machine.title, "scripts/docs/queue.py")
    p.text(24, 32, machine.title, size=17, bold=True)
    p.text(
        24,
        54,
        "Green: its work is done. Orange: it has failed. Blue: a person's word. Grey: its turn has come.",
        size=13,
    )
    for before, after in moves(machine.table):
        p.arrow(_arrow_path(machine, before, after), _colour(machine.table, before, after))
    for state, box in machine.boxes.items():
        ends = state in machine.table.final
        p.box(box, INK if ends else "#ffffff", INK, width=1.6)
        colour = "#ffffff" if ends else INK
        p.text(box.mid_x, box.mid_y + 4.5, state.value, size=12.5, bold=True, anchor="middle", colour=colour)
    return p.to_svg()


def moves(table: Transitions[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every move of a table."""
    for before, afters in table.moves.items():
        yield from ((before, after) for after in table.states if after in afters)


def _colour(table: Transitions[Any], before: Any, after: Any) -> str:
    if table.success.get(before) == after:
        return SUCCESS
    if after.value == "Failed":
        return FAIL
    return OPERATOR if {before.value, after.value} & {"Held", "Failed", "Deleted"} else OTHER


def _arrow_path(machine: Machine, before: Any, after: Any) -> str:
    a, b = machine.boxes[before], machine.boxes[after]
    back = before in machine.table.moves[after]
    shift = (9 if b.y < a.y else -9) if back else 0
    if min(a.bottom, b.bottom) > max(a.y, b.y):  # side by side
        y = (max(a.y, b.y) + min(a.bottom, b.bottom)) / 2
        return f"M{a.right:g},{y:g} L{b.x - 1:g},{y:g}" if b.x > a.x else f"M{a.x:g},{y:g} L{b.right + 1:g},{y:g}"
    left, right = max(a.x, b.x), min(a.right, b.right)
    if _between(machine, a, b):
        x = a.x - SIDE
        return rounded([(a.x, a.mid_y), (x, a.mid_y), (x, b.mid_y), (b.x - 1, b.mid_y)])
    if right > left:  # one above the other
        x = (left + right) / 2 + shift
        return f"M{x:g},{a.bottom:g} L{x:g},{b.y - 1:g}" if b.y > a.y else f"M{x:g},{a.y:g} L{x:g},{b.bottom + 1:g}"
    return rounded([(a.right, a.mid_y), (b.mid_x, a.mid_y), (b.mid_x, b.bottom + 1 if b.y < a.y else b.y - 1)])


def _between(machine: Machine, a: Box, b: Box) -> bool:
    """Return whether another box is between two at the left edge."""
    top, bottom = min(a.bottom, b.bottom), max(a.y, b.y)
    return a.x == b.x and any(c.x == a.x and top <= c.y and c.bottom <= bottom for c in machine.boxes.values())


def table(name: str) -> str:
    """Return Markdown: each state, its meaning, and the states that may follow."""
    machine = MACHINES[name].table
    lines = ["| state | meaning | success | failure | a person may also set |", "|---|---|---|---|---|"]
    for state in machine.states:
        after = [s for s in machine.states if s in machine.moves[state]]
        done, failed = machine.success.get(state), machine.fail.get(state)
        others = ", ".join(s.value for s in after if s not in (done, failed))
        ends = "; final" if state in machine.final else ""
        lines.append(
            f"| {state.value} | {machine.meaning[state]}{ends} | {done.value if done else ''} | "
            f"{failed.value if failed else ''} | {others} |"
        )
    return "\n".join(lines)


def folders() -> str:
    """Return Markdown: the folders that every queue has."""
    return "```text\n" + "\n".join(skeleton()) + "\n```"


def python() -> str:
    """Markdown: what a program does with a queue, and how it is refused."""
    from ferryman.intake import Assembly, AuditFinding, Batch, Job, JobQueue, Locks, Report, errors
    from ferryman.intake.items import Item

    tree = textwrap.dedent((inspect.getdoc(errors) or "").partition("::\n")[2]).strip("\n")
    things = [
        ("JobQueue", JobQueue),
        ("Item", Item),
        ("Batch", Batch),
        ("Job", Job),
        ("Assembly", Assembly),
        ("Locks", Locks),
    ]
    things += [("Report", Report), ("AuditFinding", AuditFinding)]
    pieces = [signatures.entry(name, thing, call=False, folded=True) for name, thing in things]
    return "\n\n".join([*pieces, "### Errors", f"```text\n{tree}\n```"])
