"""The pictures of the states show all of them, and every move."""

from __future__ import annotations

import pytest
from scripts.docs import queue


@pytest.mark.parametrize("name", queue.MACHINES)
def test_a_picture_has_every_state_and_every_move(name: str) -> None:
    """A box for each state, an arrow for each move of the table; nothing lies outside, and no two boxes meet."""
    machine = queue.MACHINES[name]
    drawn = queue.picture(name)
    assert set(machine.boxes) == set(machine.table.states)
    assert all(f">{state.value}</text>" in drawn for state in machine.table.states)
    assert drawn.count("marker-end") == sum(len(after) for after in machine.table.moves.values())
    boxes = list(machine.boxes.values())
    for at, a in enumerate(boxes):
        assert a.x >= 0
        assert a.y >= 0
        assert a.right <= machine.width
        assert a.bottom <= machine.height
        for b in boxes[at + 1 :]:
            assert a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y
