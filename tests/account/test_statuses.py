"""The table of legal moves: every (state, event) pair is tried."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import ferryman
from ferryman.records.rows import MEANING, MOVES, TERMINAL, Status, check_move
from ferryman.state.commands import REPAIR, VERBS

GRID = """
              FORCE RESTART DIRTY PROCESSING ERROR BATCHED INDEXING INDEXED DROPPED DEAD ERROR_DOC
nothing         .      x      .       x        .      .       .        .       .     .       .
FORCE           x      .      .       x        .      .       .        .       x     .       .
RESTART         x      x      .       .        x      x       x        x       x     x       x
DIRTY           .      .      x       x        .      .       .        .       .     .       .
PROCESSING      .      .      .       .        x      x       .        x       x     x       x
ERROR           x      x      .       .        x      x       x        x       x     x       x
BATCHED         .      .      .       .        x      .       x        x       x     x       x
INDEXING        x      x      .       .        x      .       x        x       x     x       x
INDEXED         x      x      x       .        .      .       .        .       .     .       .
DROPPED         x      x      x       .        .      .       .        .       .     .       .
DEAD            x      x      .       .        .      .       .        .       x     .       .
ERROR_DOC       x      x      .       .        .      .       .        .       x     .       .
"""
"""What we think the table says, written down a second time."""

HEAD, *LINES = (line.split() for line in GRID.strip().splitlines())
PAIRS = [
    (None if before == "nothing" else Status(before), Status(after), cell == "x")
    for before, *cells in LINES
    for after, cell in zip(HEAD, cells, strict=True)
]


def test_every_pair_is_tried() -> None:
    """From nothing and from every status, to every status."""
    tried = {(before, after) for before, after, _ in PAIRS}
    assert tried == set(itertools.product([None, *Status], Status))
    assert len(PAIRS) == len(tried)


@pytest.mark.parametrize(("before", "after", "legal"), PAIRS, ids=[f"{b or 'nothing'}-{a}" for b, a, _ in PAIRS])
def test_a_move_is_legal_or_raises(before: Status | None, after: Status, legal: bool) -> None:
    """A legal move gives the new state; an illegal one raises, says what would be legal, and changes nothing."""
    table = {k: set(v) for k, v in MOVES.items()}
    if legal:
        assert check_move(before, after) is after
    else:
        with pytest.raises(ValueError, match=f"cannot go from {before or 'nothing'} to {after}: only to "):
            check_move(before, after)
    assert {k: set(v) for k, v in MOVES.items()} == table


def reachable(status: Status | None) -> set[Status]:
    found: set[Status] = set()
    waiting = [status]
    while waiting:
        for after in MOVES[waiting.pop()] - found:
            found.add(after)
            waiting.append(after)
    return found


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL))
def test_every_state_that_is_no_end_has_a_way_out(status: Status) -> None:
    """It can be left, and an end can be reached from it."""
    assert MOVES[status] - {status}
    assert reachable(status) & TERMINAL


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_end_is_left_only_by_a_person_a_change_or_a_newer_version(status: Status) -> None:
    """No retry by itself: nothing that a run does alone goes on from an end."""
    assert MOVES[status] <= {Status.FORCE, Status.RESTART, Status.DIRTY, Status.DROPPED}


@pytest.mark.rule("retry.indexed")
def test_what_was_delivered_is_never_delivered_again_by_itself() -> None:
    """From INDEXED only by way of a person's FORCE or a change, which are new revisions, or of a person's repair."""
    assert MOVES[Status.INDEXED] == {Status.FORCE, Status.DIRTY, Status.RESTART}
    restarting = [name for name, verb in VERBS.items() if verb.event is Status.RESTART]
    assert [name for name in restarting if Status.INDEXED in VERBS[name].concerns] == [REPAIR]


@pytest.mark.parametrize("status", Status)
def test_every_state_can_be_reached(status: Status) -> None:
    """But for those that a person or a source writes on what is known already, from nothing at all."""
    assert status in reachable(None)


def test_every_state_is_explained() -> None:
    """In the table that the documentation is made from; and no other is."""
    assert set(MEANING) == set(Status)
    assert set(MOVES) == {None, *Status}


def test_only_operators_and_steps_suspect_a_change() -> None:
    """No source writes DIRTY, so its meaning names those who do."""
    package = Path(ferryman.__file__).parent
    writers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "Status.DIRTY" in path.read_text("utf-8")
    }
    assert writers == {"records/rows.py", "engine/commands.py", "engine/transform/staging.py", "state/commands.py"}
    assert "source" not in MEANING[Status.DIRTY]
