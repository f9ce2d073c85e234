"""Cassandra by the client ``cassandra-driver``: connections, tables that only a driver makes, and what errors mean.

Connections have threads of their own, which a fork does not copy: each is made in the process that uses it.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

from ferryman.errors import DeliveryError, Misconfigured, Unavailable, UsageError
from ferryman.net import urls
from ferryman.net.http import expand_variables

PORT: Final = 9042

PROTOCOL: Final = 5
"""Version of the protocol that is tried first; the client goes down by itself where a server is older. It would begin
with those of another product, which takes as long again."""

CONNECT_S: Final = 10.0
"""Time that a server has to take a connection."""

REQUEST_S: Final = 15.0
"""Time that a request has: servers give one up after 2 s to 10 s by themselves."""

SCHEMA_S: Final = 30.0
"""Time that all nodes have to agree on a change of the schema."""

CONCURRENT: Final = 24
"""Requests that are under way at the same time."""

BATCH_BYTES: Final = 4096
"""Size of the writes that are sent as one request; servers warn of more than 5 KiB."""

BATCH_WRITES: Final = 10
"""Most writes in one request; servers warn of more, where they are of different keys."""

KEY_BYTES: Final = 65_535
"""Longest value of a key, in bytes."""

READ_KEYS: Final = 50
"""Keys that one request reads: their number costs less than that of the requests."""

PAGE: Final = 1000
"""Rows of an answer that are read at a time."""

_HOST: Final = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")

_GONE: Final = re.compile(r"(unconfigured|does not exist|non-existing|No keyspace)", re.IGNORECASE)

_TOO_LARGE: Final = re.compile(r"(?:exceeds allowed maximum of|larger than the maximum size of) (\d+)")

_LOGGER: Final = logging.getLogger("cassandra")
_LOGGER.addHandler(logging.NullHandler())


def missing_package() -> str:
    """Return which package is missing, with the command that installs it; "" if it is there."""
    if find_spec("cassandra") is None:
        return "Cassandra needs cassandra-driver, which is not installed: pip install 'ferryman[cassandra]'"
    return ""


def check_name(name: str, what: str) -> str:
    """Return a name of a keyspace or table in lower case, as Cassandra keeps it.

    Raises:
        UsageError: it would need quotes, or is longer than 48 characters.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{what}={name!r}: give a letter, then letters, digits and underscores, 48 characters at most."
        )
    return name.lower()


class TableDefinition(NamedTuple):
    """A table, as it is made and as it must be where it is there already.

    Attributes:
        columns: name in lower case -> type.
        partition_key, clustering: names of key columns; of clustering ones with the order.
        create: CQL after ``CREATE TABLE IF NOT EXISTS keyspace.name``.
        create_index: CQL that makes its index, with ``{table}``; "": it has none.
    """

    name: str
    columns: Mapping[str, str]
    partition_key: tuple[str, ...]
    clustering: Mapping[str, str]
    create: str
    create_index: str = ""

    def differences(self, found: Iterable[tuple[str, str, str, int, str]]) -> list[str]:
        """Return how a table that is there differs; more columns that are not keys are no difference.

        Args:
            found: name, type, kind, position and order of each column, as the server's schema has them.
        """
        there = {column[0]: column[1:] for column in found}
        differences = []
        for name, wanted in self.columns.items():
            if name not in there:
                differences.append(f"it has no column {name} {wanted}")
            elif there[name][0] != wanted:
                differences.append(f"its column {name} is {there[name][0]}, not {wanted}")
        keys = {name: (kind, position) for name, (_, kind, position, _) in there.items() if kind != "regular"}
        expected = {name: ("partition_key", i) for i, name in enumerate(self.partition_key)}
        expected |= {name: ("clustering", i) for i, name in enumerate(self.clustering)}
        if keys != expected:
            differences.append(f"its primary key is {_key_text(keys)}, not {_key_text(expected)}")
        else:
            orders = {name: there[name][3].upper() for name in self.clustering}
            differences += [
                f"it is ordered by {name} {orders[name]}, not {wanted}"
                for name, wanted in self.clustering.items()
                if orders[name] != wanted
            ]
        return differences


def _key_text(keys: Mapping[str, tuple[str, int]]) -> str:
    names = sorted(keys, key=lambda name: (keys[name][0] != "partition_key", keys[name][1]))
    first = [name for name in names if keys[name][0] == "partition_key"]
    return f"(({', '.join(first)}){''.join(f', {name}' for name in names[len(first) :])})"


class CassandraServers:
    """Servers of a Cassandra cluster, and how to log in; nothing is connected until ``connect`` is called.

    Args:
        hosts: ``host`` or ``host:port``, one or several, in a list or separated by commas.
        user, password: for servers that ask for them; ``${NAME}`` is filled in from the environment.
        tls: encrypt connections; a path: of the certificates that sign the servers'.
        datacenter: the one whose nodes are asked; None: that of the hosts.
        consistency: of reads and writes: "LOCAL_QUORUM", "QUORUM", "ONE", …

    Raises:
        UsageError: an argument that cannot be meant.
    """

    def __init__(
        self,
        hosts: str | Iterable[str],
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool | str = False,
        datacenter: str | None = None,
        consistency: str = "LOCAL_QUORUM",
    ) -> None:
        self.hosts = tuple(_check_hosts(hosts))
        if (user is None) != (password is None):
            raise UsageError("user= and password=: give both, or none.")
        self.user, self.password, self.tls, self.datacenter = user, password, tls, datacenter
        self.consistency = consistency.upper()
        if not re.fullmatch("ANY|ONE|TWO|THREE|QUORUM|ALL|LOCAL_QUORUM|EACH_QUORUM|LOCAL_ONE", self.consistency):
            raise UsageError(f"consistency={consistency!r}: give LOCAL_QUORUM, QUORUM, ONE or another of Cassandra's.")

    @classmethod
    def from_url(cls, url: str) -> tuple[Self, str]:
        """Return the servers of ``cassandra://[user:password@]host[:port][,host…][/keyspace]``, and the keyspace.

        Raises:
            UsageError: it is not such a URL.
        """
        try:
            urls.check_login(url)
        except ValueError as e:
            raise UsageError(f"cassandra://…: {e}.") from None
        scheme, _, rest = url.partition("://")
        authority, _, path = rest.partition("/")
        login, _, hosts = authority.rpartition("@")
        user, _, password = login.partition(":")
        if scheme != "cassandra" or not hosts or "?" in url:
            raise UsageError("give a URL as in cassandra://host:9042, or cassandra://user:${PASSWORD}@host1,host2.")
        return cls(hosts, user=unquote(user) or None, password=unquote(password) if login else None), path.strip("/")

    @property
    def shown(self) -> str:
        """Return the hosts for a message."""
        named = [(f"[{host}]" if ":" in host else host, port) for host, port in self.hosts]
        return ",".join(host if port == PORT else f"{host}:{port}" for host, port in named)

    def connect(self) -> Connection:
        """Connect to the cluster.

        Raises:
            Unavailable: no server answers.
            Misconfigured: the client is missing, or the servers refuse user and password.
        """
        if why := missing_package():
            raise Misconfigured(why)
        from cassandra import ConsistencyLevel
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

        login = None
        if self.user is not None:
            login = PlainTextAuthProvider(
                expand_variables(self.user, self.shown), expand_variables(self.password or "", self.shown)
            )
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=self.datacenter or "")),
            consistency_level=ConsistencyLevel.name_to_value[self.consistency],
            request_timeout=REQUEST_S,
        )
        cluster = Cluster(
            contact_points=list(self.hosts),
            auth_provider=login,
            ssl_context=self._ssl_context(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=CONNECT_S,
            control_connection_timeout=CONNECT_S,
            max_schema_agreement_wait=SCHEMA_S,
            schema_event_refresh_window=-1,
            topology_event_refresh_window=10,
        )
        cluster.protocol_version = PROTOCOL
        try:
            with self.translated_errors():
                return Connection(self, cluster, cluster.connect())
        except BaseException:
            cluster.shutdown()
            raise

    def _ssl_context(self) -> Any:
        if not self.tls:
            return None
        import ssl

        return ssl.create_default_context(cafile=self.tls if isinstance(self.tls, str) else None)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """Connect for a block."""
        opened = self.connect()
        try:
            yield opened
        finally:
            opened.close()

    @contextlib.contextmanager
    def translated_errors(self, *, sent: bool = False) -> Iterator[None]:
        """Translate the client's errors; those of a single write stay as they are.

        Args:
            sent: a write may have taken effect.
        """
        try:
            yield
        except (DeliveryError, UsageError, ConnectionError):
            raise
        except Exception as e:
            raise translate(e, self.shown, sent=sent) from e


def _check_hosts(hosts: str | Iterable[str]) -> Iterator[tuple[str, int]]:
    each = [part.strip() for part in hosts.split(",")] if isinstance(hosts, str) else list(hosts)
    found = [_HOST.fullmatch(part) if isinstance(part, str) else None for part in each]
    if not found or not all(found):
        raise UsageError(
            f"hosts={urls.without_logins(hosts)}: give host or host:port, or several of them, as in "
            "['db-1', 'db-2:9043']."
        )
    for match in found:
        assert match is not None
        yield match["host"].strip("[]"), int(match["port"] or PORT)


def translate(error: Exception, shown: str, *, sent: bool) -> Exception:
    """Return what a client's error means: the cluster is away, an operator has to act, or one write is refused."""
    import cassandra
    from cassandra import connection, protocol
    from cassandra.cluster import NoHostAvailable

    why = f"Cassandra at {shown}: {' '.join(str(error).split())[:500]}"
    causes = list(error.errors.values()) if isinstance(error, NoHostAvailable) else [error]
    refused = (cassandra.AuthenticationFailed, cassandra.Unauthorized, cassandra.UnsupportedOperation)
    if causes and any(isinstance(each, refused) for each in causes):
        return Misconfigured(f"{why}. Correct user= and password=, or give them the rights.")
    if isinstance(error, cassandra.InvalidRequest) and _GONE.search(str(error)):
        return Misconfigured(f"{why}. The next run makes it again.")
    nothing_done = (cassandra.Unavailable, protocol.OverloadedErrorMessage, protocol.IsBootstrappingErrorMessage)
    if isinstance(error, nothing_done):
        return Unavailable(why)
    lost = (
        *(NoHostAvailable, cassandra.OperationTimedOut, cassandra.Timeout, connection.ConnectionException, OSError),
        *(cassandra.CoordinationFailure, protocol.ServerError, protocol.TruncateError),
    )
    if isinstance(error, lost):
        return ConnectionError(why) if sent else Unavailable(why)
    return error


def _reason(error: Exception) -> str:
    """Return why a single write was refused."""
    why = str(getattr(error, "message", "") or error)
    if too_large := _TOO_LARGE.search(why):
        return f"with it a request is larger than the {too_large[1]} bytes that the server takes"
    return " ".join(why.split())[:500]


class Write(NamedTuple):
    """A prepared statement with its values. ``row`` is the caller's, for the errors of single writes."""

    statement: Any
    values: Sequence[Any]
    size: int
    """Bytes of the values, as far as is known."""
    row: int = 0


class Connection:
    """An open connection to a cluster."""

    def __init__(self, servers: CassandraServers, cluster: Any, session: Any) -> None:
        self._servers, self._cluster, self._session = servers, cluster, session
        self._prepared: dict[str, Any] = {}

    def close(self) -> None:
        """Close it; what is under way may be lost."""
        self._cluster.shutdown()

    # --- the schema ---------------------------------------------------------------------------------------------------

    def columns_of(self, keyspace: str, table: str) -> list[tuple[str, str, str, int, str]]:
        """Return name, type, kind, position and order of a table's columns; []: there is no such table."""
        query = (
            "SELECT column_name, type, kind, position, clustering_order FROM system_schema.columns "
            "WHERE keyspace_name = ? AND table_name = ?"
        )
        return [tuple(row) for row in self.rows(query, (keyspace, table))]

    def table_id(self, keyspace: str, table: str) -> str:
        """Return the id that a table has until it is dropped; "": there is no such table."""
        query = "SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?"
        return next((str(row[0]) for row in self.rows(query, (keyspace, table))), "")

    def check_table(self, keyspace: str, table: TableDefinition) -> bool:
        """Return whether a table is there.

        Raises:
            Misconfigured: it is there, and is another one than is needed. It is not touched.
        """
        found = self.columns_of(keyspace, table.name)
        if found and (differences := table.differences(found)):
            raise Misconfigured(
                f"Cassandra at {self._servers.shown}: the table {keyspace}.{table.name} is there already and is "
                f"another one: {'; '.join(differences)}. Nothing was changed. Give another keyspace, or drop the table "
                "if nobody needs it."
            )
        return bool(found)

    def make_tables(self, keyspace: str, tables: Sequence[TableDefinition], replication: int | None = None) -> None:
        """Make a keyspace and tables where they are missing, once all nodes agree on the schema before and after.

        Args:
            replication: copies of each row, in each data center; None: 3, or one for each node if there are fewer.

        Raises:
            Misconfigured: a table is there and is another one; nothing was changed.
            Unavailable: the nodes do not agree in time.
        """
        missing = [table for table in tables if not self.check_table(keyspace, table)]
        unindexed = [table for table in tables if table.create_index and not self._has_index(keyspace, table.name)]
        if not missing and not unindexed:
            return
        self._agree()
        if not self.rows("SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?", (keyspace,)):
            copies = replication or min(3, len(self._cluster.metadata.all_hosts()))
            options = f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {copies}}}"
            self.define(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {options}")
        for table in missing:
            self.define(f"CREATE TABLE IF NOT EXISTS {keyspace}.{table.name} {table.create}")
        for table in unindexed:
            self.define(table.create_index.format(table=f"{keyspace}.{table.name}"))

    def _has_index(self, keyspace: str, table: str) -> bool:
        query = "SELECT index_name FROM system_schema.indexes WHERE keyspace_name = ? AND table_name = ?"
        return bool(self.rows(query, (keyspace, table)))

    def define(self, statement: str) -> None:
        """Change the schema, and wait until all nodes have it.

        Raises:
            Unavailable: they do not agree in time.
        """
        with self._servers.translated_errors(sent=True):
            pending = self._session.execute_async(statement, timeout=SCHEMA_S)
            pending.result()
            if not pending.is_schema_agreed:
                raise Unavailable(self._disagreement())

    def _agree(self) -> None:
        with self._servers.translated_errors():
            if not self._cluster.control_connection.wait_for_schema_agreement(wait_time=SCHEMA_S):
                raise Unavailable(self._disagreement())

    def _disagreement(self) -> str:
        return (
            f"Cassandra at {self._servers.shown}: its nodes do not agree on the schema after {SCHEMA_S:g} s. Writes "
            "to a table that some nodes do not know, or know twice, get lost. `nodetool describecluster` shows them."
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    def prepare(self, query: str) -> Any:
        """Return a prepared statement, which is kept; it may be repeated without harm."""
        if query not in self._prepared:
            with self._servers.translated_errors():
                statement = self._session.prepare(query)
            statement.is_idempotent = True
            self._prepared[query] = statement
        return self._prepared[query]

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        return list(self.iter_rows(query, values))

    def iter_rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query; a page of them is in memory at a time."""
        statement = self.prepare(query).bind(values)
        statement.fetch_size = PAGE
        with self._servers.translated_errors():
            yield from self._session.execute(statement)

    def rows_of_keys(self, query: str, keys: Iterable[str]) -> Iterator[Any]:
        """Yield the rows of a query that ends in ``IN ?`` for these keys, in any order. A request has several keys."""
        from cassandra.concurrent import execute_concurrent_with_args

        statement, remaining = self.prepare(query), iter(keys)
        groups = list(iter(lambda: list(islice(remaining, READ_KEYS)), []))
        with self._servers.translated_errors():
            found = execute_concurrent_with_args(
                self._session, statement, [(group,) for group in groups], CONCURRENT, raise_on_first_error=True
            )
            for _, result in found:
                yield from result

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, writes: Iterable[Write]) -> dict[int, str]:
        """Write rows, several of one server's in a request; return the row of each write that was refused alone -> why.

        Raises:
            ConnectionError: some may have taken effect.
            Unavailable, Misconfigured: the cluster refuses all.
        """
        refused: dict[int, str] = {}
        requests = [[*group] for group in self._group(writes)]
        while requests:
            failed = self._send(requests)
            requests = []
            for request, error in failed:
                meaning = translate(error, self._servers.shown, sent=True)
                if meaning is not error:
                    raise meaning from error
                if len(request) == 1:
                    refused[request[0].row] = _reason(error)
                else:
                    requests += [[each] for each in request]
        return refused

    def _send(self, requests: Sequence[Sequence[Write]]) -> list[tuple[Sequence[Write], Exception]]:
        """Send requests; return those that failed."""
        from cassandra.concurrent import execute_concurrent

        done = execute_concurrent(
            self._session, ((self._bind(each), None) for each in requests), CONCURRENT, raise_on_first_error=False
        )
        return [(request, error) for request, (ok, error) in zip(requests, done, strict=True) if not ok]

    def _bind(self, request: Sequence[Write]) -> Any:
        from cassandra.query import BatchStatement, BatchType

        if len(request) == 1:
            return request[0].statement.bind(request[0].values)
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.is_idempotent = True
        for each in request:
            batch.add(each.statement, each.values)
        return batch

    def _group(self, writes: Iterable[Write]) -> Iterator[list[Write]]:
        """Group writes into requests of at most ``BATCH_BYTES``, each of rows that one server holds."""
        owner = self._owner()
        open_groups: dict[Any, tuple[list[Write], int]] = {}
        for each in writes:
            key = owner(each)
            group, size = open_groups.get(key, ([], 0))
            if group and (size + each.size > BATCH_BYTES or len(group) >= BATCH_WRITES):
                yield group
                group, size = [], 0
            group.append(each)
            open_groups[key] = group, size + each.size
        yield from (group for group, _ in open_groups.values() if group)

    def _owner(self) -> Callable[[Write], Any]:
        """Return a function that tells which server a write belongs to."""
        metadata = self._cluster.metadata
        if len(metadata.all_hosts()) <= 1:
            return lambda _: None

        def owner(write: Write) -> Any:
            bound = write.statement.bind(write.values)
            replicas = metadata.get_replicas(bound.keyspace, bound.routing_key) if bound.routing_key else ()
            return replicas[0] if replicas else None

        return owner
