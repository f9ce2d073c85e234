"""Queues as destinations, on real Spark: a worker that dies within an append, and Spark's own retry of its task."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, Outcome, Queue
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory
from tests.support.plan_world import run_plan


class Deadly(Queue):
    """Its worker is killed after the second append, before anybody knows of it; once."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes = super().write(chunk)
        mark = self.root / "killed"
        if chunk[0].id >= "d20" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes


@pytest.mark.rule("queue.destination")
@pytest.mark.spark
def test_a_worker_that_dies_within_an_append_doubles_nothing(place: Path, spark: Any) -> None:
    """Each document is one message, in the order of the source."""
    plan = Plan("pipe", version=1)
    documents = [{"id": f"d{n:02}", "n": n} for n in range(60)]
    plan.source("docs", Memory(documents)).destination("out", Deadly("out", place), batch=20)
    run_plan(plan, place / "state", runner=spark)
    assert (place / "killed").exists()
    assert [m.body["n"] for m in DurableQueue("out", place).read(limit=1000)] == list(range(60))
