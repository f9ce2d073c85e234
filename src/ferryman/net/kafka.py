"""Kafka by the client ``confluent-kafka``: its settings, what a topic is, and what its errors mean.

Clients have threads of their own, which a fork does not copy: each is made in the process that uses it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ferryman.errors import DeliveryError, Misconfigured, Unavailable, UsageError, hide_secrets
from ferryman.net import urls

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

REQUEST_S: Final = 15.0
"""Time that brokers have to answer a request about topics."""

REFRESH_MS: Final = 2000
"""How often the client for questions about topics asks which brokers there are. One of them answers those questions: if
that one is killed, the client waits for it until it has asked again."""

POLL_S: Final = 0.2
"""Longest time that a reader waits for messages before it looks at its deadline."""

SILENCE_S: Final = 30.0
"""Time without any message of a range that is there, after which reading it is given up."""

_READ_AHEAD: Final = 10_000
"""Messages that a consumer fetches ahead, some 300 bytes each beside their content. By itself it takes 100 000, also to
look at a few of them."""

FETCHED_MESSAGES: Final = 2000
"""Messages that are taken from the client's queue at once."""

COMMIT_S: Final = 0.5
"""Time that brokers need at most, as a rule, to show readers what they have confirmed."""

OPEN_TRANSACTION_S: Final = 10.0
"""Age from which a transaction that holds up readers is worth a message: younger ones are in flight."""

_TRANSACTIONS_S: Final = 10.0
"""Time for reading which transactions are open; after that a message does without their names."""

_SERVER: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*://)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::\d{1,5})?")

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

_OURS: Final = (
    *("bootstrap.servers", "metadata.broker.list", "transactional.id", "transaction.timeout.ms", "enable.idempotence"),
    *("isolation.level", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "group.id"),
    *("auto.offset.reset", "acks", "request.required.acks", "allow.auto.create.topics", "message.max.bytes"),
    *("enable.gapless.guarantee", "error_cb", "on_commit", "logger"),
)
"""Settings on which what is promised depends."""

_SECRETS: Final = ("sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "ssl_key")

_LOGGER: Final = logging.getLogger("ferryman.kafka")
"""Takes what the client would print to stderr by itself: errors are raised, too."""
_LOGGER.addHandler(logging.NullHandler())

_MISCONFIGURED: Final = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "SECURITY_DISABLED",
        "UNSUPPORTED_VERSION",
        "INVALID_TRANSACTION_TIMEOUT",
        "TOPIC_EXCEPTION",
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "POLICY_VIOLATION",
        "INVALID_REQUIRED_ACKS",
        "_AUTHENTICATION",
        "_UNSUPPORTED_FEATURE",
        "_INVALID_ARG",
        "_UNKNOWN_PARTITION",
    }
)
"""Errors that an operator has to fix; all others concern the whole cluster, for now."""

_ABOUT_CONNECTION: Final = ("_TIMED_OUT", "_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE")
"""Errors that only say that no answer came: why, the client may have reported before."""


def missing_package() -> str:
    """Return which package is missing, with the command that installs it; "" if it is there."""
    if find_spec("confluent_kafka") is None:
        return "Kafka needs confluent-kafka, which is not installed: pip install 'ferryman[kafka]'"
    return ""


def check_servers(servers: str | Iterable[str]) -> str:
    """Return the bootstrap servers as the client takes them.

    Raises:
        UsageError: they are not ``host:port``, one or several.
    """
    each = [part.strip() for part in (servers.split(",") if isinstance(servers, str) else servers)]
    if not each or not all(isinstance(part, str) and _SERVER.fullmatch(part) for part in each):
        raise UsageError(
            f"servers={urls.without_logins(servers)}: give host:port, or several of them, as in "
            "'kafka-1:9092,kafka-2:9092'."
        )
    return ",".join(each)


def check_topic(topic: str) -> str:
    """Return the topic's name.

    Raises:
        UsageError: Kafka would refuse it.
    """
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise UsageError(
            f"topic={topic!r}: a topic's name is of 1 to 249 letters, digits, dots, hyphens and underscores."
        )
    return topic


def check_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the client's settings that a user adds.

    Raises:
        UsageError: one of them would break what is promised.
    """
    given = dict(options or {})
    if taken := sorted(given.keys() & set(_OURS)):
        raise UsageError(f"options={taken}: Ferryman sets these itself, since its guarantees depend on them.")
    return given


class Topic(NamedTuple):
    """A topic as the brokers describe it.

    Attributes:
        id: the brokers' id: one that is deleted and made again has another.
        partitions: numbers of its partitions, ascending.
        replicas: the least number of replicas of a partition.
        in_sync: the least number of replicas in sync.
    """

    id: str
    partitions: tuple[int, ...]
    replicas: int
    in_sync: int


class OpenTransaction(NamedTuple):
    """A transaction that has neither been committed nor aborted."""

    transactional_id: str
    producer_id: int
    since_ms: int

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_ms / 1000))
        return f"of transactional.id {self.transactional_id} (producer {self.producer_id}), open since {since}"


class Cluster:
    """Brokers, and the clients of this process for them. Pickled, it is the address alone.

    Args:
        servers: ``host:port``, separated by commas.
        options: settings of the client, such as its credentials.
    """

    def __init__(self, servers: str | Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        self.servers = check_servers(servers)
        self.options = check_options(options)
        self._admin: AdminClient | None = None
        self._admin_process = 0
        self._reported: KafkaError | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None, "_admin_process": 0, "_reported": None}

    # -- clients -----------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        """Return this process's client for questions about topics."""
        if self._admin is None or self._admin_process != os.getpid():
            from confluent_kafka.admin import AdminClient

            settings = self._settings({"topic.metadata.refresh.interval.ms": REFRESH_MS})
            self._admin, self._admin_process = AdminClient(settings), os.getpid()
        return self._admin

    def consumer(self, group: str = "ferryman", *, committed: bool = True, batch_bytes: int = 1 << 20) -> Consumer:
        """Return a new consumer, to which partitions are assigned; the caller closes it.

        Args:
            committed: whether it sees only what was committed.
        """
        from confluent_kafka import Consumer

        return Consumer(
            self._settings(
                {
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "isolation.level": "read_committed" if committed else "read_uncommitted",
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": 50,
                    "queued.max.messages.kbytes": max(16 * 1024, batch_bytes // 1024),
                    "queued.min.messages": _READ_AHEAD,
                    "fetch.queue.backoff.ms": 10,  # else it pauses for a second once so many wait
                }
            )
        )

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """Return a new producer, with these settings beside the user's own."""
        from confluent_kafka import Producer

        defaults = {"partitioner": "murmur2_random", "linger.ms": 5, **self._settings({})}
        return Producer({**defaults, "allow.auto.create.topics": False, **settings})

    def _settings(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "logger": _LOGGER,
            "socket.connection.setup.timeout.ms": 5000,
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.ms": 20,
            **self.options,
            "bootstrap.servers": self.servers,
            "error_cb": self._note_error,
            **ours,
        }

    def _note_error(self, error: KafkaError) -> None:
        """Remember what a client reports by itself: a request that it cannot send only times out."""
        if error.name() != "_ALL_BROKERS_DOWN" or self._reported is None:
            self._reported = error

    # -- errors ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def errors(self, place: str) -> Iterator[None]:
        """Convert the client's errors to ``Unavailable`` or ``Misconfigured``."""
        from confluent_kafka import KafkaException

        self._reported = None
        try:
            yield
        except KafkaException as e:
            raise self.error_of(e.args[0], place) from e

    def error_of(self, error: Any, place: str) -> DeliveryError:
        """Return what an error of the client means."""
        name = getattr(error, "name", lambda: "")()
        if name in _ABOUT_CONNECTION and self._reported is not None:
            error, name = self._reported, self._reported.name()
        text = error.str() if hasattr(error, "str") else str(error)
        why = f"{place} at {self.servers}: {self.hide_secrets(text)}"
        return Misconfigured(why) if name in _MISCONFIGURED else Unavailable(why)

    def hide_secrets(self, text: str) -> str:
        """Return a text without the secrets among the settings."""
        secrets = [
            str(value or "")
            for name, value in self.options.items()
            if name in _SECRETS or "secret" in name or "password" in name
        ]
        return hide_secrets(text, secrets, "***")

    # -- topics ------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """Return a topic; None: there is none of this name."""
        from confluent_kafka import KafkaException, TopicCollection

        with self.errors(f"topic {name}"):
            try:
                asked = self.admin().describe_topics(TopicCollection([name]), request_timeout=REQUEST_S)
                found = asked[name].result()
            except KafkaException as e:
                if e.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                    return None
                raise
        replicas = [len(p.replicas) for p in found.partitions]
        in_sync = [len(p.isr) for p in found.partitions]
        numbers = tuple(sorted(p.id for p in found.partitions))
        return Topic(str(found.topic_id), numbers, min(replicas, default=0), min(in_sync, default=0))

    def settings_of(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, defaults of the brokers included."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        return self._read_settings(ConfigResource(ResourceType.TOPIC, topic), f"topic {topic}")

    def broker_settings(self) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        with self.errors("the brokers"):
            cluster = self.admin().describe_cluster(request_timeout=REQUEST_S).result()
        broker = cluster.controller or cluster.nodes[0]
        return self._read_settings(ConfigResource(ResourceType.BROKER, str(broker.id)), "the brokers")

    def _read_settings(self, resource: Any, place: str) -> dict[str, str]:
        with self.errors(place):
            [asked] = self.admin().describe_configs([resource], request_timeout=REQUEST_S).values()
            return {name: each.value for name, each in asked.result().items()}

    def create_topic(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str], *, as_another: bool = False
    ) -> None:
        """Create a topic, and wait until it can be asked for; one that is there stays as it is.

        Args:
            as_another: another topic has so many replicas: if there are too few brokers for them, some are away.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
        with self.errors(f"topic {name} cannot be made"):
            try:
                self.admin().create_topics([wanted], request_timeout=REQUEST_S)[name].result()
            except KafkaException as e:
                error = e.args[0]
                if as_another and error.name() == "INVALID_REPLICATION_FACTOR":
                    raise Unavailable(
                        f"topic {name} cannot be made at {self.servers}: a broker is away: {error.str()}"
                    ) from e
                if error.name() != "TOPIC_ALREADY_EXISTS":
                    raise
        self.await_so(lambda: bool((topic := self.topic(name)) and topic.partitions and topic.in_sync), f"topic {name}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the brokers know it; one that is not there stays so."""
        from confluent_kafka import KafkaException

        with self.errors(f"topic {name} cannot be deleted"):
            try:
                self.admin().delete_topics([name], request_timeout=REQUEST_S)[name].result()
            except KafkaException as e:
                if e.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
        self.await_so(lambda: self.topic(name) is None, f"the deletion of topic {name}")

    def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions to a topic until it has this number."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewPartitions

        with self.errors(f"topic {name} gets no more partitions"):
            asked = self.admin().create_partitions([NewPartitions(name, partitions)], request_timeout=REQUEST_S)
            try:
                asked[name].result()
            except KafkaException as e:
                if e.args[0].name() != "INVALID_PARTITIONS":  # another driver was faster
                    raise
        self.await_so(lambda: bool((t := self.topic(name)) and len(t.partitions) >= partitions), f"topic {name}")

    def await_so(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until the brokers agree: what one of them has done, another may not know yet."""
        until = time.monotonic() + REQUEST_S
        while not is_so():
            if time.monotonic() > until:
                raise Unavailable(f"{what} at {self.servers} was made, and the brokers do not know it yet")
            time.sleep(0.02)

    # -- offsets -----------------------------------------------------------------------------------

    def first_offsets(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return, for each partition, the offset of the first message that is kept."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, partitions, OffsetSpec.earliest(), committed=True)

    def end_offsets(self, topic: str, partitions: Collection[int], *, committed: bool = True) -> dict[int, int]:
        """Return, for each partition, the offset after its last message.

        Args:
            committed: whether to end before the first transaction that is still open (the last stable offset).
        """
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, partitions, OffsetSpec.latest(), committed=committed)

    def stable_offsets(self, topic: str, partitions: Collection[int], wait_s: float) -> dict[int, int]:
        """Return the offsets up to which readers come, after waiting for transactions that have just ended.

        The brokers confirm a commit a moment before readers see it. An open transaction looks like one that is about to
        be seen, hence the limit.
        """
        until = time.monotonic() + wait_s
        while True:
            stable = self.end_offsets(topic, partitions)
            if time.monotonic() >= until or stable == self.end_offsets(topic, partitions, committed=False):
                return stable
            time.sleep(0.01)

    def _offsets(self, topic: str, partitions: Collection[int], spec: Any, *, committed: bool) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        if not wanted:
            return {}
        with self.errors(f"topic {topic}"):
            asked = self.admin().list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_S)
            return {each.partition: answer.result().offset for each, answer in asked.items()}

    # -- messages ----------------------------------------------------------------------------------

    def read(self, topic: str, partition: int, start: int, end: int, *, committed: bool = True) -> Iterator[Message]:
        """Yield the messages of ``start`` ≤ offset < ``end``. Offsets have gaps: markers of transactions, messages that
        were compacted away, or aborted.

        Raises:
            Unavailable: the brokers do not answer, or the first messages are no longer kept.
        """
        if start >= end:
            return
        from confluent_kafka import TopicPartition

        place = f"topic {topic}, partition {partition}, offset"
        consumer = self.consumer(committed=committed)
        try:
            with self.errors(f"{place} {start}"):
                consumer.assign([TopicPartition(topic, partition, start)])
                at, heard = start, time.monotonic()
                while at < end:
                    before = at
                    for message in consumer.consume(FETCHED_MESSAGES, 0) or consumer.consume(1, POLL_S):
                        if (error := message.error()) is not None:
                            if error.name() == "_PARTITION_EOF" and message.offset() >= end:
                                return
                            self._check_read_error(error, f"{place} {at}")
                            continue
                        if (offset := message.offset()) >= end:
                            return
                        at = offset + 1
                        yield message
                    if at > before:
                        heard = time.monotonic()  # whoever got them may have taken long
                    elif time.monotonic() - heard > SILENCE_S:
                        raise self.error_of(f"no message for {SILENCE_S:g} s, of those before {end}", f"{place} {at}")
        finally:
            consumer.close()

    def _check_read_error(self, error: Any, place: str) -> None:
        if error.name() == "_AUTO_OFFSET_RESET":
            raise Unavailable(f"{place} at {self.servers} is not there: {error.str()}")
        if error.name() in _MISCONFIGURED or error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            raise self.error_of(error, place)

    def open_transactions(self, topic: str) -> dict[int, OpenTransaction]:
        """Return, for each partition of a topic that an open transaction writes to, the oldest of them.

        Reads the topic in which the brokers keep transactions, for which the client needs the right.
        """
        from confluent_kafka import KafkaException

        found: dict[int, OpenTransaction] = {}
        with contextlib.suppress(KafkaException, DeliveryError):
            for transaction, partitions in self._transactions(topic):
                for partition in partitions:
                    if partition not in found or transaction.since_ms < found[partition].since_ms:
                        found[partition] = transaction
        return found

    def _transactions(self, topic: str) -> Iterator[tuple[OpenTransaction, list[int]]]:
        state = "__transaction_state"
        if (kept := self.topic(state)) is None:
            return
        first = self.first_offsets(state, kept.partitions)
        end = self.end_offsets(state, kept.partitions, committed=False)
        last: dict[bytes, bytes | None] = {}
        until = time.monotonic() + _TRANSACTIONS_S
        for partition in kept.partitions:
            for message in self.read(state, partition, first[partition], end[partition], committed=False):
                if time.monotonic() > until:
                    return
                if (key := message.key()) is not None:
                    last[key] = message.value()
        for key, value in last.items():
            if value is not None and (decoded := decode_transaction(key, value, topic)) is not None:
                yield decoded


_ONGOING: Final = frozenset({1, 2, 3})
"""Statuses of a transaction that holds up readers: ongoing, about to be committed, about to be aborted."""


def decode_transaction(key: bytes, value: bytes, topic: str) -> tuple[OpenTransaction, list[int]] | None:
    """Decode a record of the brokers' topic of transactions (Kafka's TransactionLogKey and TransactionLogValue).

    Returns:
        The transaction and the partitions of ``topic`` in it; None: it is not open, has none of them, or is of a newer
        format.
    """
    try:
        transactional_id = key[4 : 4 + int.from_bytes(key[2:4])].decode()
        reader = _Bytes(value)
        version = reader.number(2)
        producer = reader.number(8)
        reader.number(2)  # epoch
        reader.number(4)  # time-out
        status = reader.number(1)
        partitions: list[int] = []
        for _ in range(reader.length(4, compact=version > 0)):
            name = reader.take(reader.length(2, compact=version > 0)).decode()
            numbers = [reader.number(4) for _ in range(reader.length(4, compact=version > 0))]
            if version > 0:
                reader.skip_tags()
            partitions += numbers if name == topic else []
        reader.number(8)  # last change
        since = reader.number(8)
    except (IndexError, ValueError):
        return None
    if version > 1 or status not in _ONGOING or not partitions:
        return None
    return OpenTransaction(transactional_id, producer, since), partitions


class _Bytes:
    """Reads Kafka's binary format."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise IndexError(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def varint(self) -> int:
        number = shift = 0
        while (byte := self.take(1)[0]) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def length(self, size: int, *, compact: bool) -> int:
        """Read the length of an array or text; none counts as empty."""
        return max(0, self.varint() - 1) if compact else max(0, self.number(size))

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())
