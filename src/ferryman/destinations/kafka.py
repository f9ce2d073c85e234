"""Documents as messages of a Kafka topic.

Exactly-once, a chunk is a transaction of Kafka. A *mark* is written in the same transaction: a record that names the
rows of the chunk, in a compacted topic of the state's own. So whoever reads the marks knows what was sent:

1. the driver ends every transaction of earlier passes (``begin_pass``): it takes over all transactional ids that the
   state has ever used, and whoever had one of them is fenced
2. a lane takes over its own id: an open transaction is aborted, one that was being committed is committed
3. it reads all marks, then asks whether its pass is still open; so a worker that was stopped for hours sends nothing
4. it sends the rows that no mark names, and their mark, and commits
5. if it was fenced, or does not know whether a commit took effect, it begins at step 2 again

A kill between any two steps leaves a transaction that is open, which the next step 1 ends, or one that is committed
with its mark.
"""

from __future__ import annotations

import base64
import contextlib
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from ferryman import crash
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Guarantee,
    Outcome,
    Stored,
    printable_id,
)
from ferryman.document import encode_fields
from ferryman.errors import BadDocument, Misconfigured, PermanentError, Unavailable, UsageError, describe, plain_text
from ferryman.net.kafka import COMMIT_S, Cluster, Topic, check_topic, missing_package

if TYPE_CHECKING:
    from confluent_kafka import Producer

HASH: Final = "ferryman.hash"
"""Header with the delivery's hash."""

ID: Final = "ferryman.id"
"""Header with the document's id, where that is not the key."""

_FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})

_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"})

_RECORD_BYTES: Final = 120
"""Most bytes that a message takes beside its key, value and headers, with those of a batch of its own."""

_HEADER_BYTES: Final = 10
"""Most bytes that a header takes beside its name and value."""

_DEFAULT_LIMIT: Final = 1_048_588
"""Largest message that Kafka takes by default, for brokers that do not tell."""

_TRANSACTION_MARGIN_S: Final = 30.0
"""Time by which a transaction may last longer than a call of ``write``."""

_OF_SEND_TIMEOUT: Final = 0.75
"""Part of a call's time after which it gives up by itself, and says why."""

_TRIES: Final = 20
"""Times that a chunk is begun again because this lane was fenced, or lost its transaction."""

_LONGEST_PAUSE_S: Final = 5.0
"""Longest pause before it is begun again."""

_TOMBSTONES: Final = 500
"""Most marks of settled rows that one transaction removes."""

_ENDED_AT_ONCE: Final = 8
"""Transactional ids that are taken over at the same time."""

_ADOPTED: Final = b"adopted "
"""Beginning of the key of a record in the topic of marks; the hash of a delivery follows: it is in the topic, and an
older copy of the state, which was adopted, does not know that and may send it again."""

_ARRIVED: Final = b"arrived "
"""Beginning of the key of a record for one that came again after that, and was not sent; its hash follows."""

_UNCONFIRMED: Final = 10_000
"""Records that the client may have at a time while messages are adopted."""

_MARKS_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


class _Record(NamedTuple):
    """A delivery as a message."""

    sequence: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def hash(self) -> bytes:
        return self.headers[0][1] or b""

    @property
    def size(self) -> int:
        headers = sum([_HEADER_BYTES + len(name) + len(value or b"") for name, value in self.headers])
        return _RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


class Kafka(Destination):
    """A Kafka topic (docs/how-to/deliver-to-kafka.md): each delivery is a message, a delete a tombstone.

    Exactly-once by transactions, for readers with ``isolation.level=read_committed``. The default of Java's consumer is
    ``read_uncommitted``, which sees what was aborted, too. ``guarantee="at-least-once"`` does without transactions.

    The key is the document's id, the value a JSON object of its fields. Messages of a key leave in the order of the
    commits, and go to the partition in which Java's producer would put them. The header ``ferryman.hash`` has the hash
    of the delivery.

    Args:
        servers: ``host:port``, or several of them, separated by commas or in a list.
        topic: its name. If there is none, the first run makes it.
        key: the field that is the key, also one within an object, such as ``"kafka.key"``; without a value the message
            has no key. Then one lane sends everything, since only so messages of a key keep their order, and a delete,
            which has no fields, is refused. None: the id.
        value: "json"; "raw": the document's bytes; or a function that takes a ``Delivery`` and returns bytes, for other
            formats.
        text: field for the raw bytes, decoded, of documents that have no field of this name; None: they are left out.
        headers: the field with more headers, ``[[name, value], …]``, as ``sources.Kafka`` has them in
            ``"kafka.headers"``.
        exclude: fields that are left out of the value. By default what ``sources.Kafka`` adds.
        partitions, replicas: of a topic that is made; None: as the brokers have it.
        transaction_timeout: seconds after which the brokers abort a transaction whose worker is gone, so that readers
            go on. None: 30 more than ``send_timeout=`` of the node.
        options: settings of the client, librdkafka's names: ``{"security.protocol": "SASL_SSL", …}``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    effect = Effect.POTENT
    transactional = True
    in_order = True
    holds_keys = True
    preferred_batch: ClassVar[int | None] = 20_000
    """A transaction costs some ten milliseconds, however many messages it has."""

    facts: ClassVar[Facts] = Facts(
        stored="a message a delivery, a tombstone a delete, with the hash in a header",
        limits=("`max.message.bytes` of the topic a message",),
        outcomes=(
            ("a message larger than the topic takes", "permanent, with its size and the limit"),
            ("a delete, where a field is the key", "permanent"),
            ("fields or a key that JSON or UTF-8 cannot hold", "permanent"),
            ("fenced by another worker of this state", "nothing: it looks again what was sent"),
            ("a commit that timed out", "nothing: it is committed again, or looked up"),
            ("no broker, too few replicas in sync", "transient, about all"),
            ("wrong credentials, no right, settings that do not fit", "permanent, about all"),
        ),
        tested=("Kafka 4.1",),
    )

    def __init__(
        self,
        servers: str | Iterable[str],
        topic: str,
        *,
        key: str | None = None,
        value: Literal["json", "raw"] | Callable[[Delivery], bytes] = "json",
        text: str | None = "text",
        headers: str | None = None,
        exclude: Collection[str] = ("kafka",),
        partitions: int | None = None,
        replicas: int | None = None,
        transaction_timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if value not in ("json", "raw") and not callable(value):
            raise UsageError(f"value={value!r}: give 'json', 'raw', or a function that returns bytes.")
        if isinstance(exclude, str):
            raise UsageError(f"exclude={exclude!r}: give a list of fields, as in exclude=[{exclude!r}].")
        for name, number in (("partitions", partitions), ("replicas", replicas)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise UsageError(f"{name}={number!r}: give a number from 1, or leave it to the brokers.")
        if transaction_timeout is not None and not transaction_timeout > 0:
            raise UsageError(f"transaction_timeout={transaction_timeout!r}: give seconds.")
        self.cluster = Cluster(servers, options)
        self.topic = check_topic(topic)
        self.key, self.value, self.text, self.headers = key, value, text, headers
        self.exclude = tuple(exclude)
        self._excluded_in_json = [encode_fields({name: 0})[1:-3] for name in self.exclude]
        self.partitions, self.replicas = partitions, replicas
        self.transaction_timeout = transaction_timeout
        self.single_writer = key is not None  # type: ignore[misc]
        self.sender: TransactionSender | IdempotentSender | None = None
        self._marks: dict[str, _Marks] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sender": None, "_marks": {}}

    def target(self) -> str:
        return f"kafka:{self.cluster.servers}#{self.topic}"

    def not_installed(self) -> str:
        return missing_package()

    def check(self) -> None:
        """Make the topic if there is none.

        Raises:
            Misconfigured: the brokers refuse, or the topic can never have as many replicas in sync as it demands.
            Unavailable: no broker answers, or too few replicas are in sync.
        """
        if why := missing_package():
            raise Misconfigured(why)
        topic = self.cluster.topic(self.topic)
        if topic is None:
            self.cluster.create_topic(self.topic, self.partitions or -1, self.replicas or -1, {})
            topic = self._existing_topic()
        demanded = int(self.cluster.settings_of(self.topic).get("min.insync.replicas", 1))
        if demanded > topic.replicas:
            raise Misconfigured(
                f"topic {self.topic} demands {demanded} replicas in sync (min.insync.replicas) and has "
                f"{topic.replicas}, so nothing can be written. Lower the one, or add replicas"
            )
        if demanded > topic.in_sync:
            raise Unavailable(
                f"topic {self.topic} demands {demanded} replicas in sync (min.insync.replicas), and of its "
                f"{topic.replicas} only {topic.in_sync} are: a broker is away"
            )

    def identity(self) -> str | None:
        """Return the topic's id."""
        topic = self.cluster.topic(self.topic)
        return "" if topic is None else topic.id

    def highest_of(self, context: DestinationContext) -> int | None:
        marks = self._marks_of(context)
        return marks.highest() if marks.refresh() else None

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the messages that Ferryman wrote and that are still there, see ``Destination.inventory``."""
        topic, wanted = self.cluster.topic(self.topic), None if ids is None else set(ids)
        if topic is None:
            return
        first = self.cluster.first_offsets(self.topic, topic.partitions)
        end = self.cluster.stable_offsets(self.topic, topic.partitions, COMMIT_S)
        for partition in topic.partitions:
            for message in self.cluster.read(self.topic, partition, first[partition], end[partition]):
                headers = dict(message.headers() or ())
                id = (headers.get(ID) or message.key() or b"").decode(errors="replace")
                if HASH in headers and (wanted is None or id in wanted):
                    yield Stored(id, (headers[HASH] or b"").decode(errors="replace"), True)

    def adopt(self, context: DestinationContext, known: int, unknown: Callable[[], Collection[str]]) -> None:
        """Note in the topic of marks which messages the state does not know, see ``Destination.adopt``."""
        if context.guarantee is Guarantee.EXACTLY_ONCE:
            with self.cluster.errors(f"topic {marks_name(context)}"):
                self._marks_of(context).adopt(unknown(), context.send_timeout)

    def forgets(self, context: DestinationContext) -> bool:
        """Return whether messages were removed, or may be, by compaction."""
        topic = self._existing_topic()
        if "compact" in self.cluster.settings_of(self.topic).get("cleanup.policy", ""):
            return True
        return any(self.cluster.first_offsets(self.topic, topic.partitions).values())

    def retained(self, context: DestinationContext) -> list[str]:
        """Return the topic of marks, if there is one."""
        name = marks_name(context)
        return [] if self.cluster.topic(name) is None else [f"topic {name} at {self.cluster.servers}"]

    def after_loss(self, context: DestinationContext) -> str:
        name = marks_name(context)
        return (
            f"Somebody has deleted topic {name} at {self.cluster.servers}, by which a row is not sent twice. Messages "
            f"of topic {self.topic} have the hash of their delivery in the header {HASH}. To have all that is pending "
            f"sent, also what is there, make the topic again: kafka-topics.sh --create --topic {name} --partitions "
            f"{context.lanes} --config cleanup.policy=compact"
        )

    def remove_retained(self, context: DestinationContext) -> None:
        """End every transaction of this state, for which readers would wait, and delete the topic of marks."""
        marks = marks_name(context)
        if (topic := self.cluster.topic(marks)) is None:
            return
        self._end_all_transactions(marks, len(topic.partitions), context)
        self.cluster.delete_topic(marks)

    def begin_pass(self, context: DestinationContext) -> None:
        """Make the topic of marks, with a partition for each lane, and end every transaction of earlier passes.

        Raises:
            Misconfigured: a setting of the brokers, or of the topic of marks, does not fit.
        """
        if context.guarantee is not Guarantee.EXACTLY_ONCE:
            return
        self._check_timeouts(context)
        marks = self._marks_of(context)
        lanes = marks.create(context.lanes, self._existing_topic().replicas)
        crash.point("kafka.marks")
        self._end_all_transactions(marks.name, lanes, context)

    def open(self, context: DestinationContext) -> None:
        if context.guarantee is Guarantee.EXACTLY_ONCE:
            self.sender = TransactionSender(self, self._marks_of(context), context)
        else:
            self.sender = IdempotentSender(self, context)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Send the chunk, in the order of the sequences; exactly-once in one transaction.

        Raises:
            Unavailable: the brokers do not answer, or the pass is over.
            Misconfigured: the brokers refuse.
        """
        assert self.sender is not None, "write before open"
        outcomes = [Outcome.ok()] * len(chunk)
        records: dict[int, _Record] = {}
        refused: set[tuple[str, int | None]] = set()
        for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
            delivery = chunk[position]
            if refused and delivery.key_hash is not None and (delivery.source, delivery.key_hash) in refused:
                outcomes[position] = Outcome.held()
                continue
            try:
                record = self._record(delivery)
                if record.size > (limit := self.sender.limit):
                    raise BadDocument(
                        f"the message has {record.size} bytes, and topic {self.topic} takes {limit} (max.message.bytes)"
                    )
            except (BadDocument, TypeError, ValueError) as e:
                outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {plain_text(e)}")
                refused.add((delivery.source, delivery.key_hash))
            else:
                records[record.sequence] = record
        if records:
            with self.cluster.errors(f"topic {self.topic}"):
                self.sender.send(list(records.values()), outcomes)
        return outcomes

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
            self.sender = None

    # -- inside ------------------------------------------------------------------------------------

    def _existing_topic(self) -> Topic:
        topic = self.cluster.topic(self.topic)
        if topic is None:
            raise Unavailable(f"topic {self.topic} at {self.cluster.servers} was deleted meanwhile")
        return topic

    def _marks_of(self, context: DestinationContext) -> _Marks:
        """Return the marks of a state and node; they are read once in the life of this object, then what is new."""
        name = marks_name(context)
        if name not in self._marks:
            self._marks[name] = _Marks(self.cluster, name)
        return self._marks[name]

    def _transaction_timeout_s(self, context: DestinationContext) -> float:
        return self.transaction_timeout or context.send_timeout + _TRANSACTION_MARGIN_S

    def _check_timeouts(self, context: DestinationContext) -> None:
        """Raises:
        Misconfigured: a transaction could end while ``write`` is still at work, or last longer than brokers allow.
        """
        timeout_s = self._transaction_timeout_s(context)
        if timeout_s <= context.send_timeout:
            raise Misconfigured(
                f"a transaction lasts {timeout_s:g} s at most (transaction_timeout=), and a call of write "
                f"{context.send_timeout:g} s (send_timeout=): the brokers would abort it under the call. Make the "
                "first longer than the second"
            )
        most_ms = self.cluster.broker_settings().get("transaction.max.timeout.ms")
        if most_ms is not None and timeout_s * 1000 > int(most_ms):
            raise Misconfigured(
                f"a transaction would last up to {timeout_s:g} s (transaction_timeout=), and the brokers allow "
                f"{int(most_ms) / 1000:g} s (transaction.max.timeout.ms): shorten it and send_timeout="
            )

    def _end_all_transactions(self, marks: str, lanes: int, context: DestinationContext) -> None:
        timeout_s = context.send_timeout * _OF_SEND_TIMEOUT
        with ThreadPoolExecutor(min(lanes, _ENDED_AT_ONCE)) as pool:
            list(pool.map(lambda lane: self._end_transactions(marks, lane, timeout_s), range(lanes)))
        crash.point("kafka.fenced")

    def _end_transactions(self, marks: str, lane: int, timeout_s: float) -> None:
        """End what an earlier holder of a lane's id has left open, and fence the holder."""
        with self.cluster.errors(f"the transactions of lane {lane} of {marks}"):
            self.cluster.producer({"transactional.id": _transactional_id(marks, lane)}).init_transactions(timeout_s)

    def _record(self, delivery: Delivery) -> _Record:
        """Raises:
        BadDocument, TypeError, ValueError: it cannot be a message.
        """
        id = delivery.id.encode()
        headers: list[tuple[str, bytes | None]] = [(HASH, delivery.hash.encode())]
        if delivery.operation == "delete":
            if self.key is not None:
                raise BadDocument(
                    f"a delete has no fields, so its key, the field {self.key}, is not known: leave key= out, or give "
                    "the destination deletes='ignore'"
                )
            return _Record(delivery.sequence, id, None, headers)
        key: bytes | None = id
        stored = delivery._fields_json
        members: dict[str, Any] | None = None
        if self.key is not None:
            members = _decode_members(stored)
            key = _bytes_of(_field(members, self.key), self.key)
            headers.append((ID, id))
        if self.headers is not None:
            members = members or _decode_members(stored)
            headers += _headers_of(_field(members, self.headers), self.headers)
        return _Record(delivery.sequence, key, self._value(delivery, stored, members), headers)

    def _value(self, delivery: Delivery, stored: bytes, members: dict[str, Any] | None) -> bytes:
        """Return the value of a message.

        Args:
            members: of the fields ``stored``, if they were decoded already; those that are left out are removed.
        """
        if self.value == "raw":
            return delivery.raw or b""
        if callable(self.value):
            try:
                value = self.value(delivery)
            except Exception as e:
                raise BadDocument(f"value: {describe(e)}") from e
            if not isinstance(value, bytes):
                raise BadDocument(f"value= returned a {type(value).__name__}, not bytes")
            return value
        has_text = self.text is not None and delivery.raw is not None
        if members is None and not has_text and not any(name in stored for name in self._excluded_in_json):
            return stored
        kept: dict[str, Any] = _decode_members(stored) if members is None else members
        for name in self.exclude:
            kept.pop(name, None)
        if has_text and self.text is not None:
            kept.setdefault(self.text, delivery.text())
        return _encode_members(kept)


_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Decode a JSON object to its members, whose values stay JSON: takes two thirds of the time of decoding them, too."""

_encode_members: Final = msgspec.json.Encoder(order="sorted").encode


def _field(members: Mapping[str, Any], path: str) -> Any:
    """Return a field, also one within an object; None: there is none."""
    if path in members:
        return msgspec.json.decode(members[path])
    first, *inner = path.split(".")
    value: Any = msgspec.json.decode(members[first]) if first in members else None
    for name in inner:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _bytes_of(value: Any, field: str) -> bytes | None:
    """Return a JSON value as bytes: a text, a number, or ``{"base64": …}``, as ``sources.Kafka`` has them."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadDocument(f"field {field} is a {type(value).__name__}: a key or header is a text or a number")
    return str(value).encode()


def _headers_of(value: Any, field: str) -> list[tuple[str, bytes | None]]:
    headers = []
    for each in value or ():
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            raise BadDocument(f"field {field} is not a list of [name, value]")
        name = each[0]
        name.encode()
        if name not in (HASH, ID):  # those of the plan that wrote the message before
            headers.append((name, _bytes_of(each[1], field)))
    return headers


def marks_name(context: DestinationContext) -> str:
    """Return the name of the topic of marks: of a state and node, also of a newer version of the plan that continues
    from the state."""
    version = context.first_version or context.plan_version
    name = f"ferryman-marks-{context.plan}-v{version}-{context.destination}-{context.state or 'none'}"
    if len(name) > 200:
        name = name[:160] + "-" + blake2b(name.encode(), digest_size=16).hexdigest()
    return name


def _transactional_id(marks: str, lane: int) -> str:
    return f"{marks}-{lane}"


# Marks: which rows were sent.


class _Marks:
    """Marks of a state and node, as of the last ``refresh``. Each names ranges of sequences, by its first one."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self._id = ""
        self._next: dict[int, int] = {}
        """Partition -> offset up to which it was read."""
        self._of_lane: dict[int, dict[int, list[tuple[int, int]]]] = {}
        """Partition -> first sequence of a mark -> its ranges, each (first, end)."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._adopted: dict[bytes, int] = {}
        """Hash -> number of the last adoption of a message that the state does not know."""
        self._arrived: dict[bytes, int] = {}
        """Hash -> number of the adoption after which it came again, and was not sent."""

    def create(self, lanes: int, replicas: int) -> int:
        """Make the topic, or add partitions to it; return how many lanes there were ever.

        Raises:
            Misconfigured: there is a topic of this name that would lose marks.
        """
        topic = self._cluster.topic(self.name)
        if topic is None:
            self._cluster.create_topic(self.name, lanes, replicas, _MARKS_SETTINGS, as_another=True)
            topic = self._cluster.topic(self.name)
            assert topic is not None, f"{self.name} is gone"
        policy = self._cluster.settings_of(self.name).get("cleanup.policy")
        if policy != "compact":
            raise Misconfigured(
                f"topic {self.name}, in which Ferryman notes what was sent, has cleanup.policy={policy}: notes would "
                "be removed, and messages sent twice. Set it to compact, alone"
            )
        if topic.replicas < replicas:
            raise Misconfigured(
                f"topic {self.name}, in which Ferryman notes what was sent, has {topic.replicas} replicas, and the "
                f"topic it is about {replicas}: add replicas to it, or what one broker knows is lost with it"
            )
        if len(topic.partitions) < lanes:
            self._cluster.add_partitions(self.name, lanes)
        return max(lanes, len(topic.partitions))

    def refresh(self, own: int | None = None, deadline: float = 0.0) -> bool:
        """Read the marks that were committed since the last call; return whether there is a topic of them.

        Args:
            own: partition of the caller's lane, of which nobody has an open transaction: what the brokers have
                confirmed may become readable a moment later, and is waited for.
        """
        topic = self._cluster.topic(self.name)
        if topic is None:
            return False
        if topic.id != self._id:
            self._id, self._next, self._of_lane = topic.id, {}, {}
            self._adopted, self._arrived = {}, {}
        end = self._cluster.end_offsets(self.name, topic.partitions)
        while own is not None and end[own] < self._cluster.end_offsets(self.name, [own], committed=False)[own]:
            if time.monotonic() > deadline:
                raise Unavailable(f"topic {self.name}, partition {own}: a transaction that has ended stays open")
            time.sleep(0.01)
            end = self._cluster.end_offsets(self.name, topic.partitions)
        first = self._cluster.first_offsets(self.name, topic.partitions)
        for partition in topic.partitions:
            known = self._of_lane.setdefault(partition, {})
            start = max(first[partition], self._next.get(partition, 0))
            for message in self._cluster.read(self.name, partition, start, end[partition]):
                text, value = message.key(), message.value()
                if text.startswith((_ADOPTED, _ARRIVED)):
                    numbers = self._adopted if text.startswith(_ADOPTED) else self._arrived
                    numbers[text.split()[1]] = int(value)
                    continue
                key = int(text)
                known.pop(key, None)
                if value is not None:
                    known[key] = [(first, last) for first, last in msgspec.json.decode(value)["rows"]]
            self._next[partition] = end[partition]
        self._index()
        return True

    def _index(self) -> None:
        ranges = sorted(each for known in self._of_lane.values() for marks in known.values() for each in marks)
        self._starts, self._ends = [first for first, _ in ranges], [end for _, end in ranges]

    def without_sent(self, records: Sequence[_Record]) -> Sequence[_Record]:
        """Return the records, which are in the order of their sequences, that no mark names."""
        if not self._ends or records[0].sequence >= self._ends[-1]:
            return records
        ends = [0, *self._ends]  # of the last range that begins at or before a row
        return [r for r in records if r.sequence >= ends[bisect_right(self._starts, r.sequence)]]

    def adopt(self, hashes: Iterable[str], timeout_s: float) -> None:
        """Note deliveries that are in the topic and may come again, each once.

        Raises:
            Unavailable: they were not noted in time.
        """
        self.refresh()
        number = 1 + max(self._adopted.values(), default=0)
        failed: list[Any] = []
        settings = {"enable.idempotence": True, "on_delivery": lambda error, _: failed.append(error) if error else None}
        producer = self._cluster.producer(settings)
        for each in hashes:
            while len(producer) >= _UNCONFIRMED:
                producer.poll(0.05)
            producer.produce(self.name, str(number), _ADOPTED + each.encode(), 0)
        if producer.flush(timeout_s) or failed:
            raise Unavailable(f"topic {self.name}: what is to be adopted was not confirmed in time: {failed[:1]}")

    def adopted(self, records: Iterable[_Record]) -> dict[bytes, int]:
        """Return hash -> number of the adoption, of those that come for the first time since they were adopted."""
        found = {record.hash: self._adopted.get(record.hash, 0) for record in records} if self._adopted else {}
        return {hash: number for hash, number in found.items() if number > self._arrived.get(hash, 0)}

    def highest(self) -> int | None:
        """Return the highest sequence that was sent."""
        return max(self._ends) - 1 if self._ends else None

    def settled(self, lane: int, settled: int) -> list[int]:
        """Return marks of a lane that are not needed any more: those of settled rows, but for the newest."""
        known = self._of_lane.get(lane, {})
        newest = max(known, default=0)
        return [key for key, ranges in known.items() if key != newest and ranges[-1][1] <= settled][:_TOMBSTONES]

    def note(
        self, lane: int, ranges: list[tuple[int, int]], removed: Iterable[int], adopted: Mapping[bytes, int]
    ) -> None:
        """Add what this lane has just committed; ``refresh`` may read it once more."""
        self._arrived.update(adopted)
        known = self._of_lane.setdefault(lane, {})
        for key in removed:
            known.pop(key, None)
        known[ranges[0][0]] = ranges
        if removed or (self._starts and ranges[0][0] < self._starts[-1]):
            self._index()
        else:
            self._starts += [first for first, _ in ranges]
            self._ends += [end for _, end in ranges]


def _ranges(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending sequences as ranges, each (first, end)."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence:
            ranges[-1] = (ranges[-1][0], sequence + 1)
        else:
            ranges.append((sequence, sequence + 1))
    return ranges


# Senders: with transactions, and without.


class _LookAgain(Exception):
    """This lane was fenced, or does not know what became of its transaction."""


class _Sender:
    """Base of the senders: the producer of a task, and which of its messages failed."""

    def __init__(self, kafka: Kafka, context: DestinationContext) -> None:
        self._kafka = kafka
        self._context = context
        self.producer: Producer | None = None
        self._failed: list[Any] = []
        self._limit = 0

    @property
    def limit(self) -> int:
        """Largest message that the topic takes, in bytes."""
        if not self._limit:
            found = self._kafka.cluster.settings_of(self._kafka.topic).get("max.message.bytes")
            self._limit = int(found) if found else _DEFAULT_LIMIT
        return self._limit

    def _make_producer(self, settings: Mapping[str, Any]) -> Producer:
        return self._kafka.cluster.producer(
            {
                "message.max.bytes": max(1000, self.limit),
                "batch.size": min(1_000_000, self.limit),
                "enable.idempotence": True,
                "on_delivery": self._note_failed,
                "delivery.report.only.error": True,
                **settings,
            }
        )

    def _note_failed(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def produce(self, producer: Producer, records: Sequence[_Record]) -> None:
        from confluent_kafka import KafkaException

        topic, produce, half = self._kafka.topic, producer.produce, len(records) // 2
        for number, (_, key, value, headers) in enumerate(records):
            try:
                produce(topic, value, key, headers=headers)
            except (BufferError, KafkaException):
                self._produce_one(producer, topic, value, key, headers=headers)
            if number == half:
                crash.point("kafka.sending")

    def _produce_one(self, producer: Producer, *message: Any, **more: Any) -> None:
        """Hand a message to the client, once its queue has room."""
        from confluent_kafka import KafkaException

        until = 0.0
        while True:
            try:
                producer.produce(*message, **more)
                return
            except BufferError:
                until = until or time.monotonic() + self._context.send_timeout * _OF_SEND_TIMEOUT
                producer.poll(0.05)
                if time.monotonic() > until:
                    raise Unavailable(
                        f"topic {self._kafka.topic} at {self._kafka.cluster.servers} takes no messages"
                    ) from None
            except KafkaException as e:
                if e.args[0].name() not in _TOO_LARGE:
                    raise
                raise PermanentError(f"topic {self._kafka.topic} does not take a message: {e.args[0].str()}") from e

    def _check_failed(self, records: Sequence[_Record]) -> None:
        """Raise if messages failed; if they may be too large together, so that the chunk is halved."""
        if not self._failed:
            return
        error = next((e for e in self._failed if e.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT")), self._failed[0])
        if error.name() in _TOO_LARGE:
            largest = max(record.size for record in records)
            raise PermanentError(
                f"topic {self._kafka.topic} takes messages up to {self.limit} bytes (max.message.bytes), and the "
                f"largest of {len(records)} has about {largest}: {error.str()}"
            )
        if error.name() in _FENCED or error.fatal():
            raise _LookAgain(error.str())
        raise self._kafka.cluster.error_of(error, f"topic {self._kafka.topic}")

    def close(self) -> None:
        if self.producer is not None:
            with contextlib.suppress(Exception):
                self.producer.purge()
            self.producer = None  # closed with its last reference; ``Producer.close`` would abort and wait


class IdempotentSender(_Sender):
    """Sends without transactions: at least once, or once if the engine never repeats a chunk."""

    def send(self, records: Sequence[_Record], outcomes: list[Outcome]) -> None:
        if self.producer is None:
            timeout_ms = int(self._context.send_timeout * _OF_SEND_TIMEOUT * 1000)
            self.producer = self._make_producer({"acks": "all", "message.timeout.ms": timeout_ms})
        self._failed = []
        try:
            self.produce(self.producer, records)
            left = self.producer.flush(self._context.send_timeout * _OF_SEND_TIMEOUT)
            if left:
                raise Unavailable(f"topic {self._kafka.topic}: {left} messages were not confirmed in time")
            self._check_failed(records)
        except _LookAgain as e:
            self.close()
            raise Unavailable(f"topic {self._kafka.topic}: {e}") from e
        except BaseException:
            self.close()
            raise


class TransactionSender(_Sender):
    """Sends each chunk in a transaction, with its mark; one lane."""

    def __init__(self, kafka: Kafka, marks: _Marks, context: DestinationContext) -> None:
        super().__init__(kafka, context)
        self._marks = marks
        self._lane = context.lane

    def send(self, records: Sequence[_Record], outcomes: list[Outcome]) -> None:
        from confluent_kafka import KafkaException

        self.deadline = time.monotonic() + self._context.send_timeout * _OF_SEND_TIMEOUT
        why: object = ""
        for attempt in range(1, _TRIES + 1):
            began = time.monotonic()
            try:
                producer = self.producer or self.start()
                if new := self._marks.without_sent(records):
                    self._transact(producer, new)
                return
            except _LookAgain as e:
                why = e
            except KafkaException as e:
                if not self._is_lost(e):
                    self._abort()
                    raise
                why = e.args[0].str()
            except SystemError as e:  # the client raises a fatal error while it calls back, and may lose it
                if not isinstance(e.__cause__, KafkaException | None):
                    raise
                why = e.__cause__ or e
            except BaseException:
                self._abort()
                raise
            self.close()
            if (now := time.monotonic()) > self.deadline:
                break
            # Two that fence each other take turns: the pauses grow beyond the time that a transaction takes here.
            time.sleep(random.random() * min(_LONGEST_PAUSE_S, max(0.02, now - began) * 2**attempt))
        raise Unavailable(
            f"topic {self._kafka.topic}: the transaction of lane {self._lane} was lost again and again: {why}"
        )

    def start(self) -> Producer:
        """Take over the lane's transactional id, and read what was sent under it and all others: steps 2 and 3."""
        if self._kafka.cluster.topic(self._marks.name) is None:
            self._marks.create(self._context.lanes, self._kafka._existing_topic().replicas)
        timeout_s = self._kafka._transaction_timeout_s(self._context)
        producer = self.producer = self._make_producer(
            {
                "transactional.id": _transactional_id(self._marks.name, self._lane),
                "transaction.timeout.ms": int(timeout_s * 1000),
            }
        )
        producer.init_transactions(self._left_s())
        crash.point("kafka.opened")
        self._marks.refresh(self._lane, self.deadline)
        if self._context.is_open is not None and not self._context.is_open():
            raise Unavailable("this pass is over: another one delivers what is left")
        return producer

    def _transact(self, producer: Producer, records: Sequence[_Record]) -> None:
        """Send rows and their mark in a transaction: step 4."""
        self._failed = []
        adopted = self._marks.adopted(records)
        producer.begin_transaction()
        self.produce(producer, [r for r in records if r.hash not in adopted] if adopted else records)
        for hash, number in adopted.items():
            self._produce_one(producer, self._marks.name, str(number), _ARRIVED + hash, self._lane)
        ranges = _ranges([record.sequence for record in records])
        mark = msgspec.json.encode({"rows": ranges})
        self._produce_one(producer, self._marks.name, mark, str(ranges[0][0]), self._lane)
        removed = self._marks.settled(self._lane, self._context.settled)
        for key in removed:
            self._produce_one(producer, self._marks.name, None, str(key), self._lane)
        producer.flush(self._left_s())
        self._check_failed(records)
        crash.point("kafka.sent")
        self._commit(producer)
        crash.point("kafka.committed")
        self._marks.note(self._lane, ranges, removed, adopted)

    def _commit(self, producer: Producer) -> None:
        """Commit. One that times out may have taken effect, so it is committed again; it is never taken for aborted."""
        from confluent_kafka import KafkaException

        while True:
            try:
                producer.commit_transaction(self._left_s())
                return
            except KafkaException as e:
                error = e.args[0]
                if error.txn_requires_abort():  # also where the broker ends it because another worker takes over
                    self._check_failed(())
                    raise _LookAgain(error.str()) from e
                if not error.retriable() or time.monotonic() > self.deadline:
                    raise _LookAgain(error.str()) from e

    def _is_lost(self, exception: Any) -> bool:
        """Return whether the client's error means that this lane must take over its id again."""
        error = exception.args[0]
        return bool(error.name() in _FENCED or error.fatal() or error.name() == "_STATE")

    def _abort(self) -> None:
        """Abort the open transaction, so that readers need not wait for the next pass; then the producer is closed."""
        if self.producer is not None:
            with contextlib.suppress(Exception):
                self.producer.purge()
                self.producer.abort_transaction(5)
            self.close()

    def _left_s(self) -> float:
        return max(0.5, self.deadline - time.monotonic())
