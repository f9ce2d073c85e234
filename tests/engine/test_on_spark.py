"""What is tested in this process elsewhere holds in the workers of Spark."""

from __future__ import annotations

import gzip
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

import ferryman
from ferryman import Document, Flow, destinations
from ferryman.destinations import Delivery, Outcome
from ferryman.errors import EngineError, StateDamaged
from ferryman.limits import KIB
from ferryman.operations import resolve
from ferryman.plan import Plan
from ferryman.queues import Queue
from ferryman.sources import Doubt, Files, Lines, Listed, Memory
from ferryman.sources.folder import Piece
from tests.support.delivering import beside_a_hanging_one
from tests.support.invariants import check
from tests.support.joined import Into, Messages, pipe
from tests.support.once import Once
from tests.support.outages import AWAY, Share, asking, down, ids
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.previewing import done, look, promised, some_fail
from tests.support.recorder import Recorder
from tests.support.scanning import counting
from tests.support.snapshot import snapshot

pytestmark = pytest.mark.spark


def test_executors_are_asked_on_spark(spark: Any, place: Path) -> None:
    """None of this session's has it."""
    net = PlanWorld.empty(place)
    net.source().step("see", lambda doc: doc, needs="gpu").destination("out", net.out("out"))
    net.put("a")
    assert "needs gpu, which no executor has" in net.run(runner=spark).messages[-1]


def test_every_step_sees_every_document_once_on_spark(place: Path, spark: Any) -> None:
    """Two slots, several tasks and waves: each call is made once."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "first"), counting(calls, "second"))
    documents = [f"d{i:04}" for i in range(1500)]
    trial.put(*documents)
    summary = trial.run(runner=spark, wave_bytes=2000)
    assert summary.waves > 1
    assert sorted(calls.read_text().splitlines()) == sorted(
        f"{s} {id}" for s in ("first", "second") for id in documents
    )
    assert trial.out().counted() == dict.fromkeys(documents, 1)


def test_lines_on_spark(place: Path, spark: Any) -> None:
    """The same, by Spark's workers: files travel as pieces, lines as what was staged."""
    folder = place / "corpus"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.gz").write_bytes(gzip.compress("".join(f"{name} {i}\n" for i in range(300)).encode()))
    trial = PlanWorld(place).build(source=Lines(folder))

    assert trial.run(runner=spark).delivered == 900
    assert set(trial.out().counted().values()) == {1}


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


class OddlyMounted(Files):
    """Tasks with odd numbers list what lies at another place."""

    def __init__(self, root: Path, there: Path) -> None:
        super().__init__(root)
        self.there = Files(there)

    def listing(self, partition: Piece) -> Iterator[Listed | Doubt]:
        task = TaskContext.get()
        return (self.there if task and task.partitionId() % 2 else super()).listing(partition)


@pytest.mark.rule("delete.other-machine")
def test_a_worker_that_sees_an_empty_folder_deletes_nothing(place: Path, spark: Any) -> None:
    """Exit 4, and the host is named; once it sees the folder, all is as it was."""
    root, there = place / "corpus", place / "there"
    there.mkdir()
    for folder in range(8):
        (root / str(folder)).mkdir(parents=True)
        for name in range(10):
            (root / str(folder) / f"{name}.txt").write_text(f"{folder}/{name}")
    out = Recorder(place / "out.jsonl")

    def run(source: Files) -> Any:
        plan = Plan("mounts", version=1)
        plan.source("files", source).destination("out", out)
        return run_plan(plan, place / "state", runner=spark)

    assert run(Files(root)).exit == 0
    blind = run(OddlyMounted(root, there))
    assert blind.exit == 4
    assert any("incomplete listing" in message and "but missing on" in message for message in blind.messages)
    assert run(Files(root)).exit == 0
    assert len(out.arrived()) == 80, "no delete, and nothing twice"


class Refused(Exception):
    """Is called neither Error nor Exception."""


def damaged(_: int) -> None:
    raise StateDamaged("/state/x", "it is cut short")


def refused(_: int) -> None:
    raise Refused("not today")


def test_errors_of_tasks(spark: Any) -> None:
    """One of ours as it is; of others kind and words."""
    with pytest.raises(StateDamaged) as raised:
        spark.submit(damaged, [1]).result()
    assert (raised.value.path, raised.value.what) == ("/state/x", "it is cut short")
    with pytest.raises(EngineError, match=r"^Spark: .*Refused: not today$"):
        spark.submit(refused, [1]).result()


@pytest.mark.rule("destination.hangs")
def test_a_destination_that_hangs_delays_no_other_on_spark(place: Path, spark: Any) -> None:
    """With two slots: it never holds both."""
    run_plan(_warm(place), place / "warm", runner=spark)  # starting Python workers is not what is measured
    began = time.monotonic()
    seconds, healthy, summary = beside_a_hanging_one(place, spark, "at-least-once")
    took = time.monotonic() - began
    assert len(healthy.counted()) == 600
    assert seconds < took - 1, "done before the hanging one was given up"
    assert (summary.exit, summary.pending) == (4, 600)


def _warm(place: Path) -> Plan:
    plan = Plan("warm", 1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", Recorder(place / "warm.jsonl"))
    return plan


class DeadlyQueue(destinations.Queue):
    """Its worker is killed after the second append, before anybody knows of it; once."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes = super().write(chunk)
        mark = self.root / "killed"
        if chunk[0].id >= "d20" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes


@pytest.mark.rule("queue.destination")
def test_a_worker_that_dies_within_an_append_doubles_nothing(place: Path, spark: Any) -> None:
    """Each document is one message, in the order of the source."""
    plan = Plan("pipe", version=1)
    documents = [{"id": f"d{n:02}", "n": n} for n in range(60)]
    plan.source("docs", Memory(documents)).destination("out", DeadlyQueue("out", place), batch=20)
    run_plan(plan, place / "state", runner=spark)
    assert (place / "killed").exists()
    assert [m.body["n"] for m in Queue("out", place).read(limit=1000)] == list(range(60))


GIVE_UP_S = 120
"""A test that fails should end."""


def awaiting(seen: Path, what: str) -> Callable[[list[Delivery]], None]:
    """The destination's first chunk is not taken before a document of the next wave has been through the step."""

    def before(chunk: list[Delivery]) -> None:
        until = time.monotonic() + GIVE_UP_S
        while not (seen / what).exists():
            if time.monotonic() > until:
                raise RuntimeError(f"{what} was not transformed meanwhile")
            time.sleep(0.02)

    return before


def marking(seen: Path) -> Callable[[Any], Any]:
    def step(doc: Document) -> Document:
        (seen / doc.id).touch()
        return doc

    return step


@pytest.mark.rule("wave.ahead")
def test_the_next_wave_is_transformed_while_this_one_is_delivered(place: Path, spark: Any) -> None:
    """The destination waits for it: would it come later, nothing were ever delivered."""
    seen = place / "seen"
    seen.mkdir()
    out = Recorder(place / "out.jsonl", before=awaiting(seen, "d1"), single_writer=True)
    trial = PlanWorld(place).build(marking(seen), out=out)
    trial.put("d0", "d1", text="x" * KIB)
    summary = trial.run(runner=spark, wave_bytes=KIB)
    assert (summary.waves, summary.messages) == (2, [])
    assert out.arrived() == ["d0", "d1"]


@pytest.mark.slow
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


def run_once(once: Once, spark: Any) -> Any:
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
    summary = run_once(once, spark)
    assert (summary.exit, summary.in_doubt) == (3, 1)
    assert once.in_doubt() == [("in/700..700", "to_out")]
    assert sorted(once.values()) == [n for n in range(1, 1001) if n != 700]
    assert set(once.seen().values()) == {1}

    once.mend(700)
    resolve(once.plan, "pending", state=once.state)
    assert run_once(once, spark).exit == 0
    assert sorted(once.values()) == list(range(1, 1001))
    assert {n for n, times in once.seen().items() if times > 1} == {700}


def plus(doc: Document) -> Document:
    doc["n"] += 1
    return doc


@pytest.mark.rule("flow.run")
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
