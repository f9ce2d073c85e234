"""A preview of a table, on Spark."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plan_world import PlanWorld, run_plan
from tests.support.previewing import done, look, promised, some_fail
from tests.support.snapshot import snapshot


@pytest.mark.spark
def test_a_table_is_previewed_on_spark(net: PlanWorld, spark: Any) -> None:
    """Rows of a DataFrame; what is said is what a run on Spark then does."""
    from ferryman.sources import DataFrame

    net.plan.source(
        "docs", DataFrame(lambda session: session.range(40).selectExpr("cast(id AS string) AS id", "id AS n"))
    )
    net.plan.step("some-fail", some_fail, after="docs").destination("out", net.out("out"))
    before = snapshot(net.folder)
    found = look(net, runner=spark, limit=1000)
    assert snapshot(net.folder) == before
    assert len(found.documents) == 40
    assert len(look(net, runner=spark, limit=3).documents) == 3
    run_plan(net.plan, net.state, runner=spark, wait=0)
    assert promised(found) == done(net, 0)
