"""At-most-once plans on Spark, which starts a task again that it lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.operations import resolve
from tests.support.invariants import check
from tests.support.once import Once

pytestmark = pytest.mark.spark


def run(once: Once, spark: Any) -> Any:
    summary = ferryman.run(once.plan, state=once.state, spark=spark.spark)
    check(once.root, once.plan, summary)
    return summary


@pytest.mark.rule("once.spark")
def test_a_task_whose_worker_dies_is_not_run_again(place: Path, spark: Any) -> None:
    """The worker of message 700 dies in its step. Spark starts the task again, and no step sees a message twice; only
    this one is in doubt."""
    once = Once(place)
    once.put(*range(1, 1001))
    once.fail(700, "kill")
    summary = run(once, spark)
    assert (summary.exit, summary.in_doubt) == (3, 1)
    assert once.in_doubt() == [("in/700..700", "to_out")]
    assert sorted(once.values()) == [n for n in range(1, 1001) if n != 700]
    assert set(once.seen().values()) == {1}

    once.mend(700)
    resolve(once.plan, "pending", state=once.state)
    assert run(once, spark).exit == 0
    assert sorted(once.values()) == list(range(1, 1001))
    assert {n for n, times in once.seen().items() if times > 1} == {700}
