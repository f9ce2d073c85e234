"""Messages of a Kafka topic as documents."""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from ferryman.document import Document, content_version, json_error
from ferryman.errors import BadDocument, Misconfigured, Unavailable, UsageError, describe
from ferryman.net.kafka import COMMIT_S, OPEN_TRANSACTION_S, Cluster, Topic, check_topic, missing_package
from ferryman.sources import debezium
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, OnError, Piece, Positions

if TYPE_CHECKING:
    import pyarrow as pa

OnLost = Literal["stop", "continue"]

METADATA: Final = "kafka"
"""Field with what belongs to a message beside its value."""

_SAMPLE: Final = 200
"""Messages by whose average the size of the others is estimated."""

_SAMPLED_FROM: Final = 1000
"""Messages to read from which an estimate is worth its request."""

_NO_CONTENT: Final = content_version(b"", None)


class KafkaMessage(NamedTuple):
    """A message as ``format=`` gets it, if that is a function."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    """Milliseconds since 1970; None: it has none."""
    topic: str
    partition: int
    offset: int


class Kafka(Log):
    """A Kafka topic (docs/how-to/index-from-kafka.md): each message is a document.

    Only what was committed is read, up to the first transaction that is still open. The positions are in the state of
    the plan, not in a consumer group. New partitions are read from their beginning. A topic that was deleted and made
    again is another one, and is read from its beginning, too.

    The field ``kafka`` has ``topic``, ``partition``, ``offset``, ``timestamp``, ``key`` and ``headers`` (a list of
    ``[name, value]``). Keys and values of headers are texts; bytes that are not UTF-8 are ``{"base64": "…"}``.

    Messages of a partition are read in order, those of different partitions are not ordered among each other. So if
    partitions are added and Kafka puts a key into another one from then on, let the plan read what was written before,
    and only then let producers go on.

    Args:
        servers: ``host:port``, or several of them, separated by commas or in a list.
        topic: its name.
        format: of the values. "json": an object, whose members become fields; "raw": the bytes become ``doc.raw``;
            "debezium": change events of Debezium's (JSON, with or without schemas), for a keyed source: the row becomes
            the fields, the values of its key the id, several joined with ``/``; or a function that takes a
            ``KafkaMessage`` and returns the fields as a dict, for other formats, such as those of a schema registry.
        keyed: False: each message is a document of its own, ``<topic>/<partition>/<offset>``, also one without a value.
            True: the key is the id, so that a message is a newer version of the document of its key, and one without a
            value (a tombstone) deletes it. To retry a single document, its whole topic is searched for the last message
            of its key. What a step drops now, routes to another destination or makes no child of any more is deleted
            where an earlier message of the key has delivered it. In a wave, one task reads a partition.
        on_lost: what to do if messages were removed (retention, compaction of deletes) before the plan read them.
            "stop": the source stops, and says which are missing; "continue": it goes on with the first that is there.
        group: consumer group to which the position is written after each commit, so that tools that watch groups show
            the lag. It is never read.
        metadata: the field for what belongs to a message beside its value; None: no field.
        options: settings of the client, librdkafka's names: ``{"security.protocol": "SASL_SSL", …}``.
        ordered, on_error: see ``Log``.
        prefix: put before every id.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        topic: str,
        *,
        format: Literal["json", "raw", "debezium"] | Callable[[KafkaMessage], dict[str, Any]] = "json",  # noqa: A002 - what it is called elsewhere
        keyed: bool = False,
        on_lost: OnLost = "stop",
        group: str | None = None,
        metadata: str | None = METADATA,
        options: Mapping[str, Any] | None = None,
        ordered: bool = True,
        on_error: OnError = "stop",
        prefix: str = "",
    ) -> None:
        super().__init__(prefix=prefix, ordered=ordered, on_error=on_error)
        if format not in ("json", "raw", "debezium") and not callable(format):
            raise UsageError(
                f"format={format!r}: give 'json', 'raw', 'debezium', or a function that returns the fields."
            )
        if format == "debezium" and not keyed:
            raise UsageError("format='debezium': change events are of rows by their keys. Give keyed=True, too.")
        if on_lost not in get_args(OnLost):
            raise UsageError(f"on_lost={on_lost!r}: choose one of {', '.join(get_args(OnLost))}.")
        self.cluster = Cluster(servers, options)
        self.topic = check_topic(topic)
        self.format = format
        self.keyed = keyed
        self.on_lost = on_lost
        self.group = group
        self.metadata = metadata
        self.repeats_ids = self.many_versions = keyed
        self._sizes: dict[int, int] = {}
        self._named_transactions = self._has_waited = False

    def not_installed(self) -> str:
        return missing_package()

    def place(self) -> str | None:
        return f"kafka:{self.cluster.servers}#{self.topic}"

    def reads(self) -> str | None:
        return self.place()

    def check(self) -> None:
        """Raises:
        Misconfigured: the client is not installed, or the brokers refuse it.
        Unavailable: no broker answers.
        """
        if why := missing_package():
            raise Misconfigured(why)
        self.cluster.topic(self.topic)

    def identity(self) -> str:
        topic = self.cluster.topic(self.topic)
        return "" if topic is None else topic.id

    def nothing(self) -> str:
        topic = self.cluster.topic(self.topic)
        if topic is None:
            return f"there is no topic {self.topic} at {self.cluster.servers} yet"
        return self._held_up(topic)

    def begin(self) -> Positions:
        topic = self._topic()
        return _positions(self.cluster.first_offsets(self.topic, topic.partitions) if topic else {})

    def end(self) -> Positions:
        """Return the last stable offsets. The first call waits a moment if transactions are open: the plan that wrote
        the topic may have just ended."""
        topic = self._topic()
        if topic is None:
            return {}
        wait_s, self._has_waited = 0.0 if self._has_waited else COMMIT_S, True
        return _positions(self.cluster.stable_offsets(self.topic, topic.partitions, wait_s))

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Yield ranges of offsets.

        Raises:
            Misconfigured: messages that were not read are not kept any more, or the topic is shorter than what was
                read of it.
        """
        behind = {p: last for p, last in end.items() if start.get(p, last) < last}
        ahead = {p: last for p, last in end.items() if start.get(p, last) > last}
        if ahead:
            partition, last = next(iter(ahead.items()))
            raise Misconfigured(
                f"topic {self.topic}, partition {partition}: was read up to offset {start[partition] - 1}, and ends "
                f"before {last} now: a broker has lost messages. To read what is written at those offsets from now on, "
                "give the plan another version, which reads the topic from its beginning"
            )
        first = _positions(self.cluster.first_offsets(self.topic, [int(p) for p in behind]))
        for partition, last in behind.items():
            at = start[partition]
            if first[partition] > at:
                self._refuse_lost(partition, at, first[partition])
                at = min(first[partition], last)
            size = self._message_bytes(int(partition), at, last)
            for piece_start in range(at, last, limit):
                piece_end = min(piece_start + limit, last)
                yield Piece(partition, piece_start, piece_end, size * (piece_end - piece_start))

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        if piece.identity and piece.identity != self.identity():
            raise Unavailable(f"topic {self.topic} at {self.cluster.servers} was deleted, or made again, meanwhile")
        for message in self.cluster.read(self.topic, int(piece.partition), piece.start, piece.end):
            yield self._entry(message)

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        if not self.keyed:
            yield from super().rows(piece)
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        deletes: set[int] = set()

        def noted() -> Iterator[Entry]:
            for entry in self.entries(piece):
                if entry.document.operation == "delete":
                    deletes.add(entry.place)
                yield entry

        for table in self._tables(noted()):
            flags = pa.array([place in deletes for place in table["place"].to_pylist()], pa.bool_())
            for name, value in (("fields", None), ("version", _NO_CONTENT)):
                at = table.column_names.index(name)
                kept = pc.if_else(flags, pa.scalar(value, table[name].type), table[name])
                table = table.set_column(at, table.schema.field(name), kept)
            revisions = pc.add(table["place"], 1)
            yield table.append_column("revision", revisions).append_column("deletes", flags)

    def read(self, listed: Listed) -> Document:
        if self.keyed:
            return self._last_of_key(listed.id)
        place, _, offset = listed.id.rpartition("/")
        topic, _, partition = place.rpartition("/")
        if topic != self.topic or not partition.isdecimal() or not offset.isdecimal():
            raise BadDocument(f"{listed.id}: not a message of topic {self.topic}")
        at = int(offset)
        first = self.cluster.first_offsets(self.topic, [int(partition)])[int(partition)]
        for message in self.cluster.read(self.topic, int(partition), at, at + 1) if first <= at else ():
            entry = self._entry(message)
            if entry.refused:
                raise BadDocument(entry.refused)
            return entry.document
        raise BadDocument(f"{listed.id}: the topic does not keep this message any more")

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        """Write the position to the consumer group, if there is one."""
        if self.group is None or not positions:
            return
        from confluent_kafka import TopicPartition

        with self.cluster.errors(f"consumer group {self.group}"):
            consumer = self.cluster.consumer(self.group)
            try:
                at = [TopicPartition(self.topic, int(partition), place) for partition, place in positions.items()]
                for written in consumer.commit(offsets=at, asynchronous=False):
                    if written.error is not None:
                        raise self.cluster.error_of(written.error, f"consumer group {self.group}")
            finally:
                consumer.close()

    # -- inside ------------------------------------------------------------------------------------

    def _topic(self) -> Topic | None:
        return self.cluster.topic(self.topic)

    def _held_up(self, topic: Topic) -> str:
        """Return which open transactions hold up readers, once in the life of this object; "" if none does."""
        if self._named_transactions:
            return ""
        self._named_transactions = True
        stable = self.cluster.end_offsets(self.topic, topic.partitions)
        end = self.cluster.end_offsets(self.topic, topic.partitions, committed=False)
        held = [partition for partition in topic.partitions if stable[partition] < end[partition]]
        transactions = self.cluster.open_transactions(self.topic) if held else {}
        now_ms = time.time() * 1000
        texts = []
        for partition in held:
            if (transaction := transactions.get(partition)) is None:
                who = "whose name this client may not read"
            elif now_ms - transaction.since_ms < OPEN_TRANSACTION_S * 1000:
                continue
            else:
                who = transaction.describe()
            texts.append(f"partition {partition} is read up to offset {stable[partition]}: an open transaction {who}")
        return f"topic {self.topic}: {'; '.join(texts)}" if texts else ""

    def _refuse_lost(self, partition: str, start: int, first: int) -> None:
        """Raise if the plan must stop because offsets of ``start`` ≤ offset < ``first`` are gone."""
        if self.on_lost == "stop":
            raise Misconfigured(
                f"topic {self.topic}, partition {partition}: offsets {start} to {first - 1} were removed before they "
                "were read (retention, or somebody has deleted them). Their documents are lost to this plan. To go on "
                f"at offset {first}, give the source on_lost='continue'; to keep this from happening again, raise "
                "retention.ms of the topic, or run more often"
            )

    def _message_bytes(self, partition: int, start: int, end: int) -> int:
        """Return the average size of the next messages; 0: unknown, and not worth a request."""
        if end - start < _SAMPLED_FROM:
            return self._sizes.get(partition, 0)
        if partition not in self._sizes:
            sizes = []
            for message in self.cluster.read(self.topic, partition, start, end):
                sizes.append(len(message.value() or b"") + len(message.key() or b"") + 100)
                if len(sizes) == _SAMPLE:
                    break
            self._sizes[partition] = sum(sizes) // len(sizes) if sizes else 0
        return self._sizes[partition]

    def _last_of_key(self, key: str) -> Document:
        """Return the document of a key by the last message that has it."""
        topic = self._topic()
        partitions = topic.partitions if topic else ()
        first, end = (ask(self.topic, partitions) for ask in (self.cluster.first_offsets, self.cluster.end_offsets))
        last: Any = None
        for partition in partitions:
            for message in self.cluster.read(self.topic, partition, first[partition], end[partition]):
                if self._has_id(message, key) and (last is None or message.timestamp()[1] >= last.timestamp()[1]):
                    last = message
        if last is None:
            raise BadDocument(f"{key}: the topic keeps no message of this key any more")
        entry = self._entry(last)
        if entry.refused:
            raise BadDocument(entry.refused)
        return entry.document

    def _entry(self, message: Any) -> Entry:
        place, partition, key, value = message.offset(), message.partition(), message.key(), message.value()
        id = f"{self.topic}/{partition}/{place}"
        row: Any = None
        try:
            if self.format == "debezium":
                id, row = debezium.read_event(key, value)
            elif self.keyed:
                id, row = _id_of(key, id), value
            if self.keyed and row is None:
                return Entry(place, Document.deletion(id))
            fields, raw = (dict(row), None) if isinstance(row, dict) else self._content(message, value)
            if self.metadata is not None:
                if self.metadata in fields:
                    raise BadDocument(
                        f"the value has a field {self.metadata!r}, which is that of the message's key, headers and "
                        "place: give the source another metadata=, or None"
                    )
                fields[self.metadata] = _metadata(message, self.topic, partition, place, key)
        except BadDocument as e:
            return Entry(place, Document(id), refused=str(e))
        return Entry(place, Document.of(id, fields, raw))

    def _has_id(self, message: Any, id: str) -> bool:
        """Return whether a message is one of a document of this id."""
        if self.format != "debezium":
            return bool(message.key() == id.encode())
        try:
            return debezium.event_id(message.key(), message.value()) == id
        except BadDocument:
            return False

    def _content(self, message: Any, value: bytes | None) -> tuple[dict[str, Any], bytes | None]:
        """Return the fields and the raw bytes of a message."""
        if value is None or self.format == "raw":
            return {}, value
        if callable(self.format):
            try:
                fields: Any = self.format(_message_of(message, value))
            except BadDocument:
                raise
            except Exception as e:
                raise BadDocument(f"format: {describe(e)}") from e
            if not isinstance(fields, dict):
                raise BadDocument(f"format= returned a {type(fields).__name__}, not a dict of fields")
            return dict(fields), None
        try:
            fields = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise BadDocument(f"the value is not JSON: {json_error(value, e)}. Give the source a format=") from e
        if not isinstance(fields, dict):
            raise BadDocument(f"the value is JSON, but not an object: {value[:40]!r}. Give the source a format=")
        return fields, None


def _positions(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _id_of(key: bytes | None, place: str) -> str:
    """Return the id that a key is.

    Raises:
        BadDocument: it cannot be one.
    """
    if not key:
        raise BadDocument(f"{place} has no key, and the source is keyed")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise BadDocument(f"{place}: the key {key[:40]!r} is not UTF-8, so it cannot be an id") from None


def _metadata(message: Any, topic: str, partition: int, offset: int, key: bytes | None) -> dict[str, Any]:
    kind, timestamp = message.timestamp()
    headers = message.headers()
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": _iso_time(*divmod(timestamp, 1000)) if kind and timestamp >= 0 else None,
        "key": _text_of(key),
        "headers": [[name, _text_of(value)] for name, value in headers] if headers else [],
    }


def _iso_time(seconds: int, milliseconds: int) -> str | None:
    """Return a time as ISO 8601 in UTC; None if it is beyond the year 9999, since a producer may write any number."""
    text = _iso_seconds(seconds)
    return None if text is None else f"{text}.{milliseconds:03}+00:00"


@lru_cache(maxsize=16)
def _iso_seconds(seconds: int) -> str | None:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return None


def _text_of(value: bytes | None) -> Any:
    """Return bytes as a JSON value."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _message_of(message: Any, value: bytes) -> KafkaMessage:
    kind, timestamp = message.timestamp()
    return KafkaMessage(
        message.key(),
        value,
        tuple(message.headers() or ()),
        timestamp if kind else None,
        message.topic(),
        message.partition(),
        message.offset(),
    )
