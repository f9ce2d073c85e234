"""Steps, in the workers of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.plan_world import PlanWorld
from tests.support.scanning import counting


@pytest.mark.spark
def test_every_step_sees_every_document_once_on_spark(place: Path, spark: Any) -> None:
    """Two slots, several tasks and waves: each call is made once."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "first"), counting(calls, "second"))
    ids = [f"d{i:04}" for i in range(1500)]
    trial.put(*ids)
    summary = trial.run(runner=spark, wave_bytes=2000)
    assert summary.waves > 1
    assert sorted(calls.read_text().splitlines()) == sorted(f"{s} {id}" for s in ("first", "second") for id in ids)
    assert trial.out().counted() == dict.fromkeys(ids, 1)
