"""Order of one document's deliveries at a destination, also those of one revision."""

from __future__ import annotations

import os
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferryman.destinations import Outcome
from ferryman.destinations.base import Delivery, Effect
from ferryman.document import Document
from ferryman.engine.send_order import SendOrder, send_orders
from ferryman.errors import TransientError
from ferryman.records.rows import Result, RowResult
from ferryman.routers import Duplicate
from ferryman.storage.parquet import write_part
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder

# --- a retry with other children ------------------------------------------------------------------------


def splitting(mark: Path) -> Any:
    """The document, and a child whose name is another one once the mark is there."""

    def split(doc: Document) -> Any:
        yield doc
        yield doc.child("new" if mark.exists() else "old")

    return split


def first_upsert(delivery: Delivery) -> bool:
    return delivery.operation == "upsert" and delivery.attempt == 1


def failing_once(mark: Path) -> Any:
    def parent_only(doc: Document) -> Document:
        if doc.parent_id is None and not mark.exists():
            mark.touch()
            raise TransientError("not yet")
        return doc

    return parent_only


@pytest.mark.rule("order.sequence")
def test_a_retrys_delete_waits_for_the_upsert_that_it_takes_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try made a child that its destination could not take yet; the second does not make it any more, which
    is a delete of the same revision. It goes after the upsert: nothing is left there that nobody knows of."""
    net, mark = PlanWorld.empty(place), place / "mark"
    net.source()
    out = net.out("out")
    out.answer = lambda d: Outcome.transient("busy") if d.id == "a#old" and first_upsert(d) else Outcome.ok()
    split = net.plan.step("split", splitting(mark), after="docs")
    split.step("flaky", failing_once(mark)).destination("out", out, backoff=0)
    # The destination's wait is long, the step's is none.
    monkeypatch.setattr("ferryman.engine.retries.draw_due_us", lambda _, now_us: now_us + NOT_SOON_S * 1_000_000)
    net.put("a")
    assert net.run().exit == 0
    took = [(line["id"], line["op"]) for line in out.lines() if line["said"] == "ok"]
    assert took == [("a#old", "upsert"), ("a", "upsert"), ("a#old", "delete")]


def test_copies_by_different_routes_do_not_wait_for_each_other(place: Path) -> None:
    """They are several deliveries of one document, without an order."""
    net = PlanWorld.empty(place)
    net.source()
    out = net.out("out")
    both = net.plan.route("both", Duplicate(), after="docs")
    one, two = both.step("one", _same), both.step("two", _same)
    net.plan.destination("out", out, after=[one, two], attempts=9, backoff=0)
    out.answer = lambda d: Outcome.transient("busy") if d.attempt == 1 else Outcome.ok()
    net.put("a", "b")
    summary = net.run()
    assert summary.exit == 0
    waves = {line["call"]: line["route"] for line in out.lines() if line["said"] == "ok"}
    assert sorted(net.arrived("out")) == ["a by one", "a by two", "b by one", "b by two"]
    assert len(waves) <= 2, waves


def _same(doc: Document) -> Document:
    return doc


# --- late answers ---------------------------------------------------------------------------------------


def killed(chunk: list[Delivery]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.rule("order.late")
@pytest.mark.parametrize("change", ["newer", "deleted", "none"])
def test_a_late_answer_sends_nothing_old_after_something_newer(place: Path, change: str) -> None:
    """Under at-most-once: the worker that was in the middle of a chunk says at last that nothing took effect, and the
    next version was sent meanwhile. Without one it is sent again."""
    trial = PlanWorld(place).build(out=Recorder(place / "out.jsonl", before=killed, effect=Effect.POTENT))
    trial.put("a", text="one")
    assert trial.run(runner=InProcess(fork=True, failures=1)).in_doubt == 1
    with trial.take() as state:
        [pass_] = [number for number in state.journal.passes() if state.journal.claims(number)]
        [claim] = state.journal.claims(pass_)
        state.journal.publish(pass_, Result(*claim, 1, 0, None, [RowResult(0, "ERROR", "busy", 1, 0)]))
    trial.out().before = None
    if change == "newer":
        trial.put("a", text="two")
    elif change == "deleted":
        trial.drop("a")
    trial.build(out=trial.out())
    assert trial.run().exit == 0
    came = [(line["op"], line["text"]) for line in trial.out().lines()]
    assert came == {"newer": [("upsert", "two")], "deleted": [("delete", "")], "none": [("upsert", "one")]}[change]
    last = "INDEXED" if change == "none" else "DROPPED"
    statuses = [e["status"] for e in trial.history("a") if e["revision"] == 1]
    assert statuses[0] == "INDEXING"
    assert statuses[-1] == last


# --- the comparison itself ------------------------------------------------------------------------------

Row = tuple[str, str, int, int | None]
"""(document, route, revision, due)"""


def written(folder: Path, files: dict[int, list[Row]]) -> dict[int, Path]:
    found = {}
    for key, rows in files.items():
        columns = {
            "row": pa.array(range(len(rows)), pa.int32()),
            "source": ["docs"] * len(rows),
            "document": [r[0] for r in rows],
            "route": [r[1] for r in rows],
            "revision": pa.array([r[2] for r in rows], pa.int64()),
            "due": pa.array([r[3] for r in rows], pa.int64()),
            "key_hash": pa.nulls(len(rows), pa.int64()),
        }
        found[key] = folder / write_part(folder, pa.table(columns), epoch=1).path
    return found


def compared(folder: Path, files: dict[int, list[Row]], share_rows: int) -> tuple[set[int], set[int]]:
    """Sequences that go first, sequences that are held."""
    orders: dict[int, SendOrder] = send_orders(
        written(folder, files), sum(map(len, files.values())), folder, share_rows
    )
    first = {key + int(row) for key, order in orders.items() for row in order.first}
    held = {key + int(row) for key, order in orders.items() for row in order.held}
    return first, held


@pytest.mark.parametrize("share_rows", [1, 3, 100])
def test_the_lowest_sequence_of_each_document_goes_first(tmp_path: Path, share_rows: int) -> None:
    """Older revisions before newer ones whatever their routes; within a revision by route; parked rows count not."""
    files: dict[int, list[Row]] = {
        100: [("a", "", 1, 5), ("b", "", 1, None), ("c", "x", 1, 0), ("c", "y", 1, 0), ("alone", "", 7, 0)],
        200: [("b", "", 2, 0), ("a", "", 1, 0), ("c", "x", 1, 0)],
        300: [("a", "", 2, 0), ("c", "z", 2, 0)],
    }
    first, held = compared(tmp_path, files, share_rows)
    assert first == {100, 102, 103}
    assert held == {201, 202, 300, 301}


def test_rows_of_documents_that_have_no_other_take_little_memory(tmp_path: Path) -> None:
    """Of these, only a hash is in memory."""
    count = 100_000
    files = written(tmp_path, {n * count: [(f"{n}/{i}", "", 1, 0) for i in range(count)] for n in range(2)})
    send_orders(files, count, tmp_path)  # loads what it needs
    tracemalloc.start()
    try:
        assert send_orders(files, 2 * count, tmp_path) == {}
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * 2 * count


def test_it_agrees_with_the_rule_told_row_by_row(tmp_path: Path) -> None:
    """Random rows against the definition."""
    chance = np.random.default_rng(7)
    for turn in range(5):
        files: dict[int, list[Row]] = {}
        for key in (1000, 2000, 3000):
            files[key] = [
                (f"d{chance.integers(6)}", "xy"[chance.integers(2)], int(chance.integers(1, 4)), [None, 0, 9][n])
                for n in chance.integers(0, 3, size=int(chance.integers(1, 12)))
            ]
        rows = [(key + i, *row) for key, of_file in files.items() for i, row in enumerate(of_file)]
        owed = [r for r in rows if r[4] is not None]
        held = {
            seq
            for seq, document, route, revision, _ in owed
            if any(
                d == document and (v < revision or (v == revision and r == route and s < seq)) for s, d, r, v, _ in owed
            )
        }
        waited_for = {d for seq, d, *_ in owed if seq in held}
        first = {seq for seq, d, *_ in owed if d in waited_for} - held
        (tmp_path / str(turn)).mkdir()
        assert compared(tmp_path / str(turn), files, [2, 1000][turn % 2]) == (first, held)
