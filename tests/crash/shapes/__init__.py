"""Plans that branch, join, tee, make children and change, for the crash matrix; each with an oracle of its own.

A shape is a row of stages: the corpus of each, and the plan that runs then. All stages but the last go well, once; in
the last one the process is killed, at every point. What must have arrived is computed from the corpora alone, by
functions that know nothing of the engine.
"""

from __future__ import annotations

from functools import partial

from ferryman.crash import POINTS
from tests.crash.shapes.families import (
    build_family,
    build_held,
    build_others,
    build_streamed,
    expected_family,
    expected_held,
    expected_others,
    expected_streamed,
)
from tests.crash.shapes.retries import build_retries, build_version, expected_retries, expected_version
from tests.crash.shapes.routes import build_join, build_rejoin, expected_join, expected_rejoin
from tests.crash.shapes.shape import MIXED, Shape
from tests.crash.shapes.together import (
    build_blocks,
    build_bought,
    build_columns,
    build_flights,
    expected_blocks,
    expected_bought,
    expected_columns,
    expected_flights,
)
from tests.crash.shapes.trouble import (
    build_deadly,
    build_doubted,
    build_hung,
    build_outage,
    expected_deadly,
    expected_doubted,
    expected_hung,
    expected_outage,
)

SHAPES: dict[str, Shape] = {
    "join": Shape(1, build_join, expected_join, left=3, passes=("create.", "plan."), wave_bytes=60),
    "rejoin": Shape(2, build_rejoin, expected_rejoin, wave_bytes=20),
    "family": Shape(2, build_family, expected_family, wave_bytes=15),
    "held": Shape(2, build_held, partial(expected_held, "b#r"), left=3, wave_bytes=1 << 30, holds=True),
    "released": Shape(
        3,
        partial(build_held, fails=99),
        expected_held,
        verbs=("retry", "resolve", "run"),
        passes=("command.",),
        wave_bytes=1 << 30,
        holds=True,
    ),
    "retries": Shape(
        2, build_retries, expected_retries, left=3, verbs=("retry", "resolve", "run"), passes=("command.",)
    ),
    "version": Shape(
        3,
        build_version,
        expected_version,
        passes=("version.", "plan.", "command.staged", "command.done"),
        from_version=1,
        prepare=((), ("run@deliver.done", "retry@command.queued")),
        wave_bytes=100,
    ),
    "outage": Shape(2, build_outage, expected_outage, wait=0),
    "hung": Shape(2, build_hung, expected_hung, waits=(0, 30), wave_bytes=2, hangs=True),
    "doubted": Shape(2, build_doubted, expected_doubted, left=3, wave_bytes=1 << 30, breaks=True),
    "others": Shape(
        2, build_others, dict, verbs=("force", "run"), passes=("command.",), expected_by=expected_others, wave_bytes=2
    ),
    "streamed": Shape(2, build_streamed, expected_streamed),
    "blocks": Shape(2, build_blocks, expected_blocks, left=3, wave_bytes=42),
    "bought": Shape(2, build_bought, expected_bought, left=3, wave_bytes=30),
    "columns": Shape(2, build_columns, expected_columns, wave_bytes=42),
    "flights": Shape(2, build_flights, expected_flights, left=3, wave_bytes=30),
    "deadly": Shape(1, build_deadly, expected_deadly, left=3, failures=1, wave_bytes=1 << 30),
}


_DOUBTED_PHASES = ("epoch.", "deliver.", "settle.", "ledger.", "documents.", "outbox.")

DOUBTED = tuple(point for point in POINTS if point.startswith(_DOUBTED_PHASES))
"""Points of the phases in which a destination is doubted."""


def applies(point: str, guarantee: str, shape: str) -> bool:
    """Does this case pass the point?"""
    for prefix in ("create.", "plan.", "version.", "command.", "notify."):
        if point.startswith(prefix):
            return point.startswith(SHAPES[shape].passes) if SHAPES[shape].passes else False
    if point == "deliver.hung":
        return SHAPES[shape].hangs
    if shape == "deadly" and not point.startswith(("transform.", "commit.", "wave.", "deliver.", "sweep.")):
        return False
    if shape == "doubted" and (point not in DOUBTED or point == "settle.repair"):  # the first chunk leaves no events
        return False
    if shape == "released" and point in ("transform.ledger", "settle.rewrite"):  # nothing fails, nor is tried again
        return False
    if point == "deliver.claimed":
        return guarantee in (MIXED, "at-most-once")
    return guarantee != "exactly-once" or point not in ("deliver.noted", "settle.repair")
