"""A stream, as a plan reads it: what a batch is says Spark's checkpoint, and what was processed says the state."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.document import Document
from ferryman.engine.migration import migrate
from ferryman.errors import PermanentError, Unavailable, UsageError
from ferryman.operations import fsck, retry
from ferryman.plan import Plan
from ferryman.sources import Stream
from ferryman.sources.stream import offsets_of
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.fake_stream import FakeSpark, append
from tests.support.invariants import rows
from tests.support.plan_world import Watch, run_plan
from tests.support.program import run_program
from tests.support.recorder import Recorder

OWN_POINTS = ("stream.rows", "stream.record", "stream.noted")
"""Crash points of a stream, to which ``stream_story`` comes eight times and more."""

POINTS = ("transform.done", "commit.ready", "wave.logged", "wave.synced", "settle.closed")


class World:
    """A plan that reads a stream of the rows of a file."""

    def __init__(self, place: Path, *, version: int = 1, step: Any = None, **options: Any) -> None:
        self.place = place
        self.rows = place / "rows.jsonl"
        self.out = Recorder(place / "out")
        self.watch = Watch()
        self.spark = FakeSpark()
        self.plan = Plan("streamed", version=version)
        node = self.plan.source("stream", Stream(lambda spark: spark.read_stream(self.rows), **options))
        node = node if step is None else node.step("step", step)
        node.destination("out", self.out, backoff=0)

    def put(self, *numbers: int) -> None:
        append(self.rows, ({"id": f"d{n % 4}", "n": n} for n in numbers))

    def run(self, **options: Any) -> Any:
        self.watch = Watch()
        return run_plan(
            self.plan, self.place / "state", runner=self.spark, **{"wait": 0, "observer": self.watch, **options}
        )

    @property
    def folder(self) -> Path:
        return Path(str(state_root(self.plan, self.place / "state"))) / "streams" / "stream"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def numbers(self) -> list[int]:
        """What arrived, in its order."""
        return [line["fields"]["n"] for line in self.out.lines() if line["said"] == "ok"]

    def reason(self) -> str:
        """Why the plan stands still."""
        return " ".join(self.watch.messages)


@pytest.mark.rule("stream.once")
def test_each_row_arrives_once_and_in_order(place: Path) -> None:
    """In several batches and several runs; nothing is left in ``documents``."""
    world = World(place)
    world.put(*range(10))
    assert world.run().delivered == 10
    assert world.run().waves == 0
    world.put(10, 11)
    assert world.run().delivered == 2
    assert world.numbers() == list(range(12))
    assert [line["id"] for line in world.out.lines()] == list(map(str, range(12)))
    assert rows(Path(str(state_root(world.plan, place / "state"))), "documents") == []
    assert fsck(world.plan, state=place / "state") == []


def test_an_empty_stream(place: Path) -> None:
    world = World(place)
    assert world.run().exit == 0
    world.put(1)
    assert world.run().delivered == 1


def test_rows_with_an_id_are_versions_of_a_document(place: Path) -> None:
    """Within a batch and later; the last one is what the destination has."""
    world = World(place, id="id")
    world.put(*range(10))
    world.run()
    newest = {line["id"]: line["fields"]["n"] for line in world.out.lines()}
    assert newest == {"d0": 8, "d1": 9, "d2": 6, "d3": 7}


def test_a_row_without_its_id_is_refused(place: Path) -> None:
    world = World(place, id="id", on_error="continue")
    append(world.rows, [{"id": "a", "n": 1}, {"id": None, "n": 2}, {"id": "c", "n": 3}])
    summary = world.run()
    assert (summary.delivered, summary.rejected) == (2, 1)
    [row] = account.deliveries(state_root(world.plan, place / "state"), status="rejected", plan=world.plan)
    assert "no 'id' (null or empty)" in row["message"]


@pytest.mark.rule("stream.again")
def test_a_batch_that_comes_again_changes_nothing(place: Path) -> None:
    """Spark has not noted it as done, and the plan has committed it."""
    world = World(place)
    world.put(*range(6))
    world.run()
    for path in (world.checkpoint / "commits").iterdir():
        path.unlink()
    summary = world.run()
    assert (summary.waves, summary.exit) == (0, 0)
    assert world.numbers() == list(range(6))
    assert len(list((world.checkpoint / "commits").iterdir())) == 2  # and Spark goes on behind it


@pytest.mark.rule("stream.again")
def test_a_batch_that_was_stored_is_not_read_again(place: Path) -> None:
    """Its rows are those of before, whatever the source gives now."""
    away = place / "away"
    away.touch()

    def step(doc: Document) -> Document:
        if away.exists():
            raise Unavailable("the service is away")
        return doc

    world = World(place, step=step)
    world.put(0, 1, 2)
    assert world.run().exit == 4
    assert world.numbers() == []
    world.rows.write_text(world.rows.read_text().replace('"n": 2', '"n": 200'))
    away.unlink()
    assert world.run().exit == 0
    assert world.numbers() == [0, 1, 2]


@pytest.mark.rule("stream.foreign")
@pytest.mark.parametrize("runs", [1, 2])
def test_an_older_checkpoint_that_plans_a_batch_again(place: Path, runs: int) -> None:
    """The same number with other offsets: the stream stops before it reads anything twice."""
    world = World(place)
    world.put(0, 1, 2)
    world.run()
    shutil.copytree(world.checkpoint, place / "older")
    world.put(3)
    world.run()
    shutil.rmtree(world.checkpoint)
    (place / "older").rename(world.checkpoint)
    world.put(4, 5)
    for _ in range(runs):
        assert world.run().exit == 4
        assert "batch 1 of the stream has other offsets than the batch of this number" in world.reason()
        assert "Put back the checkpoint that belongs to the state; or remove" in world.reason()
    assert world.numbers() == [0, 1, 2, 3]
    shutil.rmtree(world.checkpoint)  # the way on that it says: all is read again, as another stream
    world.run()
    assert world.numbers()[4:] == list(range(6))
    assert "the stream is not what was read before" in world.reason()


def test_an_older_checkpoint_with_the_same_batches(place: Path) -> None:
    """It plans the batches again as they were: they are skipped, and it goes on behind them."""
    world = World(place)
    world.put(*range(9))
    world.run()
    for name in "commits", "offsets":
        for number in "1", "2":
            (world.checkpoint / name / number).unlink()
    world.put(9)
    world.run()
    assert world.numbers() == list(range(10))


@pytest.mark.rule("stream.foreign")
def test_a_newer_checkpoint_than_the_state(place: Path) -> None:
    """What its batches had is not in the state: nothing is passed without a word."""
    world = World(place)
    world.put(0, 1, 2)
    world.run()
    shutil.copytree(place / "state", place / "copy")
    world.put(3, 4, 5)
    world.run()
    shutil.copytree(world.checkpoint, place / "newer")
    shutil.rmtree(place / "state")
    (place / "copy").rename(place / "state")
    shutil.rmtree(world.checkpoint)
    (place / "newer").rename(world.checkpoint)
    world.put(6)
    assert world.run().exit == 4
    assert "goes on with batch 2, and the state has its batches up to 0: its checkpoint is newer" in world.reason()
    assert world.numbers() == [0, 1, 2, 3, 4, 5]


def test_the_names_of_files_are_part_of_the_offsets(tmp_path: Path) -> None:
    """Spark's source of files has only numbers as offsets, of entries of a log."""
    for folder in "offsets", "sources/0":
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":2}')
    entry = '{{"path":"file:///in/{}.json","timestamp":1,"batchId":{}}}'
    found = set()
    for name in "a", "b":
        (tmp_path / "sources" / "0" / "2").write_text("v1\n" + entry.format(name, 2))
        found.add(offsets_of(tmp_path, 3))
    assert len(found) == 2
    (tmp_path / "sources" / "0" / "2").unlink()
    (tmp_path / "sources" / "0" / "2.compact").write_text(f"v1\n{entry.format('z', 1)}\n{entry.format('b', 2)}")
    assert offsets_of(tmp_path, 3) in found
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchTimestampMs":2}\n{"logOffset":2}')
    assert offsets_of(tmp_path, 3) in found  # the time of planning is no offset
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchTimestampMs":2}\n{"t":{"0":5}}\n-\n17')
    assert offsets_of(tmp_path, 3) not in found


def test_a_query_that_fails_is_an_outage(place: Path) -> None:
    """It is tried again; a run of its own says why."""
    world = World(place)
    world.put(*range(6))

    def fail(batch: int) -> None:
        if batch == 1:
            raise OSError("the broker is away")

    world.spark.before = fail
    assert world.run().exit == 4
    assert "the query has failed: OSError: the broker is away" in world.reason()
    assert world.numbers() == [0, 1, 2]
    world.spark.before = lambda batch: None
    assert world.run().exit == 0
    assert world.numbers() == list(range(6))


def test_a_step_that_fails_stops_the_plan_before_its_row(place: Path) -> None:
    def step(doc: Document) -> Document:
        if doc.fields["n"] == 1 and not (place / "mended").exists():
            raise PermanentError("never")
        return doc

    world = World(place, step=step)
    world.put(*range(6))
    assert world.run().exit == 4
    assert world.numbers() == [0]
    (place / "mended").touch()
    retry(world.plan, state=place / "state")
    assert world.run().exit == 0
    assert world.numbers() == list(range(6))


@pytest.mark.parametrize("id", [None, "id"])
def test_a_row_that_failed_is_retried_from_the_state(place: Path, id: str | None) -> None:
    def step(doc: Document) -> Document:
        if doc.fields["n"] == 1 and not (place / "mended").exists():
            raise PermanentError("never")
        return doc

    world = World(place, step=step, on_error="continue", id=id)
    world.put(*range(3))
    assert world.run().rejected == 1
    world.rows.write_text("")  # the source has forgotten them
    (place / "mended").touch()
    retry(world.plan, state=place / "state", status="rejected")
    assert world.run().rejected == 0
    assert sorted(world.numbers()) == [0, 1, 2]


def test_a_row_that_is_not_kept_any_more(place: Path) -> None:
    def step(doc: Document) -> Document:
        if doc.fields["n"] == 1:
            raise PermanentError("never")
        return doc

    world = World(place, step=step, on_error="continue", kept_batches=1)
    world.put(*range(12))
    world.run()
    assert len(list((world.folder / "batches").glob("*.parquet"))) <= 2
    retry(world.plan, state=place / "state", status="rejected")
    world.run()
    [row] = account.deliveries(state_root(world.plan, place / "state"), status="rejected", plan=world.plan)
    assert "kept_batches" in row["message"]


@pytest.mark.rule("stream.again", "stream.foreign")
def test_many_batches_leave_few_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of old batches does not grow for ever, and a checkpoint from before is still refused."""
    monkeypatch.setattr(limits, "STREAM_RECORDS", 5)
    world = World(place, kept_batches=2)
    world.spark.per_batch = 1
    world.put(0)
    world.run()
    shutil.copytree(world.checkpoint, place / "older")
    world.put(*range(1, 20))
    world.run()
    assert world.numbers() == list(range(20))
    assert len(list((world.folder / "batches").iterdir())) <= 5 + 2
    for path in (world.checkpoint / "commits").iterdir():
        if int(path.name) > 17:
            path.unlink()
    assert world.run().waves == 0
    world.put(20)
    assert world.run().delivered == 1
    assert fsck(world.plan, state=place / "state") == []
    shutil.rmtree(world.checkpoint)
    (place / "older").rename(world.checkpoint)
    assert world.run().exit == 4
    assert "its checkpoint is older than the state" in world.reason()
    assert world.numbers() == list(range(21))


def test_what_is_no_stream_is_refused(place: Path) -> None:
    for read, why in ((lambda spark: 5, "a int that is not a stream"), (lambda spark: None, "NoneType")):
        world = World(place / why[-4:])
        world.place.mkdir()
        world.plan = Plan("streamed", version=1)
        world.plan.source("stream", Stream(read)).destination("out", world.out)
        assert world.run().exit == 4
        assert why in world.reason()
    with pytest.raises(UsageError, match="give a function of the SparkSession"):
        Stream("rate")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give a number of batches"):
        Stream(lambda spark: None, kept_batches=-1)


def test_a_column_that_is_not_there(place: Path) -> None:
    world = World(place, id="key")
    assert world.run().exit == 4
    assert "Stream(id='key'): there is no such column. There are: id, n" in world.reason()


def test_without_spark(place: Path) -> None:
    world = World(place)
    with pytest.raises(UsageError, match="there is no Spark here"):
        run_plan(world.plan, place / "state", runner=InProcess(), checked=False)


def test_a_newer_version_of_the_plan_goes_on(place: Path) -> None:
    world = World(place)
    world.put(*range(4))
    world.run()
    newer = World(place, version=2)
    migrate(state_root(newer.plan, place / "state"), newer.plan, 1)
    newer.put(4, 5)
    assert newer.run().delivered == 2
    assert newer.numbers() == list(range(6))


def test_a_record_that_is_damaged_is_named(place: Path) -> None:
    world = World(place)
    world.put(1)
    world.run()
    [path] = (world.folder / "batches").glob("*.json")
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert [str(path) in str(finding) for finding in fsck(world.plan, state=place / "state")] == [True]


def test_status_needs_no_spark(place: Path) -> None:
    world = World(place)
    world.put(*range(4))
    world.run()
    assert account.status(state_root(world.plan, place / "state"), world.plan)["balanced"]


def test_a_run_that_ends_early_leaves_no_query(place: Path) -> None:
    """A batch that nobody takes is not noted as done, and nothing waits for it."""
    world = World(place)
    world.put(*range(6))
    before = set(threading.enumerate())
    with pytest.raises(BaseException, match="by a test"):
        world.run(checked=False, observer=_Interrupting())
    assert not any(query.isActive for query in world.spark.queries)
    assert list((world.checkpoint / "commits").iterdir()) == []
    assert set(threading.enumerate()) <= before
    world.run()
    assert world.numbers() == list(range(6))


class _Interrupting(Watch):
    def phase(self, wave: int, name: str) -> None:
        if name == "transform":
            raise KeyboardInterrupt("by a test")


@pytest.mark.rule("stream.once")
@pytest.mark.parametrize(
    "point",
    [
        "stream.record:4",
        *(pytest.param(f"{name}:{n}", marks=pytest.mark.slow) for name in OWN_POINTS for n in (1, 2, 5, 6, 7, 8)),
        *(pytest.param(f"{name}:{n}", marks=pytest.mark.slow) for name in POINTS for n in range(1, 6)),
    ],
)
def test_a_run_with_a_stream_may_be_killed(place: Path, point: str) -> None:
    killed = run_program("tests.support.stream_story", place, point=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_program("tests.support.stream_story", place)
    assert json.loads(done.stdout or "null") == [0, True, True, True, []], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_random_kills(place: Path, seed: int) -> None:
    """At any moment, again and again, until it comes through."""
    command = [sys.executable, "-m", "tests.support.stream_story", str(place)]
    for number in range(6):
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(0.5 + (seed * 37 + number * 101) % 200 / 100)  # the moment is what is drawn
        running.kill()
        running.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout or "null") == [0, True, True, True, []], done.stderr
