"""Kafka as a source: the promises of a log, and what a plan makes of a topic that changes under it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ferryman import status
from ferryman.destinations import Kafka as ToKafka
from ferryman.destinations import Memory, Sql
from ferryman.document import Document
from ferryman.errors import BadDocument, Misconfigured, Unavailable, UsageError
from ferryman.net import kafka as module
from ferryman.plan import Plan
from ferryman.routers import ByField
from ferryman.sources import Kafka, Log
from ferryman.sources.base import Listed
from ferryman.sources.kafka import KafkaMessage
from ferryman.sources.log import Piece
from ferryman.testing.inprocess import InProcess
from ferryman.testing.logs import LogSuite
from ferryman.verification import adopt, verify
from tests.support.kafka_topics import Topics
from tests.support.plan_world import Watch, run_plan
from tests.support.waiting import wait_until


def lines(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


class TestConformance(LogSuite):
    """Messages of two partitions with markers of transactions, an aborted one, and one that is no JSON between them."""

    @pytest.fixture(autouse=True)
    def _topics(self, topics: Topics) -> None:
        self.topics = topics

    def source(self, folder: Path) -> Log:
        topic = self.topics.new(f"suite-{folder.name}", 2)
        self.topics.write(topic, lines({"n": 1}, {"n": [2, {"a": "b"}]}), key="a")
        for value, ends in ((b'{"n": "gone"}', "abort_transaction"), (b'{"n": 3}', "commit_transaction")):
            producer = self.topics.transaction(f"suite-{folder.name}")
            producer.produce(topic, value, b"\xff\x00", 0, headers=[("h", b"\xff"), ("h", None), ("g", b"x")])
            getattr(producer, ends)(30)
        self.topics.write(topic, [b"no JSON", None, b'{"n": 6}'])
        self.topics.write(topic, lines({"n": "one"}, {"n": "two"}), 1)
        return Kafka(self.topics.url, topic, on_lost="continue")

    def append(self, source: Log) -> None:
        assert isinstance(source, Kafka)
        self.topics.write(source.topic, lines({"n": 8}), 1)

    def trim(self, source: Log, id: str) -> None:
        assert isinstance(source, Kafka)
        topic, partition, offset = id.split("/")
        self.topics.trim(topic, int(partition), int(offset) + 1)


class TestKeyed(LogSuite):
    """Each key once, without tombstones, which the suite does not know."""

    @pytest.fixture(autouse=True)
    def _topics(self, topics: Topics) -> None:
        self.topics = topics

    def source(self, folder: Path) -> Log:
        topic = self.topics.new(f"keyed-{folder.name}", 1)
        self.topics.write(topic, [("a", b'{"n": 1}'), (None, b'{"n": 2}'), ("c", b'{"n": 3}'), ("d é", b'{"n": 4}')])
        return Kafka(self.topics.url, topic, keyed=True)

    def append(self, source: Log) -> None:
        assert isinstance(source, Kafka)
        self.topics.write(source.topic, [("e", b'{"n": 5}')])


def plan_of(source: Log, name: str = "pipe", **policy: Any) -> Plan:
    plan = Plan(name, version=1)
    plan.source("messages", source).destination("out", Memory(), **policy)
    return plan


def arrived() -> list[Any]:
    return [(d.id, d.operation, d.fields.get("n")) for d in Memory.of("out")]


@pytest.fixture(autouse=True)
def _empty_memory() -> None:
    Memory.clear("out")


def test_what_belongs_to_a_message_is_a_field(topics: Topics) -> None:
    """Key, headers and timestamp come with the value; bytes that are no text as base64."""
    topic = topics.new(retention_ms="-1")
    topics.write(topic, [("k", b'{"n": 1}')], timestamp=1_700_000_000_123, headers=[("a", b"x"), ("b", b"\xff")])
    source = Kafka(topics.url, topic)
    [entry] = source.read_piece(Piece("0", 0, 1))
    assert entry.document.fields["kafka"] == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.123+00:00",
        "key": "k",
        "headers": [["a", "x"], ["b", {"base64": "/w=="}]],
    }
    [plain] = Kafka(topics.url, topic, metadata=None).read_piece(Piece("0", 0, 1))
    assert plain.document.fields == {"n": 1}
    [clash] = Kafka(topics.url, topic, metadata="n").read_piece(Piece("0", 0, 1))
    assert "metadata=" in clash.refused


def test_formats(topics: Topics) -> None:
    """Raw bytes, or a function's dict; what a function raises or returns otherwise refuses that message."""
    topic = topics.new()
    topics.write(topic, [b"\x00\x01", b"boom", b"list"])

    def decode(message: KafkaMessage) -> dict[str, Any]:
        if message.value == b"boom":
            raise ValueError("boom")
        return ["x"] if message.value == b"list" else {"size": len(message.value)}  # type: ignore[return-value]

    raw = [e.document.raw for e in Kafka(topics.url, topic, format="raw").read_piece(Piece("0", 0, 3))]
    assert raw == [b"\x00\x01", b"boom", b"list"]
    good, bad, other = Kafka(topics.url, topic, format=decode, metadata=None).read_piece(Piece("0", 0, 3))
    assert good.document.fields == {"size": 2}
    assert "ValueError: boom" in bad.refused
    assert "returned a list" in other.refused


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"servers": "not a server!"}, "servers="),
        ({"servers": ""}, "servers="),
        ({"topic": "a/b"}, "topic="),
        ({"format": "yaml"}, "format="),
        ({"on_lost": "skip"}, "on_lost="),
        ({"options": {"isolation.level": "read_uncommitted"}}, "isolation.level"),
    ],
)
def test_arguments_that_cannot_be_meant(more: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Kafka(**{"servers": "localhost:9092", "topic": "t", **more})


@pytest.mark.rule("kafka.positions")
def test_a_plan_reads_each_message_once(topics: Topics, place: Path) -> None:
    """The second run has nothing to do; what is written later, and a new partition, is all that the next one reads."""
    topic = topics.new(partitions=2)
    topics.write(topic, lines(*({"n": n} for n in range(5))))
    topics.write(topic, lines({"n": 10}), 1)
    source = Kafka(topics.url, topic, group=f"lag-of-{topic}")
    state = place / "state"
    assert run_plan(plan_of(source), state).delivered == 6
    assert run_plan(plan_of(source), state).delivered == 0
    assert topics.committed_offset(f"lag-of-{topic}", topic, 0) == 5
    topics.write(topic, lines({"n": 5}))
    topics.grow(topic, 3)
    topics.write(topic, lines({"n": 20}), 2)
    assert run_plan(plan_of(source), state).delivered == 2
    assert sorted(n for *_, n in arrived()) == [0, 1, 2, 3, 4, 5, 10, 20]


@pytest.mark.rule("kafka.committed")
def test_only_what_was_committed_is_read(topics: Topics, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction holds up its partition, is named, and nothing behind it is skipped once it has ended."""
    topic = topics.new()
    topics.write(topic, lines({"n": 1}))
    producer = topics.transaction("somebody-else")
    producer.produce(topic, b'{"n": 2}', partition=0)
    producer.flush(30)
    topics.write(topic, lines({"n": 3}))
    source = Kafka(topics.url, topic)
    assert source.end() == {"0": 1}
    found = topics.cluster.open_transactions(topic)
    assert found[0].transactional_id == "somebody-else"
    watch = Watch()
    state = place / "state"
    monkeypatch.setattr("ferryman.sources.kafka.OPEN_TRANSACTION_S", -60.0)  # of any age
    assert run_plan(plan_of(source), state, observer=watch).delivered == 1
    assert any("partition 0 is read up to offset 1" in m and "somebody-else" in m for m in watch.messages)
    producer.commit_transaction(30)
    assert run_plan(plan_of(Kafka(topics.url, topic)), state).delivered == 2
    assert [n for *_, n in arrived()] == [1, 2, 3]


@pytest.mark.rule("kafka.keyed")
def test_tombstones_delete(topics: Topics, place: Path) -> None:
    """With ``keyed`` a message is a version of its key's document; one without a value deletes it, once."""
    topic = topics.new()
    topics.write(topic, [("a", b'{"n": 1}'), ("b", b'{"n": 2}'), ("a", b'{"n": 3}'), ("b", None), ("never", None)])
    source = Kafka(topics.url, topic, keyed=True)
    state = place / "state"
    assert run_plan(plan_of(source), state).exit == 0
    last = {id: (operation, n) for id, operation, n in arrived()}
    assert last["a"] == ("upsert", 3)
    assert last["b"][0] == "delete"
    topics.write(topic, [("a", None), ("b", b'{"n": 4}')])
    assert run_plan(plan_of(source), state).exit == 0
    last = {id: (operation, n) for id, operation, n in arrived()}
    assert (last["a"][0], last["b"]) == ("delete", ("upsert", 4))
    assert status(plan_of(source), state=state)["balanced"]


@pytest.mark.rule("log.versions")
def test_what_a_newer_message_does_not_make_is_deleted(topics: Topics, place: Path) -> None:
    """Children, and rows of another table; also of a key that has moved to another partition, and of one whose messages
    in between were compacted away."""
    topic = topics.new(partitions=2, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.0")
    long = "k" * 60

    def build() -> Plan:
        plan = Plan("versions", version=1)
        sides = (
            plan.source("messages", Kafka(topics.url, topic, keyed=True, metadata=None))
            .step("split", split)
            .route("sides", ByField("side", {"left": "left", "right": "right"}))
        )
        for name in ("left", "right"):
            sides.destination(name, Sql(f"sqlite:///{place}/{name}.db", columns={"n": "n"}))
        return plan

    def split(doc: Document) -> list[Document] | None:
        parts = doc.fields.pop("parts", 0)
        if doc["side"] == "none":
            return None
        return [doc, *(doc.child(str(n), n=doc["n"], side=doc["side"]) for n in range(parts))]

    def there(name: str) -> dict[str, int]:
        with sqlite3.connect(place / f"{name}.db") as db:
            return {id: int(n) for id, n in db.execute("SELECT id, n FROM documents")}

    def write(*messages: tuple[str, Any], partition: int = 0) -> None:
        topics.write(topic, [(k, None if v is None else json.dumps(v).encode()) for k, v in messages], partition)

    state = place / "state"
    left = {"side": "left", "n": 1}
    write(("a", {**left, "parts": 3}), (long, {**left, "parts": 300}), ("b", {**left, "parts": 1}), ("c", left))
    assert run_plan(build(), state).delivered == 308
    write(("a", {**left, "n": 2, "parts": 9}), ("a", {"side": "right", "n": 3, "parts": 1}), (long, None))
    write(("b", {**left, "n": 2}), ("c", {"side": "none", "n": 2}), partition=1)
    assert run_plan(build(), state).exit == 0
    assert (there("left"), there("right")) == ({"b": 2}, {"a": 3, "a#0": 3})
    write(("b", None), ("a", {**left, "n": 4}), (long, left), partition=1)
    assert run_plan(build(), state).exit == 0
    assert (there("left"), there("right")) == ({"a": 4, long: 1}, {})
    assert status(build(), state=state)["balanced"]


@pytest.mark.rule("kafka.keyed")
def test_a_key_keeps_its_order_over_tasks(topics: Topics, place: Path) -> None:
    """Thousands of versions of a few keys, which several tasks read, arrive in their order."""
    topic = topics.new()
    topics.write(topic, [(f"k{n % 3}", b'{"n": %d}' % n) for n in range(3000)])
    plan = plan_of(Kafka(topics.url, topic, keyed=True))
    assert run_plan(plan, place / "state", runner=InProcess(slots=3)).exit == 0
    for key in ("k0", "k1", "k2"):
        numbers = [n for id, _, n in arrived() if id == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 1000


def test_one_key_is_read_again_by_its_id(topics: Topics) -> None:
    """A retry of a single document takes the last message of its key; a key that is gone says so."""
    topic = topics.new(partitions=2)
    topics.write(topic, [("a", b'{"n": 1}'), ("b", b'{"n": 2}'), ("a", b'{"n": 3}')], 1)
    source = Kafka(topics.url, topic, keyed=True)
    assert source.read(Listed("a", 0)).fields["n"] == 3
    with pytest.raises(BadDocument, match="no message of this key"):
        source.read(Listed("zzz", 0))


@pytest.mark.rule("kafka.lost")
def test_retention_that_passed_the_position_is_loud(topics: Topics, place: Path) -> None:
    """The run names the offsets and the way on, delivers nothing past them, and goes on when it is told to."""
    topic = topics.new()
    topics.write(topic, lines({"n": 0}, {"n": 1}))
    state = place / "state"
    run_plan(plan_of(Kafka(topics.url, topic)), state)
    topics.write(topic, lines(*({"n": n} for n in range(2, 8))))
    topics.trim(topic, 0, 5)
    watch = Watch()
    summary = run_plan(plan_of(Kafka(topics.url, topic)), state, observer=watch)
    assert summary.exit == 4
    told = "\n".join(watch.messages)
    assert "offsets 2 to 4 were removed before they were read" in told
    assert "on_lost='continue'" in told
    assert [n for *_, n in arrived()] == [0, 1]
    summary = run_plan(plan_of(Kafka(topics.url, topic, on_lost="continue")), state, observer=watch)
    assert summary.exit == 0
    assert [n for *_, n in arrived()] == [0, 1, 5, 6, 7]


@pytest.mark.rule("kafka.replaced")
def test_a_topic_that_was_made_again_is_another_one(topics: Topics, place: Path) -> None:
    """It is read from its beginning, with a message; its entries are new revisions, although their ids are known."""
    topic = topics.new()
    topics.write(topic, lines({"n": 0}, {"n": 1}, {"n": 2}))
    state = place / "state"
    run_plan(plan_of(Kafka(topics.url, topic)), state)
    topics.delete(topic)
    watch = Watch()
    assert run_plan(plan_of(Kafka(topics.url, topic)), state, observer=watch).delivered == 0
    assert any("is not there any more" in m for m in watch.messages)
    topics.new(topic)
    topics.write(topic, lines({"n": 10}))
    assert run_plan(plan_of(Kafka(topics.url, topic)), state, observer=watch).delivered == 1
    assert any("was deleted and made again" in m for m in watch.messages)
    assert [n for *_, n in arrived()] == [0, 1, 2, 10]


@pytest.mark.rule("verify.state", "kafka.positions")
def test_a_state_put_back_from_a_copy_reads_again(topics: Topics, place: Path) -> None:
    """From its own position, whatever the group has: with the same hashes, so that nothing is there twice."""
    topic = topics.new()
    topics.write(topic, lines({"n": 0}, {"n": 1}))
    plan = Plan("pipe", version=1)
    source = plan.source("messages", Kafka(topics.url, topic, group=f"lag-of-{topic}"))
    source.destination("rows", Sql(f"sqlite:///{place}/out.db", mode="append"))
    state = place / "state"
    assert run_plan(plan, state).exit == 0
    shutil.copytree(state, place / "copy")
    topics.write(topic, lines({"n": 2}))
    assert run_plan(plan, state).exit == 0
    shutil.rmtree(state)
    (place / "copy").rename(state)
    topics.write(topic, lines({"n": 3}))
    assert run_plan(plan, state, checked=False).exit == 3
    with sqlite3.connect(place / "out.db") as db:
        rows = [json.loads(fields)["n"] for (fields,) in db.execute("SELECT fields FROM documents ORDER BY id")]
    assert rows == [0, 1, 2, 3]
    assert topics.committed_offset(f"lag-of-{topic}", topic, 0) == 4
    adopt(plan, state=state)
    assert run_plan(plan, state).exit == 0
    assert verify(plan, state=state).exit == 0


def test_a_piece_of_another_topic_is_not_read(topics: Topics) -> None:
    topic = topics.new()
    topics.write(topic, lines({"n": 0}))
    source = Kafka(topics.url, topic)
    with pytest.raises(Unavailable, match="made again"):
        list(source.read_piece(Piece("0", 0, 1, identity="another")))


@pytest.mark.rule("kafka.positions")
def test_compaction_leaves_gaps(topics: Topics, place: Path) -> None:
    """Ranges in which most offsets are gone are read to their end, by a plan that begins and by one that comes back
    after the cleaner: the last version of each key counts."""
    topic = topics.new(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.0")

    def write(first: int) -> None:
        for n in range(first, first + 5):
            topics.write(topic, [("a", b'{"n": %d}' % n), ("b", b'{"n": %d}' % n)])

    def is_clean() -> bool:
        """Whether the cleaner has left one message a key but for those of the last segment, which it never touches."""
        topics.write(topic, [("z", b'{"n": 0}')])  # begins a new segment
        offsets = [record.offset for record in topics.read(topic) if record.key in (b"a", b"b")]
        return len(offsets) <= 3

    def last() -> dict[str, tuple[str, int]]:
        return {id: (operation, n) for id, operation, n in arrived() if id != "z"}

    write(0)
    wait_until(is_clean)
    source = Kafka(topics.url, topic, keyed=True)
    assert run_plan(plan_of(source), place / "state").exit == 0
    assert last() == {"a": ("upsert", 4), "b": ("upsert", 4)}
    write(5)
    wait_until(is_clean)
    producer = topics.transaction("marker-at-the-end")
    producer.produce(topic, b"x", b"c", 0)
    producer.flush(30)
    producer.abort_transaction(30)
    for state in ("state", "another"):
        assert run_plan(plan_of(source), place / state).exit == 0
        assert last() == {"a": ("upsert", 9), "b": ("upsert", 9)}
        Memory.clear("out")


@pytest.mark.rule("kafka.positions")
def test_a_key_that_moves_to_a_new_partition_keeps_its_order(topics: Topics, place: Path) -> None:
    """What was written before is read before producers go on, as the source's page asks: the newest version wins, and
    at a topic all versions of a key are in their order."""
    topic, out = topics.new(), topics.new(partitions=2)

    def run() -> None:
        plan = Plan("moved", version=1)
        node = plan.source("messages", Kafka(topics.url, topic, keyed=True, metadata=None))
        node.tee("topic", ToKafka(topics.url, out)).destination("out", Memory())
        assert run_plan(plan, place / "state").exit == 0

    keys = [f"k{i}" for i in range(8)]
    topics.write(topic, [(key, b'{"n": %d}' % n) for n in range(3) for key in keys])
    run()
    topics.grow(topic, 3)
    for n in range(3, 6):
        for i, key in enumerate(keys):  # as a producer does from then on: a key has one partition
            topics.write(topic, [(key, b'{"n": %d}' % n)], i % 3)
    run()
    topics.write(topic, [(keys[0], None)], 0)
    run()
    versions: dict[str, list[int | None]] = {}
    for record in topics.read(out):
        assert record.key is not None
        versions.setdefault(record.key.decode(), []).append(json.loads(record.value)["n"] if record.value else None)
    assert versions == {key: [*range(6), *([None] if key == keys[0] else [])] for key in keys}
    newest = {id: (operation, n) for id, operation, n in arrived()}
    assert newest == {key: ("delete", None) if key == keys[0] else ("upsert", 5) for key in keys}


def test_without_a_topic_or_a_broker(place: Path, topics: Topics) -> None:
    """A missing topic is nothing to read, and says so; a broker that is away is an outage, exit 4."""
    watch = Watch()
    assert run_plan(plan_of(Kafka(topics.url, "nothing-here")), place / "a", observer=watch).exit == 0
    assert any("there is no topic nothing-here" in m for m in watch.messages)
    away = Kafka("127.0.0.1:1", "t", options={"socket.timeout.ms": 1000})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        away.check()


@pytest.mark.rule("kafka.lost")
def test_a_topic_that_got_shorter_is_loud(topics: Topics) -> None:
    """A position behind the end means that a broker lost messages; it is not waited for."""
    topic = topics.new()
    topics.write(topic, lines({"n": 0}))
    source = Kafka(topics.url, topic)
    with pytest.raises(Misconfigured, match="was read up to offset 6, and ends before 1"):
        list(source.pieces({"0": 7}, source.end(), 10))


def test_time_that_a_message_takes_is_not_silence(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads may need longer for a message than a topic may be silent."""
    topic, clock = topics.new(), mock.Mock(monotonic=mock.Mock(return_value=0.0))
    monkeypatch.setattr(module, "time", clock)
    topics.write(topic, [b"0", b"1"])
    values = []
    for message in topics.cluster.read(topic, 0, 0, 4):
        values.append(message.value())
        clock.monotonic.return_value += module.SILENCE_S + 1
        if len(values) == 2:
            topics.write(topic, [b"2", b"3"])
    assert values == [b"0", b"1", b"2", b"3"]


def test_few_small_messages_are_fetched_ahead(topics: Topics) -> None:
    """However many there are, and however few are asked for; each takes the client more memory than its content."""
    topic, count, ahead = topics.new(), 200_000, [0]
    producer = topics.producer(queue_buffering_max_messages=count)
    for n in range(count):
        producer.produce(topic, b"%020d" % n)
    assert producer.flush(60) == 0

    def note(statistics: str) -> None:
        of_topic = json.loads(statistics)["topics"].get(topic, {"partitions": {}})
        ahead.extend(each["fetchq_cnt"] for each in of_topic["partitions"].values())

    cluster = module.Cluster(topics.url, {"statistics.interval.ms": 10, "stats_cb": note})
    assert sum(1 for _ in cluster.read(topic, 0, 0, count)) == count
    assert 0 < max(ahead) < 75_000, "ten thousand, and forty thousand in an answer of a megabyte"
    topics.delete(topic)


def test_a_message_of_a_megabyte(topics: Topics, place: Path) -> None:
    topic = topics.new()
    big = {"n": 1, "text": "x" * 990_000}
    topics.write(topic, lines(big))
    assert run_plan(plan_of(Kafka(topics.url, topic)), place / "state").delivered == 1
    assert len(Memory.of("out")[0].fields["text"]) == 990_000


def test_steps_see_the_document(topics: Topics, place: Path) -> None:
    """A message that fails stops the plan before it, as of any log."""
    topic = topics.new()
    topics.write(topic, lines({"n": 0}, {"n": 1}, {"n": 2}))

    def fail(doc: Document) -> Document:
        if doc["n"] == 1:
            raise BadDocument("one")
        return doc

    plan = Plan("pipe", version=1)
    plan.source("messages", Kafka(topics.url, topic)).step("work", fail).destination("out", Memory())
    summary = run_plan(plan, place / "state")
    assert summary.exit == 4
    assert [n for *_, n in arrived()] == [0]


def test_debeziums_events_become_rows(topics: Topics, place: Path) -> None:
    """A snapshot, changes, a delete with its tombstone; a TRUNCATE stops the plan before it."""
    topic = topics.new()

    def key(id: int) -> bytes:
        return b'{"schema": {}, "payload": {"id": %d}}' % id

    def value(op: str, after: Any) -> bytes:
        return json.dumps({"schema": {}, "payload": {"op": op, "before": None, "after": after}}).encode()

    topics.write(topic, [(key(n), value("r", {"id": n, "n": n})) for n in (1, 2, 3)])
    topics.write(topic, [(key(1), value("u", {"id": 1, "n": 10})), (key(2), value("d", None)), (key(2), None)])
    source = Kafka(topics.url, topic, format="debezium", keyed=True)
    plan = plan_of(source)
    assert run_plan(plan, place / "state").exit == 0
    last = {id: (operation, n) for id, operation, n in arrived()}
    assert {id: found for id, found in last.items() if found[0] == "upsert"} == {
        "1": ("upsert", 10),
        "3": ("upsert", 3),
    }
    assert last["2"][0] == "delete"
    assert source.read(Listed("1", 0)).fields["n"] == 10
    topics.write(topic, [(None, value("t", None)), (key(3), value("u", {"id": 3, "n": 30}))])
    watch = Watch()
    assert run_plan(plan_of(source), place / "state", observer=watch).exit == 4
    assert any("the table was truncated" in text for text in watch.messages)
    assert ("3", "upsert", 30) not in arrived()
