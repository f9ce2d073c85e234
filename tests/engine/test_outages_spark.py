"""Outages on real Spark: what workers meet reaches the driver, and each run asks anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.outages import AWAY, Share, asking, down, ids
from tests.support.plan_world import PlanWorld


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.rule("outage.step")
@pytest.mark.rule("outage.source")
def test_a_step_and_a_source_that_are_away_harm_nobody(place: Path, spark: Any) -> None:
    """Nothing is spent, both are named, what needs neither is delivered; later all goes on."""
    net = PlanWorld.empty(place)
    step_down, share_down = down(place, "step-down"), down(place, "share-down")
    net.source("docs").step("away", asking(step_down, AWAY["unavailable"])).destination("far", net.out("far"))
    net.source("more").destination("near", net.out("near"))
    share = Share([{"id": id} for id in ids(25)], share_down, AWAY["connection"])
    net.plan.source("share", share).destination("shared", net.out("shared"))
    net.put(*ids(25), source="docs")
    net.put(*ids(25), source="more")
    summary = net.run(runner=spark, wait=0)
    assert summary.exit == 4
    told = " ".join(summary.messages)
    assert "step away is not available: Unavailable: the database is being moved" in told
    assert "source share is not available: ConnectionRefusedError: " in told
    assert [net.counts(name) for name in ("far", "shared", "near")] == [
        {"pending": 25},
        {"pending": 25},
        {"delivered": 25},
    ]
    step_down.unlink()
    share_down.unlink()
    assert net.run(runner=spark, wait=0).exit == 0
    for name in ("far", "shared", "near"):
        assert net.arrived(name) == dict.fromkeys(ids(25), 1)
        assert {line["attempt"] for line in net.out(name).lines()} == {1}
