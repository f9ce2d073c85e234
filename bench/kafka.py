"""From a Kafka topic through a step to another one, beside Spark's Structured Streaming with the same function, and
beside a loop over Kafka's own client.

Ferryman and the loop write in transactions, exactly once; Structured Streaming writes at least once. Its connector is
the newest that Maven Central has, which may be older than the Spark that runs it.

It starts a broker of the tests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.servers.cache import cached
from tests.servers.java import run_maven
from tests.servers.kafka import KafkaServer

from bench.harness import XMX, Row, Sizes, alternate, empty_folder, phases, speed_row
from ferryman import Document, Plan, run
from ferryman.destinations import Kafka as ToKafka
from ferryman.engine.runner.sessions import start
from ferryman.net.kafka import Cluster
from ferryman.sources import Kafka

CONNECTOR = "4.2.0"
MOST = 200_000
"""Messages, unless more documents than by default are asked for."""
PARTITIONS = 4
CHUNK = 5000
TARGET = 0.5
LOOP_TARGET = 0.1
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def words(fields: dict[str, Any]) -> dict[str, Any]:
    """Count the words of the text; the function of all three."""
    fields["words"] = len(fields["text"].split())
    return fields


def step(document: Document) -> Document:
    document["words"] = words(document.fields)["words"]
    return document


def plan(url: str, topic: str, out: str) -> Plan:
    plan = Plan("topic-to-topic")
    messages = plan.source("messages", Kafka(url, topic))
    messages.step("words", step).destination("out", ToKafka(url, out, key="kafka.key"))
    return plan


def connector() -> str:
    """Return the jars of Structured Streaming's Kafka connector, separated by commas."""

    def fill(folder: Path) -> None:
        (folder / "pom.xml").write_text(POM.format(version=CONNECTOR))
        run_maven(
            "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
            "-DincludeScope=runtime",
            "-DexcludeGroupIds=org.scala-lang,org.slf4j,org.apache.hadoop",
            f"-DoutputDirectory={folder}/lib",
            folder=folder,
        )

    return ",".join(map(str, sorted((cached(f"spark-kafka-{CONNECTOR}", fill) / "lib").glob("*.jar"))))


def fill_topic(url: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": url, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for n in range(count):
        value = {"n": n, "title": f"message {n}", "text": "some words of a message " * 10}
        producer.produce(topic, json.dumps(value), f"key-{n % 1000}", n % PARTITIONS)
        if n % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


def _batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = [json.dumps(words(json.loads(value))).encode() for value in batch["value"].to_pylist()]
        yield pa.record_batch([batch["key"], pa.array(values, pa.binary())], ["key", "value"])


def stream(spark: Any, url: str, topic: str, out: str, checkpoint: Path) -> None:
    """Copy the topic with Structured Streaming, to the end that it has now."""
    kafka = {"kafka.bootstrap.servers": url}
    messages = spark.readStream.format("kafka").options(subscribe=topic, startingOffsets="earliest", **kafka).load()
    made = messages.select("key", "value").mapInArrow(_batches, "key binary, value binary")
    writer = made.writeStream.format("kafka").options(topic=out, checkpointLocation=str(checkpoint), **kafka)
    writer.trigger(availableNow=True).start().awaitTermination()


def loop(url: str, topic: str, out: str) -> None:
    """Copy the topic with Kafka's client, a transaction for each chunk."""
    producer = Producer({"bootstrap.servers": url, "transactional.id": out})
    producer.init_transactions(60)
    consumer = Consumer({"bootstrap.servers": url, "group.id": "loop", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    ended = 0
    while ended < PARTITIONS:
        producer.begin_transaction()
        for message in consumer.consume(CHUNK, 0.2):
            if message.error():
                ended += 1
                continue
            producer.produce(out, json.dumps(words(json.loads(message.value()))), message.key())
        producer.commit_transaction(60)
    consumer.close()


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = sizes.documents if sizes.documents > Sizes().documents else min(sizes.documents, MOST)
    numbers = itertools.count()
    spark = start("local[2]", {"spark.driver.memory": XMX, "spark.jars": connector()}, "bench")
    with KafkaServer() as server:
        cluster = Cluster(server.url)

        def new() -> str:
            name = f"bench-{next(numbers)}"
            cluster.create_topic(name, PARTITIONS, 1, {})
            return name

        topic = new()
        fill_topic(server.url, topic, count)

        def complete(out: str) -> None:
            """Check that as many messages as went in are there; markers of transactions take offsets, too."""
            ends = cluster.stable_offsets(out, range(PARTITIONS), 60)
            assert sum(ends.values()) >= count, ends

        def ours() -> None:
            out = new()
            with phases() as watch:
                place = empty_folder(folder / "kafka")
                summary = run(plan(server.url, topic, out), state=place, spark=spark, observer=watch)
            assert summary.delivered == count, summary

        def streaming() -> None:
            out = new()
            stream(spark, server.url, topic, out, empty_folder(folder / "checkpoint"))
            complete(out)

        def plain() -> None:
            out = new()
            loop(server.url, topic, out)
            complete(out)

        took, streamed, looped = alternate(sizes.rounds, ours, streaming, plain)
    what = f"topic of {count} → one step → topic"
    yield speed_row(f"{what}; Structured Streaming, which may double", count, took, streamed, TARGET, "Kafka to Kafka")
    yield speed_row(f"{what}; a loop over confluent-kafka, one process", count, took, looped, LOOP_TARGET)
