"""A destination in Cassandra: a table with one row per document, whose writes have the sequence as their time.

A row goes in these steps:

1. write it with a time made of its sequence, so that of two writes the one with the higher sequence wins, whichever
   comes last
2. read what is there now, and with which times: a delivery that lost to a newer one is stale
3. what lost to somebody else's write, such as an operator's ``DELETE``, has an earlier time than that: write it again
   with the current time, if the pass is still open
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from ferryman import crash
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Hit,
    LastDelivery,
    Outcome,
    Stored,
    printable_id,
    slices,
    writer_name,
)
from ferryman.destinations.vectors import (
    TOMBSTONE_S,
    VectorRow,
    newest_rows,
    outcome_of,
    read_rows,
    route_text,
    stored_hash,
)
from ferryman.errors import Misconfigured, PlanError, UsageError
from ferryman.net.cassandra import (
    KEY_BYTES,
    CassandraServers,
    Connection,
    TableDefinition,
    Write,
    check_name,
    missing_package,
)

SUFFIX: Final = "_ferryman"
"""Suffix of the table beside the one with the documents: it remembers deletes, and what each writer has sent."""

TIME_OFFSET: Final = 1 << 48
"""Microseconds by which the time of a write is less than its sequence. Sequences are ahead of the microseconds since
1970, by 2.8 years in 2026 and 6.7 years in 2106; times of writes must not be, or an operator's own writes and deletes,
which have the current time, would lose against them without a word."""

_COLUMNS: Final = {
    "id": "text",
    "parent_id": "text",
    "origin_id": "text",
    "source": "text",
    "version": "text",
    "sequence": "bigint",
    "delivery_hash": "text",
    "route": "text",
    "text": "text",
    "fields": "text",
    "content_hash": "text",
}

_OTHERS: Final = tuple(name for name in _COLUMNS if name not in ("id", "sequence"))

_WRITERS: Final = "writers"
_DELETE: Final = "delete "

_READ_IDS: Final = 1000
"""Ids that are looked up at a time."""


class _InForce(NamedTuple):
    """A document as the table has it now.

    Attributes:
        last: what is in force; None: nothing that Ferryman wrote.
        time: latest time of a write to it, µs; 0: there is no row.
        is_row: whether there is a row.
        is_foreign: whether somebody else has written to the row after Ferryman.
    """

    last: LastDelivery | None
    time: int = 0
    is_row: bool = False
    is_foreign: bool = False


class Cassandra(Destination):
    """Writes documents into a table of Cassandra (docs/how-to/mirror-the-ledger-into-cassandra.md): one row per id.

    ``Cassandra(["db-1", "db-2:9043"], "search", "pages", user="loader", password="${CASSANDRA_PASSWORD}")``
    (``pip install 'ferryman[cassandra]'``). Keyspace and table are made if they are not there, by the driver alone. The
    columns are ``id`` (the primary key), ``parent_id``, ``origin_id``, ``source``, ``version``, ``sequence``,
    ``delivery_hash``, ``route`` (JSON), ``text`` (the raw bytes decoded), ``fields`` (JSON) and ``content_hash``. Each
    write names all of them: Cassandra decides for each column by itself which write is the last.

    **Exactly-once.** A row and its delivery's hash are one write, with a time made of the sequence
    (``USING TIMESTAMP``): a repeated chunk changes nothing, and a late one loses. What is in force is read back. A
    plain ``INSERT``, ``UPDATE`` or ``DELETE`` of yours takes effect, until the document's next version is delivered.

    A delete removes the row. For an hour, the table ``<table>_ferryman`` remembers it, and says that an older upsert is
    stale.

    ``Cassandra(hosts)`` alone, without a keyspace, is where ``Plan.mirror`` writes the ledger to.

    Args:
        hosts: ``host`` or ``host:port``, one or several.
        keyspace, table: their names, without quotes.
        user, password: for servers that ask for them; ``${NAME}`` is filled in from the environment.
        tls: encrypt connections; a path: of the certificates that sign the servers'.
        datacenter: the one whose nodes are asked; None: that of the hosts.
        consistency: of reads and writes.
        replication: copies of each row, of a keyspace that is made; None: 3, or one for each node if there are fewer.

    Raises:
        PlanError: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True

    preferred_batch: ClassVar[int | None] = 500
    """A tenth of a second, with what is read back."""

    facts: ClassVar[Facts] = Facts(
        stored="a row an id, with hash and sequence; a delete removes it, and is remembered for an hour",
        limits=(
            f"an id has {KEY_BYTES} bytes at most",
            "a row fits into half a segment of the server's commit log (16 MiB by default)",
            "with one copy of a row, a killed server has all that it confirmed only with `commitlog_sync: batch`",
        ),
        outcomes=(
            ("a write that the server refuses by itself", "permanent"),
            ("another table of this name", "permanent, about all: nothing was changed"),
            ("wrong user or password, no rights", "permanent, about all"),
            ("nodes that do not agree on the schema", "transient, about all"),
            ("too few replicas, overloaded", "transient, about all"),
            ("no whole answer", "unknown: the chunk is sent again"),
        ),
        tested=("Cassandra 5.0",),
    )

    def __init__(
        self,
        hosts: str | Iterable[str],
        keyspace: str | None = None,
        table: str = "documents",
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool | str = False,
        datacenter: str | None = None,
        consistency: str = "LOCAL_QUORUM",
        replication: int | None = None,
    ) -> None:
        if replication is not None and (not isinstance(replication, int) or replication < 1):
            raise PlanError([f"Cassandra: replication={replication!r}: give a number from 1."])
        try:
            self.servers = CassandraServers(
                hosts, user=user, password=password, tls=tls, datacenter=datacenter, consistency=consistency
            )
            self.keyspace = None if keyspace is None else check_name(keyspace, "keyspace")
            self.table = check_name(table, "table")
            check_name(self.table + SUFFIX, "table")
        except UsageError as e:
            raise PlanError([f"Cassandra: {e}"]) from None
        self.replication = replication
        self._connection: Connection | None = None
        self._context: DestinationContext | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Make one of ``cassandra://[user:password@]host[:port][,host…][/keyspace[.table]]``.

        Raises:
            UsageError, PlanError: it is not such a URL.
        """
        servers, place = CassandraServers.from_url(url)
        keyspace, _, table = place.partition(".")
        hosts = servers.shown.split(",")
        names = (keyspace, table or "documents") if keyspace else ()
        return cls(hosts, *names, user=servers.user, password=servers.password)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None, "_context": None}

    def __repr__(self) -> str:
        return f"Cassandra({self.target()!r})"

    def not_installed(self) -> str:
        return missing_package()

    def target(self) -> str:
        place = "" if self.keyspace is None else f"/{self.keyspace}.{self.table}"
        return f"cassandra://{self.servers.shown}{place}"

    # --- the tables ---------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        if self.keyspace is None:
            raise Misconfigured(f"{self.target()}: give a keyspace, as in Cassandra(hosts, 'search', 'pages').")
        return f"{self.keyspace}.{self.table}"

    def _tables(self) -> list[TableDefinition]:
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        beside = {"bucket": "text", "name": "text", "sequence": "bigint", "delivery_hash": "text"}
        beside_columns = ", ".join(f"{name} {kind}" for name, kind in beside.items())
        return [
            TableDefinition(self.table, _COLUMNS, ("id",), {}, f"({columns}, PRIMARY KEY (id))"),
            TableDefinition(
                self.table + SUFFIX,
                beside,
                ("bucket",),
                {"name": "ASC"},
                f"({beside_columns}, PRIMARY KEY ((bucket), name))",
            ),
        ]

    def check(self) -> None:
        """Make keyspace and tables, or check that they are fit.

        Raises:
            Unavailable: no connection, or the nodes do not agree on the schema.
            Misconfigured: refused credentials, another table of this name.
        """
        keyspace = self._place.partition(".")[0]
        with self.servers.connection() as connection:
            connection.make_tables(keyspace, self._tables(), self.replication)
        crash.point("target.made")

    def identity(self) -> str | None:
        """Return the table's id, which Cassandra gives it until it is dropped."""
        keyspace = self._place.partition(".")[0]
        with self.servers.connection() as connection:
            return connection.table_id(keyspace, self.table)

    def highest_sequence(self) -> int | None:
        query = f"SELECT sequence FROM {self._place}{SUFFIX} WHERE bucket = ?"
        with self.servers.connection() as connection:
            return max((row[0] for row in connection.rows(query, (_WRITERS,))), default=None)

    def highest_of(self, context: DestinationContext) -> int | None:
        query = f"SELECT sequence FROM {self._place}{SUFFIX} WHERE bucket = ? AND name = ?"
        with self.servers.connection() as connection:
            if not connection.columns_of(self._place.partition(".")[0], self.table + SUFFIX):
                return None
            return next((row[0] for row in connection.rows(query, (_WRITERS, writer_name(context)))), None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def open(self, context: DestinationContext) -> None:
        self._connection, self._context = self.servers.connect(), context

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """The numbers are those of the module's docstring.

        Raises:
            ConnectionError: some may have taken effect.
            Unavailable, Misconfigured: the servers refuse all.
        """
        if self._connection is None or self._context is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: list[Outcome | None] = [None] * len(chunk)
        rows = [row for row in read_rows(chunk, {}, outcomes) if self._has_fitting_id(row, outcomes)]
        last = newest_rows(rows)
        if last:
            self._write_highest(max(row.delivery.sequence for row in last))
            self._write_rows(last, outcomes)  # 1
            crash.point("target.written")
        written = [row for row in last if outcomes[row.position] is None]
        found = self._look_up(written)  # 2
        hidden = [row for row in written if _is_hidden(row.delivery, found[row.delivery.id])]
        if hidden and (self._context.is_open is None or self._context.is_open()):
            times = {row.delivery.id: max(time.time_ns() // 1000, found[row.delivery.id].time + 1) for row in hidden}
            self._write_rows(hidden, outcomes, times)  # 3
            found |= self._look_up([row for row in hidden if outcomes[row.position] is None])
        refused = {row.delivery.id for row in last if outcomes[row.position] is not None}
        for row in rows:
            if outcomes[row.position] is None:
                outcomes[row.position] = self._outcome(row.delivery, found.get(row.delivery.id), refused)
        return [outcome or Outcome.ok() for outcome in outcomes]

    def _has_fitting_id(self, row: VectorRow, outcomes: list[Outcome | None]) -> bool:
        size = len(_DELETE) + len(row.delivery.id.encode())
        if size > KEY_BYTES:
            why = f"{printable_id(row.delivery)[:100]}…: the id has {size} bytes; Cassandra takes {KEY_BYTES}"
            outcomes[row.position] = Outcome.permanent(f"{why}. Give it a shorter one in the source.")
        return size <= KEY_BYTES

    def _outcome(self, delivery: Delivery, found: _InForce | None, refused: Collection[str]) -> Outcome:
        """Return what became of a delivery."""
        if found is None:  # a later one of the same chunk was refused: this one was not written
            assert delivery.id in refused
            return Outcome.transient(f"{self.target()}: a later version of it was refused")
        if outcome := outcome_of(delivery, found.last):
            if not _is_hidden(delivery, found):
                return outcome
        elif delivery.operation == "delete" and not found.is_row:
            return Outcome.ok()
        return Outcome.transient(f"{self.target()}: another program writes the same row with later times")

    def _write_highest(self, sequence: int) -> None:
        """Record the highest sequence of this state and node, with a time made of it, so that a lower one loses."""
        assert self._connection is not None
        assert self._context is not None
        statement = self._connection.prepare(
            f"INSERT INTO {self._place}{SUFFIX} (bucket, name, sequence, delivery_hash) VALUES (?, ?, ?, null) "
            "USING TIMESTAMP ?"
        )
        values = (_WRITERS, writer_name(self._context), sequence, write_time(sequence))
        if refused := self._connection.write([Write(statement, values, 100)]):
            raise Misconfigured(f"{self.target()}: {refused[0]}")

    def _write_rows(
        self, rows: Sequence[VectorRow], outcomes: list[Outcome | None], times: dict[str, int] | None = None
    ) -> None:
        """Write rows, and set the outcome of those that the server refuses.

        Args:
            times: id -> time of the write, µs; None: that of the sequence.
        """
        assert self._connection is not None
        names = ", ".join(_COLUMNS)
        insert = self._connection.prepare(
            f"INSERT INTO {self._place} ({names}) VALUES ({', '.join('?' * len(_COLUMNS))}) USING TIMESTAMP ?"
        )
        remember = self._connection.prepare(
            f"INSERT INTO {self._place}{SUFFIX} (bucket, name, sequence, delivery_hash) VALUES (?, '', ?, ?) "
            f"USING TIMESTAMP ? AND TTL {TOMBSTONE_S}"
        )
        remove = self._connection.prepare(f"DELETE FROM {self._place} USING TIMESTAMP ? WHERE id = ?")
        first, deletes = [], []
        for row in rows:
            d = row.delivery
            at = write_time(d.sequence) if times is None else times[d.id]
            if d.operation == "delete":
                bucket = _DELETE + d.id
                values: tuple[Any, ...] = (bucket, d.sequence, d.hash, write_time(d.sequence))
                first.append(Write(remember, values, len(bucket) + 100, row.position))
                deletes.append(Write(remove, (at, d.id), len(d.id) + 50, row.position))
            else:
                values = _values(row)
                size = sum(len(value) for value in values if isinstance(value, str)) + 200
                first.append(Write(insert, (*values, at), size, row.position))
        for some in (first, deletes):  # a delete is remembered before the row goes
            for position, why in self._connection.write(some).items():
                outcomes[position] = Outcome.permanent(f"{self.target()} refuses it: {why}")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _look_up(self, rows: Sequence[VectorRow]) -> dict[str, _InForce]:
        """Return id -> what is in force of it."""
        assert self._connection is not None
        ids = [row.delivery.id for row in rows]
        times = ", ".join(f"writetime({name})" for name in ("sequence", *_OTHERS))
        query = f"SELECT id, sequence, delivery_hash, {times} FROM {self._place} WHERE id IN ?"
        found = {id: _InForce(None) for id in ids}
        written = {row.delivery.id: row for row in rows}
        for id, sequence, digest, own, *others in self._connection.rows_of_keys(query, ids):
            latest = max(at for at in (own, *others, 0) if at is not None)
            last = None if sequence is None or digest is None else LastDelivery(sequence, digest)
            is_foreign = own is None or latest > own or _lacks_a_value(written[id], last, others)
            found[id] = _InForce(last, latest, True, is_foreign)
        absent = [id for id in ids if not found[id].is_row]
        remembered = f"SELECT bucket, sequence, delivery_hash FROM {self._place}{SUFFIX} WHERE bucket IN ?"
        for bucket, sequence, digest in self._connection.rows_of_keys(remembered, (_DELETE + id for id in absent)):
            found[bucket.removeprefix(_DELETE)] = _InForce(LastDelivery(sequence, digest))
        return found

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        keyspace, query = self._place.partition(".")[0], f"SELECT {', '.join(_COLUMNS)} FROM {self._place}"
        with self.servers.connection() as connection:
            if not connection.columns_of(keyspace, self.table):
                return
            if ids is None:
                found: Iterable[Any] = connection.iter_rows(query)
                yield from map(_read_row, found)
                return
            fitting = [id for id in ids if _is_key(id)]
            for some in slices(fitting, _READ_IDS):
                yield from map(_read_row, connection.rows_of_keys(f"{query} WHERE id IN ?", some))

    def lookup(self, id: str) -> Hit | None:
        query = f"SELECT text, fields FROM {self._place} WHERE id = ?"
        with self.servers.connection() as connection:
            for text, fields in connection.rows(query, (id,)) if _is_key(id) else ():
                decoded = msgspec.json.decode(fields or "{}")
                return Hit(id, decoded.get("title"), "", 0.0, fields=decoded, text=text)
        return None


def write_time(sequence: int) -> int:
    """Return the time of a write, µs: grows with the sequence, and lies years in the past."""
    return sequence - TIME_OFFSET


def _is_hidden(delivery: Delivery, found: _InForce) -> bool:
    """Return whether somebody else's write is in force in place of this delivery, which is not stale."""
    if found.last is not None and found.last.sequence > delivery.sequence and not found.is_foreign:
        return False
    if delivery.operation == "delete":
        return found.is_row
    is_ours = found.last is not None and (found.last.sequence, found.last.hash) == (delivery.sequence, delivery.hash)
    return not is_ours or not found.is_row or found.is_foreign


def _lacks_a_value(row: VectorRow, last: LastDelivery | None, times: Sequence[int | None]) -> bool:
    """Return whether a column of this delivery's row is null that was not written so: somebody has emptied it, and the
    time of that cannot be read.

    Args:
        times: of the columns ``_OTHERS``; None: the column is null.
    """
    if row.delivery.operation == "delete" or last != (row.delivery.sequence, row.delivery.hash):
        return False
    values = dict(zip(_COLUMNS, _values(row), strict=True))
    return any(at is None and values[name] is not None for name, at in zip(_OTHERS, times, strict=True))


def _is_key(id: str) -> bool:
    try:
        return 0 < len(id.encode()) <= KEY_BYTES
    except UnicodeEncodeError:
        return False


def _values(row: VectorRow) -> tuple[Any, ...]:
    """Return the values of a row, in the order of ``_COLUMNS``."""
    d = row.delivery
    names = (d.id, d.parent_id, d.origin_id, d.source, d.version, d.sequence, d.hash, route_text(d.route))
    return (*names, row.text, row.fields.decode(), row.content_hash())


def _read_row(row: Any) -> Stored:
    """Return what a row of the table holds."""
    id, parent, origin, source, version, sequence, digest, route, text, fields, hashed = row
    try:
        parts = (id, digest, sequence, parent, origin, source, version, route)
        intact = stored_hash(parts, text, (fields or "").encode(), {}) == hashed
        names = tuple(map(str, msgspec.json.decode(route or "[]")))
    except (TypeError, ValueError):  # somebody has made something else of it
        intact, names = False, ()
    return Stored(id, digest or "", intact, source or "", version or "", names)
