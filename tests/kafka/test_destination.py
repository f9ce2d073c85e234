"""Kafka as a destination: the promises of the port, and what Kafka's own users rely on."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ferryman.destinations import Delivery, Destination, DestinationContext, Guarantee, Kafka, Outcome
from ferryman.destinations.kafka import HASH, TransactionSender, marks_name
from ferryman.engine.summary import Summary
from ferryman.errors import Misconfigured, PermanentError, StateForeign, Unavailable, UsageError
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.destinations import DestinationSuite, delete, delivery
from ferryman.verification import Verification, adopt, verify
from tests.support.kafka_topics import Topics
from tests.support.plan_world import run_plan


class TestConformance(DestinationSuite):
    @pytest.fixture(autouse=True)
    def _topics(self, topics: Topics) -> None:
        self.topics = topics

    def destination(self, folder: Path) -> Destination:
        return Kafka(self.topics.url if hasattr(self, "topics") else "localhost", f"out-{folder.name}", partitions=2)

    def hashes(self, folder: Path) -> list[str]:
        return [record.headers[HASH].decode() for record in self.topics.read(f"out-{folder.name}")]


def made(topics: Topics, topic: str, **options: Any) -> Kafka:
    return Kafka(topics.url, topic, **options)


def context(topic: str, **more: Any) -> DestinationContext:
    return DestinationContext("suite", 1, "out", 1, Guarantee.EXACTLY_ONCE, topic)._replace(**more)


def write(kafka: Kafka, chunk: list[Delivery], where: DestinationContext) -> list[Outcome]:
    kafka.check()
    kafka.begin_pass(where)
    kafka.open(where)
    outcomes = kafka.write(chunk)
    kafka.close()
    return outcomes


def test_what_a_message_is(topics: Topics) -> None:
    """The id is the key, the fields are the value, the text among them; a delete is a tombstone."""
    topic = topics.new()
    chunk = [
        delivery("a", 1, "some text", {"title": "One", "kafka": {"offset": 7}}),
        delivery("é", 2, None, {}),
        delete("a", 3),
    ]
    assert write(made(topics, topic), chunk, context(topic)) == [Outcome.ok()] * 3
    one, two, gone = topics.read(topic)
    assert (one.key, json.loads(one.value or b"")) == (b"a", {"title": "One", "text": "some text"})
    assert (two.key, two.value) == ("é".encode(), b"{}")
    assert (gone.key, gone.value) == (b"a", None)
    assert [r.headers[HASH].decode() for r in (one, two, gone)] == [d.hash for d in chunk]


def test_keys_go_where_java_puts_them(topics: Topics) -> None:
    """The partition is that of the client's murmur2, as of every other producer of the same keys."""
    topic, other = topics.new(partitions=7), topics.new(partitions=7)
    chunk = [delivery(f"key-{i}", i) for i in range(1, 60)]
    write(made(topics, topic), chunk, context(topic))
    producer = topics.producer(partitioner="murmur2")
    for each in chunk:
        producer.produce(other, b"", each.id.encode())
    producer.flush(30)
    assert {r.key: r.partition for r in topics.read(topic)} == {r.key: r.partition for r in topics.read(other)}


def test_a_field_as_key_and_headers(topics: Topics) -> None:
    """As ``sources.Kafka`` has them. Without the field there is no key; a delete has none to give, and is refused."""
    topic = topics.new()
    kafka = made(topics, topic, key="kafka.key", headers="kafka.headers", text=None, value="raw")
    assert kafka.single_writer
    meta = {"key": {"base64": "/w=="}, "headers": [["h", "x"], ["h", {"base64": "AA=="}], [HASH, "of before"]]}
    chunk = [
        delivery("a", 1, "raw", {"kafka": meta}),
        delivery("b", 2, None, {}),
        delivery("c", 3, None, {"kafka": {"key": ["a list"]}}),
        delete("a", 4),
    ]
    outcomes = write(kafka, chunk, context(topic))
    assert [o.kind for o in outcomes] == ["ok", "ok", "permanent", "permanent"]
    assert "deletes='ignore'" in outcomes[3].why
    one, two = topics.read(topic)
    assert (one.key, one.value, one.headers["h"]) == (b"\xff", b"raw", b"\0")
    assert one.headers[HASH].decode() == chunk[0].hash
    assert (two.key, two.value) == (None, b"")


@pytest.mark.rule("kafka.too-large")
@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_a_message_that_is_too_large_fails_alone(topics: Topics, guarantee: Guarantee) -> None:
    """Its outcome names its size and the limit; all others arrive, once."""
    topic = topics.new(max_message_bytes="20000")
    chunk = [delivery(f"d{i}", i, "x" * (50_000 if i == 5 else 15_000)) for i in range(1, 11)]
    outcomes = write(made(topics, topic), chunk, context(topic, guarantee=guarantee))
    assert [o.kind for o in outcomes] == ["permanent" if i == 4 else "ok" for i in range(10)]
    assert re.search(r"has 5\d{4} bytes, and topic .* takes 20000 \(max.message.bytes\)", outcomes[4].why)
    assert [r.key for r in topics.read(topic)] == [d.id.encode() for d in chunk if d.id != "d5"]


def test_a_limit_that_was_lowered_meanwhile(topics: Topics) -> None:
    """The broker refuses what it took before: the transaction is aborted, and the chunk is for the engine to halve; the
    message alone is refused, and the next chunk arrives."""
    topic = topics.new()
    kafka, where = made(topics, topic), context(topic)
    kafka.open(where)
    assert kafka.write([delivery("before", 1)]) == [Outcome.ok()]
    topics.set(topic, max_message_bytes="20000")
    large = delivery("large", 2, "".join(map(str, range(20_000))))
    with pytest.raises(PermanentError, match=r"max\.message\.bytes") as caught:
        kafka.write([large, delivery("small", 3)])
    assert not caught.value.universal
    assert kafka.write([delivery("small", 3)]) == [Outcome.ok()]
    with pytest.raises(PermanentError, match=r"max\.message\.bytes"):
        kafka.write([large])
    assert kafka.write([delivery("after", 4)]) == [Outcome.ok()]
    kafka.close()
    assert [r.key for r in topics.read(topic)] == [b"before", b"small", b"after"]


@pytest.mark.rule("kafka.open")
def test_a_transaction_that_was_left_open_is_ended(topics: Topics) -> None:
    """Of a lane that the next pass does not have, too: else readers would wait for its time-out."""
    topic = topics.new()
    kafka, where = made(topics, topic), context(topic, lanes=3)
    kafka.begin_pass(where)
    left = made(topics, topic)
    left.open(where._replace(lane=2))
    sender = left.sender
    assert isinstance(sender, TransactionSender)
    sender.deadline = time.monotonic() + 60
    producer = sender.start()
    producer.begin_transaction()
    producer.produce(topic, b"left open", b"x")
    producer.flush(30)
    assert write(made(topics, topic), [delivery("a", 1)], where._replace(lanes=1)) == [Outcome.ok()]
    assert [r.key for r in topics.read(topic)] == [b"a"]
    assert topics.cluster.end_offsets(topic, [0]) == topics.cluster.end_offsets(topic, [0], committed=False)
    left.close()


@pytest.mark.rule("kafka.fenced")
def test_a_late_worker_sends_nothing(topics: Topics) -> None:
    """One whose pass is over finds that out after it has taken over its id, under another lane's number than now."""
    topic = topics.new()
    where = context(topic, lanes=2)
    late = made(topics, topic)
    late.begin_pass(where)
    late.open(where._replace(lane=1, is_open=lambda: False))
    assert write(made(topics, topic), [delivery("a", 1)], where) == [Outcome.ok()]
    with pytest.raises(Unavailable, match="this pass is over"):
        late.write([delivery("a", 1)])
    assert [r.key for r in topics.read(topic)] == [b"a"]


@pytest.mark.rule("kafka.fenced")
def test_a_worker_that_is_fenced_looks_again(topics: Topics) -> None:
    """Its rows are there by now, or it sends them: being fenced is no error."""
    topic = topics.new()
    where = context(topic)
    one, two = made(topics, topic), made(topics, topic)
    one.open(where)
    assert one.write([delivery("a", 1)]) == [Outcome.ok()]
    two.open(where)
    assert two.write([delivery("b", 2)]) == [Outcome.ok()]
    assert one.write([delivery("b", 2), delivery("c", 3)]) == [Outcome.ok()] * 2
    assert two.write([delivery("c", 3), delivery("a", 1)]) == [Outcome.ok()] * 2
    assert [r.key for r in topics.read(topic)] == [b"a", b"b", b"c"]
    one.close()
    two.close()


def test_a_transaction_that_timed_out_is_sent_again(topics: Topics) -> None:
    """The brokers abort it under the worker, which begins it anew."""
    topic = topics.new()
    kafka, where = made(topics, topic, transaction_timeout=1.5), context(topic, send_timeout=60.0)
    kafka.open(where)
    assert kafka.write([delivery("a", 1)]) == [Outcome.ok()]
    sender = kafka.sender
    assert isinstance(sender, TransactionSender)
    produce = sender.produce

    def slowly(producer: Any, records: Any) -> None:
        produce(producer, records)
        producer.flush(30)
        sender.produce = produce  # type: ignore[method-assign]
        until = time.monotonic() + 60
        while topics.cluster.open_transactions(topic):
            assert time.monotonic() < until, "the brokers do not abort it"

    sender.produce = slowly  # type: ignore[method-assign]
    assert kafka.write([delivery("b", 2)]) == [Outcome.ok()]
    kafka.close()
    assert [r.key for r in topics.read(topic)] == [b"a", b"b"]


@pytest.mark.rule("kafka.fenced")
def test_a_commit_that_timed_out_is_not_taken_for_aborted(topics: Topics) -> None:
    """It took effect, and the answer was lost: the marks say so, and nothing is sent twice."""
    topic = topics.new()
    kafka, where = made(topics, topic), context(topic)
    kafka.open(where)
    assert kafka.write([delivery("a", 1)]) == [Outcome.ok()]
    sender = kafka.sender
    assert isinstance(sender, TransactionSender)

    class Lost:
        """The producer, whose answer to the commit does not arrive."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def commit_transaction(self, timeout: float) -> None:
            self.real.commit_transaction(timeout)
            raise KafkaException(KafkaError(-185, "the answer was lost"))

    sender.producer = Lost(sender.producer)
    assert kafka.write([delivery("b", 2)]) == [Outcome.ok()]
    kafka.close()
    assert [r.key for r in topics.read(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_that_did_not_take_effect_is_committed_again(topics: Topics, times: int) -> None:
    """The error came before the brokers had the request: the same transaction is committed, nothing is sent again."""
    topic = topics.new()
    kafka, where = made(topics, topic), context(topic)
    kafka.open(where)
    sender = kafka.sender
    assert isinstance(sender, TransactionSender)
    assert kafka.write([delivery("a", 1)]) == [Outcome.ok()]

    class Early:
        """The producer, whose first commits time out before they are sent."""

        def __init__(self, real: Any) -> None:
            self.real, self.left = real, times

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def commit_transaction(self, timeout: float) -> None:
            if self.left:
                self.left -= 1
                assert [r.key for r in topics.read(topic)] == [b"a"], "nobody sees what is not committed"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not sent", False, True, False))
            self.real.commit_transaction(timeout)

    early = sender.producer = Early(sender.producer)
    assert kafka.write([delivery("b", 2)]) == [Outcome.ok()]
    assert (early.left, sender.producer) == (0, early), "it was begun again"
    assert kafka.write([delivery("c", 3), delivery("b", 2)]) == [Outcome.ok()] * 2
    kafka.close()
    assert [r.key for r in topics.read(topic)] == [b"a", b"b", b"c"]


def test_marks_of_settled_rows_go(topics: Topics) -> None:
    """All but the newest, which tells an old copy of the state; those of rows that may come again stay."""
    topic = topics.new()
    kafka = made(topics, topic)
    for sequence in range(1, 6):
        write(kafka, [delivery(f"d{sequence}", sequence)], context(topic))
    write(kafka, [delivery("d6", 6)], context(topic, settled=4))
    marks = {r.key: r.value for r in topics.read(marks_name(context(topic)))}
    assert sorted(k for k, v in marks.items() if v is not None) == [b"4", b"5", b"6"]
    assert made(topics, topic).highest_of(context(topic)) == 6
    assert write(made(topics, topic), [delivery("d4", 4)], context(topic)) == [Outcome.ok()]
    assert len(topics.read(topic)) == 6


def numbered_documents() -> list[dict[str, Any]]:
    return [{"id": f"d{n}", "n": n} for n in range(6)]


def plan_of(topics: Topics, topic: str, documents: list[dict[str, Any]]) -> Plan:
    plan = Plan("pipe", version=1)
    plan.source("docs", Memory(documents)).destination("out", Kafka(topics.url, topic), backoff=0)
    return plan


@pytest.mark.rule("kafka.settings")
@pytest.mark.rule("state.old-copy", "verify.adopt")
def test_a_state_older_than_its_topic_is_adopted_without_doubles(topics: Topics, place: Path) -> None:
    """A run refuses it; after its adoption messages that the copy does not know do not come again, however often a copy
    is put back."""
    topic = topics.new(partitions=2)
    documents = numbered_documents()
    plan = partial(plan_of, topics, topic, documents)

    def run() -> Summary:
        return run_plan(plan(), place / "state", checked=False)

    def arrived() -> list[tuple[str, int]]:
        return sorted((str(record.key), json.loads(record.value or b"")["n"]) for record in topics.read(topic))

    assert run().exit == 0
    shutil.copytree(place / "state", place / "copy")
    documents[0]["n"] = 10
    documents.append({"id": "new", "n": 11})
    assert run().exit == 0
    once = arrived()
    assert len(once) == 8
    for _ in range(2):
        shutil.rmtree(place / "state")
        shutil.copytree(place / "copy", place / "state")
        with pytest.raises(StateForeign, match="ferryman adopt PLAN"):
            run()
        assert adopt(plan(), state=place / "state").exit == 0
        assert run().exit == 0
        assert arrived() == once
        assert verify(plan(), state=place / "state").exit == 0
    documents[0]["n"] = 12
    assert run().exit == 0
    assert arrived() == sorted([*once, (str(b"d0"), 12)])


@pytest.mark.rule("verify.adopt", "verify.repair")
@pytest.mark.parametrize("ran", [True, False])
def test_messages_that_are_lost_after_an_adoption_are_sent_again(topics: Topics, place: Path, ran: bool) -> None:
    """Those that the state had forgotten, too, whether or not they have come again since; and nothing twice."""
    topic = topics.new(partitions=2)
    documents = numbered_documents()
    plan = partial(plan_of, topics, topic, documents)

    def run() -> Summary:
        return run_plan(plan(), place / "state", checked=False)

    def look(**options: Any) -> Verification:
        return verify(plan(), state=place / "state", **options)

    assert run().exit == 0
    shutil.copytree(place / "state", place / "copy")
    documents.append({"id": "new", "n": 11})
    assert run().exit == 0
    shutil.rmtree(place / "state")
    (place / "copy").rename(place / "state")
    assert adopt(plan(), state=place / "state").exit == 0
    if ran:
        assert run().delivered == 1
    topics.delete(topic)
    topics.new(topic, 2)
    lost = run()
    assert (lost.exit, lost.delivered) == (3, 0 if ran else 1)
    assert [each.kind for each in look(repair=True).targets[0].differences] == ["missing"] * 7
    assert run().delivered == 7
    assert look().exit == 0
    assert run().exit == 0
    assert Counter(record.key for record in topics.read(topic)) == {each["id"].encode(): 1 for each in documents}


def test_settings_that_do_not_fit_are_named(topics: Topics) -> None:
    """Both sides of each comparison, and what to change."""
    topic = topics.new()
    kafka, where = made(topics, topic), context(topic, send_timeout=60.0)
    with pytest.raises(Misconfigured, match=r"30 s at most .* 60 s \(send_timeout=\)"):
        made(topics, topic, transaction_timeout=30).begin_pass(where)
    with pytest.raises(Misconfigured, match=r"2000 s .* allow 900 s \(transaction\.max\.timeout\.ms\)"):
        made(topics, topic, transaction_timeout=2000).begin_pass(where)
    topics.write(marks_name(where), [b"somebody else's"])  # made by itself, as brokers do
    with pytest.raises(Misconfigured, match=r"cleanup\.policy=delete"):
        kafka.begin_pass(where)
    topics.set(topic, min_insync_replicas="2")
    with pytest.raises(Misconfigured, match=r"demands 2 replicas in sync .* and has 1"):
        kafka.check()


def test_without_transactions(topics: Topics) -> None:
    """At least once: no marks, and a chunk that comes again is there twice."""
    topic = topics.new()
    where = context(topic, guarantee=Guarantee.AT_LEAST_ONCE)
    for _ in range(2):
        assert write(made(topics, topic), [delivery("a", 1), delivery("b", 2)], where) == [Outcome.ok()] * 2
    assert [r.key for r in topics.read(topic)] == [b"a", b"b", b"a", b"b"]
    assert topics.cluster.topic(marks_name(where)) is None


def test_replicas_without_brokers(topics: Topics) -> None:
    """Brokers that another topic has replicas at are away, and come back; others an operator has to start."""
    with pytest.raises(Unavailable, match=r"a broker is away: .*only 1 broker"):
        topics.cluster.create_topic("never", 1, 2, {}, as_another=True)
    with pytest.raises(Misconfigured, match=r"only 1 broker"):
        topics.cluster.create_topic("never", 1, 2, {})


def test_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole destination is unavailable, within the call's time; no secret is in the message."""
    monkeypatch.setattr("ferryman.net.kafka.REQUEST_S", 2.0)
    away = {"sasl.password": "s3cret", "sasl.username": "u", "security.protocol": "SASL_PLAINTEXT"}
    kafka = Kafka("127.0.0.1:1", "t", options={**away, "sasl.mechanisms": "PLAIN"})
    kafka.open(context("t", send_timeout=3.0))
    for call in (kafka.check, lambda: kafka.write([delivery("a", 1)])):
        with pytest.raises(Unavailable) as caught:
            call()
        assert "127.0.0.1:1" in str(caught.value)
        assert "s3cret" not in f"{caught.value!r}"


def test_long_names_have_topics_of_marks() -> None:
    """Two that differ only far behind have two."""
    names = {marks_name(DestinationContext("p" * 200, 1, "d" * 200 + end, 1, Guarantee.EXACTLY_ONCE)) for end in "ab"}
    assert len(names) == 2
    assert all(len(name) < 240 for name in names)


@pytest.mark.parametrize(
    "options",
    [{"value": "avro"}, {"exclude": "kafka"}, {"partitions": 0}, {"replicas": 0}, {"transaction_timeout": 0}],
)
def test_arguments_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Kafka("localhost", "t", **options)
