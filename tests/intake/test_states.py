"""The tables of states: every (state, event) pair of every machine is tried."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.intake.errors import StateError
from ferryman.intake.states import ACCESS, BATCH, JOB, JobState, Transitions, job_list_of, resume_state

GRIDS = {
    "job": (
        JOB,
        """
             Pend. Held  Est.  Prov. Down. Proc. Stor. Rec.  Not.  Comp. Fail. Del.  success      fail
Pending      .     x     x     .     .     .     .     .     .     .     x     .     .            Failed
Held         x     .     .     .     .     .     .     .     .     .     .     x     .            .
Estimating   .     .     .     x     .     .     .     .     .     .     x     .     Provisioning Failed
Provisioning .     .     .     .     x     .     .     .     .     .     x     .     Downloading  Failed
Downloading  .     .     .     .     .     x     .     .     .     .     x     .     Processing   Failed
Processing   .     .     .     .     .     .     x     .     .     .     x     .     Storing      Failed
Storing      .     .     .     .     .     .     .     x     .     .     x     .     Recording    Failed
Recording    .     .     .     .     .     .     .     .     x     .     x     .     Notify       Failed
Notify       .     .     .     .     .     .     .     .     .     x     x     .     Completed    Failed
Completed    .     .     .     .     .     .     .     .     .     .     .     .     .            .
Failed       x     .     x     x     x     x     x     x     x     .     .     x     .            .
Deleted      .     .     .     .     .     .     .     .     .     .     .     .     .            .
""",
    ),
    "batch": (
        BATCH,
        """
                Pending Held Processing Reporting Completed Failed UpdateReporting Deleted success   fail
Pending            .     x       x          .         .        .         .           .     .         .
Held               x     .       .          .         .        .         .           x     .         .
Processing         .     .       .          x         .        x         .           .     Reporting Reporting
Reporting          .     .       .          .         x        x         .           .     Completed Failed
Completed          .     .       .          .         .        .         .           .     .         .
Failed             .     .       .          .         .        .         x           x     .         .
UpdateReporting    .     .       .          .         x        x         .           .     Completed Failed
Deleted            .     .       .          .         .        .         .           .     .         .
""",
    ),
    "access": (
        ACCESS,
        """
            Pending Processing Completed Failed Deleted success   fail
Pending        .        x          .        .      .    .         .
Processing     .        .          x        x      .    Completed Failed
Completed      .        .          .        .      .    .         .
Failed         .        x          .        .      x    .         .
Deleted        .        .          .        .      .    .         .
""",
    ),
}
"""What we think the tables say, written down a second time."""


def cells(table: Transitions[Any], grid: str) -> Iterator[tuple[str, str, str]]:
    """(state, event, cell) of a grid; its heading may have names cut short with a dot."""
    head, *lines = (line.split() for line in grid.strip().splitlines())
    events = [*(state.value for state in table.states), "success", "fail"]
    for before, *row in lines:
        for short, cell in zip(head, row, strict=True):
            (event,) = (e for e in events if e == short or (short[-1] == "." and e.startswith(short[:-1])))
            yield before, event, cell


PAIRS = [(name, table, *cell) for name, (table, grid) in GRIDS.items() for cell in cells(table, grid)]


@pytest.mark.parametrize("name", GRIDS)
def test_every_pair_is_tried(name: str) -> None:
    """Every state, with every state to go to, with success and with failure."""
    table, grid = GRIDS[name]
    states = [state.value for state in table.states]
    tried = [(before, event) for before, event, _ in cells(table, grid)]
    assert set(tried) == set(itertools.product(states, [*states, "success", "fail"]))
    assert len(tried) == len(set(tried))


@pytest.mark.rule("intake.moves")
@pytest.mark.parametrize(
    ("table", "before", "event", "cell"), [p[1:] for p in PAIRS], ids=[f"{p[0]}-{p[2]}-{p[3]}" for p in PAIRS]
)
def test_a_move_is_legal_or_raises(table: Transitions[Any], before: str, event: str, cell: str) -> None:
    """A legal one gives the state after; an illegal one names both and changes nothing."""
    kept = {state: set(after) for state, after in table.moves.items()}
    state = table.states(before)

    def happens() -> Any:
        if event == "success":
            return table.after_success(state)
        return table.after_failure(state) if event == "fail" else table.move(state, table.states(event))

    if cell == ".":
        with pytest.raises(StateError) as caught:
            happens()
        assert str(caught.value) == f"State change ({before}->{event}) is not allowed"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    else:
        assert happens().value == (event if cell == "x" else cell)
    assert {state: set(after) for state, after in table.moves.items()} == kept


@pytest.mark.parametrize("name", GRIDS)
def test_success_and_failure_are_moves_of_the_table(name: str) -> None:
    """What an event leads to, a person may set too."""
    table, _ = GRIDS[name]
    for events in (table.success, table.fail):
        for before, after in events.items():
            assert table.move(before, after) is after


@pytest.mark.parametrize("name", GRIDS)
def test_only_final_states_have_no_way_out(name: str) -> None:
    """And every state is explained, and can be reached from the first one."""
    table, _ = GRIDS[name]
    assert {state for state, after in table.moves.items() if not after} == table.final
    assert set(table.meaning) == set(table.moves) == set(table.states)
    first = next(iter(table.states))
    found, waiting = {first}, [first]
    while waiting:
        for after in table.moves[waiting.pop()] - found:
            found.add(after)
            waiting.append(after)
    assert found == set(table.states)


@pytest.mark.parametrize(
    ("last", "resumed"),
    [
        (None, "Estimating"),
        ("", "Estimating"),
        ("Pending", "Estimating"),
        ("Held", "Estimating"),
        ("Estimating", "Provisioning"),
        ("Provisioning", "Downloading"),
        ("Downloading", "Processing"),
        ("Processing", "Storing"),
        ("Storing", "Recording"),
        ("Recording", "Notify"),
    ],
)
def test_a_failed_job_is_resumed_after_its_last_success(last: str | None, resumed: str) -> None:
    """In a state that may follow Failed."""
    assert resume_state(last).value == resumed
    assert JOB.move(JobState.FAILED, resume_state(last)).value == resumed


def test_a_job_is_in_one_list_of_its_batch() -> None:
    """Which one, its state says."""
    others = {"Completed": "batch-completed", "Failed": "batch-failed", "Deleted": "batch-deleted"}
    assert {s.value: job_list_of(s).value for s in JobState} == {
        s.value: others.get(s.value, "batch-processing") for s in JobState
    }
