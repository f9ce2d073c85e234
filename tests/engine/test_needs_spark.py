"""What steps need of a machine is asked of executors of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.plan_world import PlanWorld


@pytest.mark.spark
def test_executors_are_asked_on_spark(spark: Any, place: Path) -> None:
    """None of this session's has it."""
    net = PlanWorld.empty(place)
    net.source().step("see", lambda doc: doc, needs="gpu").destination("out", net.out("out"))
    net.put("a")
    assert "needs gpu, which no executor has" in net.run(runner=spark).messages[-1]
