"""A flow on real Spark: one session, and what goes through two queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman import Document, Flow
from ferryman.queues import Queue
from tests.support.joined import Into, Messages, pipe
from tests.support.recorder import Recorder


def plus(doc: Document) -> Document:
    doc["n"] += 1
    return doc


@pytest.mark.rule("flow.run")
@pytest.mark.spark
def test_documents_go_through_all_plans(place: Path, spark: Any) -> None:
    """In order, each once; the session that was given goes on."""
    out = Recorder(place / "out.jsonl")
    documents = [{"id": f"d{n:03}", "n": n} for n in range(100)]
    flow = Flow(
        "chain",
        [
            pipe("third", Messages("b", place), out, plus),
            pipe("second", Messages("a", place), Into("b", place), plus),
            pipe("first", documents, Into("a", place), plus),
        ],
    )

    summary = ferryman.run(flow, state=place / "state", spark=spark.spark)

    assert summary.exit == 0, summary.messages
    assert {name: each.delivered for name, each in summary.plans.items()} == dict.fromkeys(
        ("first", "second", "third"), 100
    )
    assert [m.body["n"] for m in Queue("b", place).read(start=1, limit=1000)] == [n + 2 for n in range(100)]
    assert len({line["id"] for line in out.lines() if line["said"] == "ok"}) == 100
    assert spark.submit(len, ["the session is still there"]).result() == [26]
