"""Plans over logs of other kinds than a queue: each entry once, in the order of its partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.sources import Log, Piece
from tests.support.invariants import rows
from tests.support.logs import Batches, ChangeFeed, Topic, read_log
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch


def by_partition(world: PlanWorld) -> dict[str, list[str]]:
    """What stands before an id's last slash -> the rest of the ids, as they arrived."""
    found: dict[str, list[str]] = defaultdict(list)
    for id in world.out().arrived():
        partition, _, place = id.rpartition("/")
        found[partition].append(place)
    return dict(found)


def a_topic(folder: Path) -> tuple[Topic, dict[str, list[str]]]:
    topic = Topic(folder / "topic")
    topic.publish("p0", *({"n": n} for n in range(40)))
    topic.publish("p0", *({"n": n} for n in range(20)), key="k")
    topic.publish("p0", {"n": 60})
    topic.publish("p1", *({"n": n} for n in range(30)))
    topic.compact("p0")
    topic.expire("p0", 5)
    return topic, {"p0": [*map(str, range(5, 40)), "59", "60"], "p1": [*map(str, range(30))]}


def a_feed(folder: Path) -> tuple[ChangeFeed, dict[str, list[str]]]:
    feed = ChangeFeed(folder / "feed")
    for version in range(30):
        feed.commit(*({"row": row} for row in range(version % 4)))
    return feed, {str(v): [*map(str, range(v % 4))] for v in range(30) if v % 4}


def batches(folder: Path) -> tuple[Batches, dict[str, list[str]]]:
    log = Batches(folder / "batches")
    for number in range(30):
        log.add(f"batch {number}".encode())
    return log, {"batch": [*map(str, range(30))]}


LOGS = [a_topic, a_feed, batches]


@pytest.mark.rule("log.once")
@pytest.mark.parametrize("made", LOGS)
def test_each_entry_arrives_once_and_in_order(place: Path, made: Callable[[Path], tuple[Log, Any]]) -> None:
    log, expected = made(place)
    reading = read_log(place, log)
    assert reading.run().exit == 0
    assert by_partition(reading) == expected
    assert reading.run().waves == 0
    assert reading.log()["lag"] == 0
    assert reading.log()["read"] == sum(map(len, expected.values()))
    assert rows(reading.root, "documents") == []


@pytest.mark.rule("log.once")
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
@pytest.mark.parametrize("made", LOGS)
def test_an_interrupted_run_is_continued(place: Path, made: Callable[[Path], tuple[Log, Any]], phase: str) -> None:
    log, expected = made(place)
    reading = read_log(place, log)
    with pytest.raises(Interrupted):
        reading.run(observer=Until(1, phase), checked=False)
    reading.run()
    assert by_partition(reading) == expected


def test_a_wave_is_bounded_where_sizes_are_not_known(place: Path) -> None:
    """Pieces that do not say how large they are do not make one wave of a whole log."""
    log = Batches(place / "batches")
    for number in range(600):
        log.add(str(number).encode())
    reading = read_log(place, log)
    summary = reading.run(wave_bytes=1_000)
    assert summary.waves > 1
    assert by_partition(reading)["batch"] == [*map(str, range(600))]


@pytest.mark.rule("log.partitions")
def test_a_partition_that_appears_later(place: Path) -> None:
    """Is read from its beginning, once; the others go on where they were."""
    topic = Topic(place / "topic")
    topic.publish("p0", {"n": 0}, {"n": 1})
    reading = read_log(place, topic)
    reading.run()
    topic.publish("p1", {"n": 0}, {"n": 1})
    topic.publish("p0", {"n": 2})
    reading.run()
    reading.run()
    assert by_partition(reading) == {"p0": ["0", "1", "2"], "p1": ["0", "1"]}
    assert reading.log() == {"positions": {"p0": 3, "p1": 2}, "read": 5, "lag": 0}


@pytest.mark.rule("log.partitions")
def test_an_entry_that_waits_holds_its_partition_only(place: Path) -> None:
    topic = Topic(place / "topic")
    topic.publish("p0", *({"n": n} for n in range(3)))
    topic.publish("p1", *({"n": n} for n in range(3)))

    def once(doc: Document) -> Document:
        if doc.id == "p0/1":
            raise TransientError("not now")
        return doc

    reading = read_log(place, topic, once)
    assert reading.run(wait=0).exit == 4
    assert by_partition(reading) == {"p0": ["0"], "p1": ["0", "1", "2"]}
    mended = read_log(place, topic, Once(place, TransientError("not now")))
    assert mended.run().exit == 0
    assert by_partition(mended) == {"p0": ["0", "1", "2"], "p1": ["0", "1", "2"]}


class Once:
    """A step that fails once for each of these documents."""

    __name__ = "once"

    def __init__(self, folder: Path, error: Exception, *ids: str) -> None:
        self._folder = folder
        self._error = error
        self._ids = ids

    def __call__(self, doc: Document) -> Document:
        seen = self._folder / f"seen-{doc.id.replace('/', '-')}"
        if doc.id in self._ids and not seen.exists():
            seen.touch()
            raise self._error
        return doc


@pytest.mark.parametrize(("made", "id"), [(a_topic, "p0/7"), (a_topic, "p0/59"), (a_feed, "7/1"), (batches, "batch/3")])
def test_a_retry_of_one_entry(place: Path, made: Callable[[Path], tuple[Log, Any]], id: str) -> None:
    """``ordered=False``: the others pass it, and it is read again by its id."""
    log, expected = made(place)
    log.ordered = False
    reading = read_log(place, log, Once(place, TransientError("not now"), id))
    assert reading.run().exit == 0
    ids = [line["id"] for line in reading.out().lines() if line["said"] == "ok"]
    assert sorted(ids) == sorted(f"{partition}/{place}" for partition, of in expected.items() for place in of)
    assert ids[-1] == id


@pytest.mark.rule("log.shared-places")
@pytest.mark.parametrize(("made", "id"), [(a_feed, "7/1"), (a_topic, "p0/7"), (batches, "batch/3")])
def test_an_entry_that_waits_in_order(place: Path, made: Callable[[Path], tuple[Log, Any]], id: str) -> None:
    """In a change feed with it all of its version: a position is never between two changes of one."""
    log, expected = made(place)
    reading = read_log(place, log, Once(place, TransientError("not now"), id))
    assert reading.run().exit == 0
    assert by_partition(reading) == expected


def test_only_the_entry_that_waited_has_spent_attempts(place: Path) -> None:
    """Not the others of its version, which are walked again with it."""
    feed = ChangeFeed(place / "feed")
    feed.commit({"row": 0}, {"row": 1})
    failing = Once(place, ValueError("odd"), "0/0")
    tries = place / "tries"

    def often(doc: Document) -> Document:
        if doc.id == "0/1":
            with tries.open("a") as file:
                file.write(".")
            raise ValueError("never")
        return doc

    reading = read_log(place, feed, failing, often)
    assert reading.run().exit == 4
    assert tries.stat().st_size == 1 + limits.ATTEMPTS


@pytest.mark.rule("log.unreadable")
def test_an_entry_that_is_refused_is_rejected(place: Path) -> None:
    """Or the plan stops before it, as the source says."""
    topic = Topic(place / "topic", on_error="continue")
    topic.publish("p0", {"n": 0}, "not an object", {"n": 2})
    reading = read_log(place, topic)
    summary = reading.run()
    assert (summary.exit, summary.rejected) == (3, 1)
    assert by_partition(reading) == {"p0": ["0", "2"]}
    [found] = account.deliveries(reading.root, plan=reading.plan, status="rejected")
    assert (found["document"], found["message"]) == ("p0/1", "'not an object' is not an object")
    stopping = read_log(place / "stopping", Topic(place / "topic"))
    assert stopping.run().exit == 4
    assert by_partition(stopping) == {"p0": ["0"]}


class Breaking(Batches):
    """A log of which reading breaks at a place, or behind the last, so often."""

    at = 0

    def read_piece(self, piece: Piece) -> Iterator[Document]:
        for number in range(piece.start, piece.end):
            if number == self.at and not (self.folder.parent / "mended").exists():
                raise ConnectionError("the stream broke")
            yield from super().read_piece(piece._replace(start=number, end=number + 1))
        if self.at < 0:
            raise ConnectionError("the stream broke when it was closed")


@pytest.mark.rule("log.unreadable")
@pytest.mark.parametrize("at", [0, 3, 29])
def test_what_lies_before_an_entry_that_cannot_be_read_goes_through(place: Path, at: int) -> None:
    log = Breaking(place / "batches")
    for number in range(30):
        log.add(str(number).encode())
    log.at = at
    reading = read_log(place, log)
    watch = Watch()
    assert reading.run(observer=watch, wait=0).exit == 4
    assert by_partition(reading).get("batch", []) == [*map(str, range(at))]
    assert reading.log()["positions"] == {"batches": at}
    (place / "mended").touch()
    assert reading.run().exit == 0
    assert by_partition(reading)["batch"] == [*map(str, range(30))]


def test_an_error_behind_the_last_entry_is_not_of_an_entry(place: Path) -> None:
    """All that was asked for is there: the wave takes it."""
    log = Breaking(place / "batches")
    for number in range(5):
        log.add(str(number).encode())
    log.at = -1
    reading = read_log(place, log)
    assert reading.run().exit == 0
    assert by_partition(reading) == {"batch": [*map(str, range(5))]}


class BreakingFeed(ChangeFeed):
    """Reading breaks in the middle of version 3."""

    def read_piece(self, piece: Piece) -> Iterator[Any]:
        for entry in super().read_piece(piece):
            if entry.document.id == "3/1" and not (self.folder.parent / "mended").exists():
                raise ConnectionError("the stream broke")
            yield entry


@pytest.mark.rule("log.shared-places")
def test_a_version_that_is_read_in_part_is_read_again(place: Path) -> None:
    """None of its changes is lost."""
    feed = BreakingFeed(place / "feed")
    for _ in range(5):
        feed.commit({"n": 0}, {"n": 1}, {"n": 2})
    reading = read_log(place, feed)
    assert reading.run(wait=0).exit == 4
    assert by_partition(reading) == {str(v): ["0", "1", "2"] for v in range(3)}
    (place / "mended").touch()
    assert reading.run().exit == 0
    assert by_partition(reading) == {str(v): ["0", "1", "2"] for v in range(5)}


@pytest.mark.rule("log.another")
def test_a_topic_that_was_made_again_is_read_from_its_beginning(place: Path) -> None:
    """In all of its partitions, also in one that comes back later."""
    topic = Topic(place / "topic")
    topic.make_again("first")
    topic.publish("p0", {"n": 0}, {"n": 1})
    topic.publish("p1", {"n": 0}, {"n": 1}, {"n": 2})
    reading = read_log(place, topic)
    reading.run()
    topic.make_again("second")
    topic.publish("p0", {"n": 0})
    reading.run()
    topic.publish("p1", {"n": 0}, {"n": 1})
    reading.run()
    arrived = by_partition(reading)
    assert arrived == {"p0": ["0", "1", "0"], "p1": ["0", "1", "2", "0", "1"]}
