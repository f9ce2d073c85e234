"""Every log keeps the promises of the port: the shipped one, and three of other kinds; and the suite notices who does
not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import Batches, ChangeFeed, Topic

from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Entry, Listed, Log, Piece, Queue
from ferryman.sources.log import Alternating
from ferryman.testing.logs import LogSuite


class TestQueue(LogSuite):
    def source(self, folder: Path) -> Queue:
        queue = DurableQueue("in", folder)
        queue.append([{"n": 1}, {"n": [2, {"a": "b"}]}], meta={"queues": {"before": {"index": 7}}, "tx": 7})
        queue.append([{"n": 3}, {}])
        return Queue("in", folder)

    def append(self, source: Log) -> None:
        self._queue(source).append([{"n": 4}])

    def trim(self, source: Log, id: str) -> None:
        assert id == "in/1"
        self._queue(source).trim(0)
        self._queue(source).append([{"n": 5}])

    def _queue(self, source: Log) -> DurableQueue:
        assert isinstance(source, Queue)
        return DurableQueue(source.name, source.root)


class TestFilteredQueue(TestQueue):
    def source(self, folder: Path) -> Queue:
        super().source(folder)
        DurableQueue("in", folder).append([{"n": 6, "type": "command"}, {"n": 7, "topics": {"doc": True}}])
        return Queue("in", folder, types=["command"], topics=["doc"])


class TestTopic(LogSuite):
    """As Kafka has them."""

    def source(self, folder: Path) -> Topic:
        topic = Topic(folder / "topic")
        topic.publish("p0", {"n": 0}, {"n": 1}, key="a")
        topic.publish("p0", {"n": 2}, {"n": [3]}, "not an object", key=None)
        topic.publish("p0", {"n": 5}, key="a")
        topic.publish("p0", {"n": 6}, {"n": 7})
        topic.compact("p0")
        topic.expire("p0", 1)
        topic.publish("p1", {"n": "one"}, {"n": "two"})
        return topic

    def append(self, source: Log) -> None:
        assert isinstance(source, Topic)
        source.publish("p1", {"n": "three"})
        source.publish("p2", {"n": "new partition"})

    def trim(self, source: Log, id: str) -> None:
        assert isinstance(source, Topic)
        partition, _, offset = id.rpartition("/")
        source.expire(partition, int(offset) + 1)


class TestChangeFeed(LogSuite):
    """As a Delta table has them: several changes have one version."""

    def source(self, folder: Path) -> ChangeFeed:
        feed = ChangeFeed(folder / "feed")
        feed.commit({"key": "a", "change": "insert"})
        feed.commit(*({"key": key, "change": "insert"} for key in "bcd"))
        feed.commit()
        feed.commit({"key": "a", "change": "delete"}, {"key": "b", "change": "update"})
        return feed

    def append(self, source: Log) -> None:
        assert isinstance(source, ChangeFeed)
        source.commit({"key": "e", "change": "insert"}, {"key": "f", "change": "insert"})

    def trim(self, source: Log, id: str) -> None:
        assert isinstance(source, ChangeFeed)
        source.vacuum(int(id.partition("/")[0]) + 1)


class TestBatches(LogSuite):
    """As a stream numbers them."""

    def source(self, folder: Path) -> Batches:
        batches = Batches(folder / "batches")
        for content in (b"", b"one", b"two"):
            batches.add(content)
        return batches

    def append(self, source: Log) -> None:
        assert isinstance(source, Batches)
        source.add(b"more")


class TestAlternating(LogSuite):
    """Several logs read as one, as ``Plan.alts`` does."""

    def source(self, folder: Path) -> Alternating:
        for name in ("qa", "qb"):
            DurableQueue(name, folder).append([{"of": name, "n": n} for n in range(3)])
        topic = Topic(folder / "topic")
        topic.publish("p0", {"n": 0}, {"n": 1})
        return Alternating({"a": Queue("qa", folder), "b": Queue("qb", folder), "c": topic})

    def append(self, source: Log) -> None:
        assert isinstance(source, Alternating)
        queue = source.inputs["b"]
        assert isinstance(queue, Queue)
        DurableQueue("qb", queue.root).append([{"n": 3}])


# --- the suite notices who does not keep them -------------------------------------------------------------------------


class Broken(Batches):
    """A log that keeps all promises but one."""

    fault = ""

    def begin(self) -> dict[str, int]:
        return {} if self.fault == "begins nowhere" else {"batches": 1 if self.fault == "begins late" else 0}

    def pieces(self, start: Any, end: Any, limit: int) -> Iterator[Piece]:
        for piece in super().pieces(start, end, limit + (self.fault == "large pieces")):
            if self.fault == "a hole" and piece.start == 1:
                continue
            yield piece

    def read_piece(self, piece: Piece) -> Iterator[Any]:
        entries = [Entry(piece.start + n, doc) for n, doc in enumerate(super().read_piece(piece))]
        if self.fault == "backwards":
            entries.reverse()
        if self.fault == "places from 0":
            entries = [Entry(n, entry.document) for n, entry in enumerate(entries)]
        for entry in entries:
            if self.fault == "one id":
                entry.document.id = entry.document.origin_id = "batch"
            if self.fault == "prefix":
                entry.document.id = entry.document.origin_id = self.prefix + entry.document.id
            yield entry

    def entry(self, listed: Listed) -> Entry:
        doc = Document(listed.id, again=True) if self.fault == "reads another" else self.read(listed)
        return Entry(0, doc, provenance="{}" if self.fault == "provenance" else None)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__}
        if self.fault == "pickled":
            state["folder"] = self.folder / ".."
        return state


FAULTS = {
    "begins nowhere": LogSuite.test_it_begins_before_it_ends,
    "begins late": LogSuite.test_entries_are_documents,
    "large pieces": LogSuite.test_pieces_are_no_larger_than_asked_for,
    "a hole": LogSuite.test_pieces_cover_everything,
    "backwards": LogSuite.test_places_ascend,
    "places from 0": LogSuite.test_places_ascend,
    "one id": LogSuite.test_ids_are_plain_text,
    "prefix": LogSuite.test_rows_are_the_same_entries,
    "reads another": LogSuite.test_an_entry_is_read_again_by_its_id,
    "provenance": LogSuite.test_an_entry_is_read_again_by_its_id,
    "pickled": LogSuite.test_it_works_from_a_worker,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_log_is_noticed(fault: str, tmp_path: Path) -> None:
    class Suite(LogSuite):
        def source(self, folder: Path) -> Broken:
            made = Broken(folder / "batches")
            for content in (b"", b"one", b"two"):
                made.add(content)
            made.fault = fault
            return made

    test: Callable[[LogSuite, Path], None] = FAULTS[fault]
    with pytest.raises((AssertionError, OSError)):
        test(Suite(), tmp_path)


def test_what_was_read_before_an_error_is_not_lost(tmp_path: Path) -> None:
    """An entry that cannot be read holds none of those before it."""

    class Failing(Batches):
        def read_piece(self, piece: Piece) -> Iterator[Document]:
            yield from super().read_piece(piece._replace(end=2))
            raise TransientError("the stream ended")

    log = Failing(tmp_path / "batches")
    for content in (b"one", b"two", b"three"):
        log.add(content)
    rows = log.rows(Piece("batches", 0, 3))
    assert next(rows)["place"].to_pylist() == [0, 1]
    with pytest.raises(TransientError):
        next(rows)
