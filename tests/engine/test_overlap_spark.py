"""A wave is transformed while the one before it is delivered, on Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations.base import Delivery
from ferryman.document import Document
from ferryman.limits import KIB
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder

GIVE_UP_S = 120
"""A test that fails should end."""


def awaiting(seen: Path, what: str) -> Callable[[list[Delivery]], None]:
    """The destination's first chunk is not taken before a document of the next wave has been through the step."""

    def before(chunk: list[Delivery]) -> None:
        until = time.monotonic() + GIVE_UP_S
        while not (seen / what).exists():
            if time.monotonic() > until:
                raise RuntimeError(f"{what} was not transformed meanwhile")
            time.sleep(0.02)

    return before


def marking(seen: Path) -> Callable[[Any], Any]:
    def step(doc: Document) -> Document:
        (seen / doc.id).touch()
        return doc

    return step


@pytest.mark.spark
@pytest.mark.rule("wave.ahead")
def test_the_next_wave_is_transformed_while_this_one_is_delivered(place: Path, spark: Any) -> None:
    """The destination waits for it: would it come later, nothing were ever delivered."""
    seen = place / "seen"
    seen.mkdir()
    out = Recorder(place / "out.jsonl", before=awaiting(seen, "d1"), single_writer=True)
    trial = PlanWorld(place).build(marking(seen), out=out)
    trial.put("d0", "d1", text="x" * KIB)
    summary = trial.run(runner=spark, wave_bytes=KIB)
    assert (summary.waves, summary.messages) == (2, [])
    assert out.arrived() == ["d0", "d1"]
