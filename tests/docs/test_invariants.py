"""Invariants of docs/architecture.md that can be seen in one run; the others are proved by the crash tests."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from ferryman import Document
from ferryman.destinations import Delivery, Outcome
from ferryman.engine.commit import commit_wave
from ferryman.errors import StateLost
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder


def must_be_committed(root: Path, chunk: list[Delivery]) -> None:
    """Called by the destination before it writes: the log of the outbox names every row of the chunk."""
    outbox = DeltaTable(str(root / "outbox"))
    committed = ds.dataset(outbox.file_uris()).to_table(columns=["delivery_hash"])["delivery_hash"].to_pylist()
    assert {d.hash for d in chunk} <= set(committed)


def test_nothing_leaves_before_the_commit(trial: PlanWorld) -> None:
    """I1: whenever a destination sees a row, that row's wave is committed."""
    trial.put("a", "b", "c")
    root = trial.build().root
    trial.build(out=Recorder(trial.folder / "out.jsonl", before=partial(must_be_committed, root)), attempts=1)

    summary = trial.run()

    assert (summary.exit, summary.delivered) == (0, 3)


def test_a_stale_driver_cannot_commit(trial: PlanWorld) -> None:
    """I2: a driver that lost its lock without noticing is stopped by the epoch of the next one."""
    first = trial.take()
    first.release()
    with trial.take() as second:
        with pytest.raises(StateLost, match="another driver"):
            commit_wave(first, 1)
        commit_wave(second, 1)
        assert second.wave == 1


def guess(doc: Document) -> Document:
    doc["guess"] = random.random()
    return doc


def at_third(delivery: Delivery) -> Outcome:
    return Outcome.ok() if delivery.attempt == 3 else Outcome.transient("not yet")


@pytest.mark.rule("guarantee.hash")
def test_a_delivery_is_the_same_on_every_attempt(trial: PlanWorld) -> None:
    """I3: same bytes, same hash, same sequence, though the step draws lots."""
    trial.put("a", "b")
    trial.build(guess, answer=at_third).run(wait=5)

    lines = trial.out().lines()
    assert [d["attempt"] for d in lines if d["id"] == "a"] == [1, 2, 3]
    for id in ("a", "b"):
        seen = {(d["hash"], d["seq"], d["text"], d["fields"]["guess"]) for d in lines if d["id"] == id}
        assert len(seen) == 1
