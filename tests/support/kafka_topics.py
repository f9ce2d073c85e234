"""Topics of the real broker, as other programs use them: written, in transactions too, and read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

from ferryman.net.kafka import Cluster
from tests.support.waiting import wait_until

_NUMBERS = itertools.count()


class Record(NamedTuple):
    """A message as a reader with ``read_committed`` gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


class Topics:
    """Topics at one broker, or at several that each have a replica."""

    def __init__(self, url: str, replicas: int = 1) -> None:
        self.url = url
        self.replicas = replicas
        self.admin = AdminClient({"bootstrap.servers": url, "log_level": 0})
        self.cluster = Cluster(url)

    def new(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        """Make a topic, of a name of its own if none is given."""
        name = name or f"topic-{os.getpid()}-{next(_NUMBERS)}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.cluster.create_topic(name, partitions, self.replicas, config)
        return name

    def leaders(self, name: str) -> dict[int, int]:
        """Return, for each partition, the node of the broker that leads it; -1: nobody does."""
        return {n: each.leader for n, each in self.admin.list_topics(name, 30).topics[name].partitions.items()}

    def elect(self, name: str) -> None:
        """Have each partition of a topic led by the broker that is to lead it if all are there."""
        partitions = [TopicPartition(name, partition) for partition in self.leaders(name)]
        admin = AdminClient(
            {"bootstrap.servers": self.url, "log_level": 0}
        )  # one that knows which brokers there are now
        for error in admin.elect_leaders(ElectionType.PREFERRED, partitions).result().values():
            assert error is None or error.name() == "ELECTION_NOT_NEEDED", error

    def await_in_sync(self) -> None:
        """Wait until every replica of every topic has what its leader has."""
        wait_until(lambda: self._lagging() == [])

    def _lagging(self) -> list[str]:
        topics = self.admin.list_topics(timeout=30).topics.values()
        return [t.topic for t in topics for p in t.partitions.values() if len(p.isrs) < len(p.replicas)]

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result()
        self.cluster.await_so(lambda: self.cluster.topic(name) is None, name)

    def grow(self, name: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result()
        self.cluster.await_so(lambda: len((self.cluster.topic(name) or ((), ()))[1]) >= partitions, name)

    def trim(self, name: str, partition: int, before: int) -> None:
        """Remove what lies before an offset, as retention does."""
        [asked] = self.admin.delete_records([TopicPartition(name, partition, before)]).values()
        asked.result()

    def producer(self, **settings: Any) -> Producer:
        """Make a producer that keeps the order of messages also if a request is sent again."""
        ours = {key.replace("_", "."): value for key, value in settings.items()}
        fixed = {"bootstrap.servers": self.url, "log_level": 0, "enable.idempotence": True}
        return Producer({**fixed, "linger.ms": 0, **ours})

    def write(self, name: str, messages: Iterable[Any], partition: int = 0, key: Any = None, **more: Any) -> None:
        """Write values, or (key, value) pairs, in order."""
        producer = self.producer()
        for each in messages:
            one_key, value = each if isinstance(each, tuple) else (key, each)
            producer.produce(name, value, one_key, partition, **more)
        assert producer.flush(60) == 0

    def transaction(self, transactional_id: str) -> Producer:
        """A producer with an open transaction."""
        producer = self.producer(transactional_id=transactional_id)
        producer.init_transactions(60)
        producer.begin_transaction()
        return producer

    def read(self, name: str, *, committed: bool = True) -> list[Record]:
        """Everything that is there now: by partition, in order."""
        topic = self.cluster.topic(name)
        if topic is None:
            return []
        ask = self.cluster.end_offsets
        end = (
            self.cluster.stable_offsets(name, topic.partitions, 5.0)
            if committed
            else ask(name, topic.partitions, committed=False)
        )
        first = self.cluster.first_offsets(name, topic.partitions)
        records = []
        for partition in topic.partitions:
            for m in self.cluster.read(name, partition, first[partition], end[partition], committed=committed):
                records.append(Record(m.partition(), m.offset(), m.key(), m.value(), dict(m.headers() or ())))
        return records

    def committed_offset(self, group: str, name: str, partition: int) -> int:
        """What tools that watch groups show."""
        consumer = Consumer({"bootstrap.servers": self.url, "group.id": group})
        try:
            [found] = consumer.committed([TopicPartition(name, partition)], 30)
            return int(found.offset)
        finally:
            consumer.close()

    def set(self, name: str, **settings: str) -> None:
        """Change settings of a topic."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

        changes = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        [asked] = self.admin.incremental_alter_configs([resource]).values()
        asked.result()
