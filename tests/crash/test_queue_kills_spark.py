"""The flow of five plans on Spark, killed after the first rows have arrived, and started again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.queues import five_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = 20


@pytest.mark.rule("queue.exactly-once")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_flow_is_killed_on_spark(number: int, tmp_path: Path) -> None:
    """Every queue is as if nobody had killed it."""
    five_spark.killed_and_run_again(tmp_path, random.Random(number))
