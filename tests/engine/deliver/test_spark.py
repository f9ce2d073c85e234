"""Deliver, in the workers of Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.support.delivering import beside_a_hanging_one
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


@pytest.mark.rule("destination.hangs")
@pytest.mark.spark
def test_a_destination_that_hangs_delays_no_other_on_spark(place: Path, spark: Any) -> None:
    """With two slots: it never holds both."""
    run_plan(_warm(place), place / "warm", runner=spark)  # starting Python workers is not what is measured
    began = time.monotonic()
    seconds, healthy, summary = beside_a_hanging_one(place, spark, "at-least-once")
    took = time.monotonic() - began
    assert len(healthy.counted()) == 600
    assert seconds < took - 1, "done before the hanging one was given up"
    assert (summary.exit, summary.pending) == (4, 600)


def _warm(place: Path) -> Plan:
    plan = Plan("warm", 1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", Recorder(place / "warm.jsonl"))
    return plan
