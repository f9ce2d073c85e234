"""Index of a folder of files: which id has which file, with the sequence and hash of its last delivery.

In a folder of this machine it is an SQLite database. Elsewhere SQLite's locks do not hold, so the index there is a row
of small files in ``.ferryman/index/``, each with the rows that one chunk has changed, which nobody changes afterwards.
Reading them in any order gives the same index: of two rows of an id the one with the higher sequence counts. A process
reads them once into a database of its own, and later only those that are new.

A chunk is written in four steps:

1. New names are reserved by a file of the index, before there are files of these names.
2. The documents' files are written, under other names, and renamed.
3. A second file of the index says what is there now.
4. The process' own database has both.

After a kill between any two of them the same chunk comes again, and finds its names reserved. A writer that finds a
file which its index does not know reads the index again: another writer has reserved that name before.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import sqlalchemy as sa

from ferryman import crash
from ferryman.destinations.base import Delivery, slices
from ferryman.destinations.sql import sqlite
from ferryman.destinations.sql.layout import CONTENT_HASH, WRITERS
from ferryman.destinations.sql.sqlite import SQLite
from ferryman.errors import Misconfigured, StateDamaged, Unavailable
from ferryman.storage import files
from ferryman.storage.folders import OWN, TargetFolder

DOCUMENTS: Final = sa.Table(
    "documents",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("path_key", sa.Text, unique=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("delivery_hash", sa.Text, nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column(CONTENT_HASH, sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("version", sa.Text),
    sa.Column("route", sa.Text),
    sqlite_with_rowid=False,
)
"""Index of the directory: the last delivery of each id, deletes too. Operation "new": the name is only reserved.
Without ``path_key`` the path depends on the content, and many ids may share it. Source, version and route, as text with
slashes, tell the files of one plan from those of another."""

_LATER_COLUMNS: Final = (CONTENT_HASH, "source", "version", "route")
"""Columns that an index which an older Ferryman made does not have."""

WRITERS_OF_FOLDER: Final = sa.Table(
    WRITERS,
    sa.MetaData(),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("writer", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
)
"""Highest sequence that each state and node has written to the directory."""

SLICE: Final = 500
"""Values in one ``IN (…)``: below what every SQLite takes."""

_IDENTITY: Final = f"{OWN}/.ferryman-id"
_PARTS: Final = f"{OWN}/index"
MOST_PARTS: Final = 64
"""Files of an index from which ``merge`` makes one of them."""
MERGED_ROWS: Final = 50_000
"""Rows in one file of a merged index: some 10 MB."""


class FileIndex(Protocol):
    """Port for the index of a folder."""

    def prepare(self) -> None:
        """Make it, if it does not exist."""

    def identity(self) -> str:
        """Return its identity, "" if there is no index."""

    def reader(self) -> AbstractContextManager[sa.Connection | None]:
        """Yield a connection that reads it as it is now; None if there is no index."""

    def open(self) -> None:
        """Prepare for writing, by the only writer."""

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Yield a connection that writes it."""

    def refresh(self) -> None:
        """Read what other writers have added, within ``writing`` and outside of a transaction."""

    def transaction(self, connection: sa.Connection, changed: set[str]) -> AbstractContextManager[None]:
        """Make changes inside durable at its end, if there are any.

        Args:
            changed: the ids that were changed, which the block fills in.
        """

    def merge(self) -> str:
        """Make the index quicker to read; return what was done, or ""."""

    def close(self) -> None:
        """End connections."""


class LocalIndex:
    """Index in a folder of this machine, see ``FileIndex``."""

    def __init__(self, folder: TargetFolder) -> None:
        self._folder = folder
        self._path = Path(folder.local, OWN, "index.db")
        self._engine: sa.Engine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}

    def prepare(self) -> None:
        identify(self._folder)
        engine = sqlite.make_engine(self._url())
        sqlite.prepare(engine)
        with engine.connect() as connection, connection.begin():
            DOCUMENTS.create(connection, checkfirst=True)
            WRITERS_OF_FOLDER.create(connection, checkfirst=True)
            there = index_columns(connection)
            for name in _LATER_COLUMNS:
                if name not in there:
                    connection.exec_driver_sql(f"ALTER TABLE documents ADD COLUMN {name} TEXT")

    def identity(self) -> str:
        return read_identity(self._folder)

    @contextmanager
    def reader(self) -> Iterator[sa.Connection | None]:
        if not self._path.is_file():
            yield None
            return
        with sqlite.reader(self._url()).connect() as connection:
            yield connection

    def open(self) -> None:
        self._engine = sqlite.make_engine(self._url())

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        if self._engine is None:
            raise Misconfigured(f"{self._folder.target}: write before open")
        with SQLite().translated_errors(self._folder.target), self._engine.connect() as connection:
            yield connection

    def refresh(self) -> None:
        """Do nothing: all writers use one database."""

    @contextmanager
    def transaction(self, connection: sa.Connection, changed: set[str]) -> Iterator[None]:
        with connection.begin():
            yield

    def merge(self) -> str:
        return ""

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _url(self) -> sa.URL:
        return sa.make_url("sqlite://").set(database=str(self._path))


def identify(folder: TargetFolder, name: str = _IDENTITY) -> None:
    """Give a folder an identity, in a file of this name, if it has none."""
    if not read_identity(folder, name):
        folder.put([(name, uuid.uuid4().hex.encode())])


def read_identity(folder: TargetFolder, name: str = _IDENTITY) -> str:
    """Return the identity of a folder; "" if there is no such folder, or it has none."""
    return (folder.read(name) or b"").decode("ascii", "replace")


# Elsewhere: files of rows, and a copy of them in a database of this process.


class _IndexRow(msgspec.Struct, array_like=True):
    id: str
    path: str
    path_key: str | None
    sequence: int
    delivery_hash: str
    operation: str
    content_hash: str | None
    source: str | None = None
    version: str | None = None
    route: str | None = None


class _IndexPart(msgspec.Struct, array_like=True):
    """File of an index."""

    documents: list[_IndexRow]
    writers: list[tuple[str, str, int]]
    """Rows of ``WRITERS_OF_FOLDER``."""


_decode_part: Final = msgspec.json.Decoder(_IndexPart)


class _Copy:
    """Copy of an index in a database of this process, which is gone with it."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.pid = os.getpid()
        self.parts: set[str] = set()
        # A database without a name is on disk as far as it does not fit into SQLite's cache, and nobody else sees it.
        self.engine = sa.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect("", check_same_thread=False),
            poolclass=sa.StaticPool,
        )
        with self.engine.begin() as connection:
            for statement in _COPY:
                connection.exec_driver_sql(statement)

    def add(self, name: str, part: _IndexPart) -> None:
        """Add the rows of a file: of an id the last one counts."""
        with self.engine.begin() as connection:
            if part.documents:
                connection.exec_driver_sql(_MERGE_DOCUMENTS, [msgspec.structs.astuple(row) for row in part.documents])
            if part.writers:
                connection.exec_driver_sql(_MERGE_WRITERS, part.writers)
        self.parts.add(name)


_COPY: Final = (
    f"""CREATE TABLE documents (id TEXT PRIMARY KEY, path TEXT NOT NULL, path_key TEXT, sequence BIGINT NOT NULL,
    delivery_hash TEXT NOT NULL, operation TEXT NOT NULL, {CONTENT_HASH} TEXT, source TEXT, version TEXT, route TEXT)
    WITHOUT ROWID""",
    "CREATE INDEX documents_path ON documents (path_key)",  # two ids may have one after two writers at the same time
    f"CREATE TABLE {WRITERS} (name TEXT, writer TEXT, sequence BIGINT, PRIMARY KEY (name, writer))",
)

_MERGE_DOCUMENTS: Final = f"""
INSERT INTO documents (id, path, path_key, sequence, delivery_hash, operation, {CONTENT_HASH}, source, version, route)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET path = excluded.path, path_key = excluded.path_key, sequence = excluded.sequence,
    delivery_hash = excluded.delivery_hash, operation = excluded.operation, {CONTENT_HASH} = excluded.{CONTENT_HASH},
    source = excluded.source, version = excluded.version, route = excluded.route
    WHERE excluded.sequence >= documents.sequence
"""

_MERGE_WRITERS: Final = f"""
INSERT INTO {WRITERS} (name, writer, sequence) VALUES (?, ?, ?)
ON CONFLICT (name, writer) DO UPDATE SET sequence = max(sequence, excluded.sequence)
"""

copies: dict[tuple[str, str], _Copy] = {}
"""Copies of this process, by the folders' targets; one for reading and one for writing, which may be at the same
time."""


_READ: Final = "read"
_WRITE: Final = "write"


class RemoteIndex:
    """Index in files of a folder elsewhere, see ``FileIndex`` and the module's docstring."""

    def __init__(self, folder: TargetFolder) -> None:
        self._folder = folder
        self._stale = True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stale": True}

    def prepare(self) -> None:
        identify(self._folder)

    def identity(self) -> str:
        return read_identity(self._folder)

    @contextmanager
    def reader(self) -> Iterator[sa.Connection | None]:
        if not self.identity():
            yield None
            return
        with self._refresh(_READ).engine.connect() as connection:
            yield connection

    def open(self) -> None:
        self._stale = True

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        known = copies.get((self._folder.target, _WRITE))
        copy = self._refresh(_WRITE) if self._stale or known is None or known.pid != os.getpid() else known
        self._stale = True  # until all has gone well: a file of the index may be there whose answer was lost
        with copy.engine.connect() as connection:
            yield connection
        self._stale = False

    def refresh(self) -> None:
        copy = copies[self._folder.target, _WRITE]
        if self._refresh(_WRITE) is not copy:
            raise Unavailable(f"{self._folder.where}: another writer has merged its index. It is tried again.")

    @contextmanager
    def transaction(self, connection: sa.Connection, changed: set[str]) -> Iterator[None]:
        with connection.begin():
            yield
            if changed:
                copy = copies[self._folder.target, _WRITE]
                part = _IndexPart(_rows_of(connection, changed), _writers(connection))
                name = _next_name(copy.parts)
                self._publish(name, part)
                copy.parts.add(name)

    def merge(self) -> str:
        """Write all rows into few files and remove the older ones; if it is killed between, both are read."""
        if not self.identity() or len(self._folder.names(_PARTS)) < MOST_PARTS:
            return ""
        copy = self._refresh(_READ)
        merged = sorted(copy.parts)
        with copy.engine.connect() as connection:
            ids = connection.execute(sa.select(DOCUMENTS.c.id).order_by(DOCUMENTS.c.id)).scalars()
            writers = _writers(connection)
            for some in slices(list(ids), MERGED_ROWS):
                name = _next_name(copy.parts)
                self._publish(name, _IndexPart(_rows_of(connection, some), writers))
                copy.parts.add(name)
        crash.point("files.merged")
        self._folder.remove([f"{_PARTS}/{name}" for name in merged])
        copy.parts.difference_update(merged)
        return f"{self._folder.where}: made {len(copy.parts)} of {len(merged)} files of its index"

    def close(self) -> None:
        self._stale = True

    def _refresh(self, use: str) -> _Copy:
        """Return the copy, with all files of the index.

        Raises:
            Misconfigured: one of them is damaged.
        """
        identity, there = self.identity(), set(self._folder.names(_PARTS))
        copy = copies.get((self._folder.target, use))
        if copy is None or copy.pid != os.getpid() or copy.identity != identity or not copy.parts <= there:
            copy = copies[self._folder.target, use] = _Copy(identity)
        for name in sorted(there - copy.parts):
            path = f"{_PARTS}/{name}"
            if (data := self._folder.read(path)) is None:
                raise Unavailable(f"{self._folder.where}/{path}: was removed while it was read. It is tried again.")
            try:
                files.unseal_bytes(Path(path), data)
                copy.add(name, _decode_part.decode(data[9:]))
            except (StateDamaged, msgspec.DecodeError):
                raise Misconfigured(
                    f"{self._folder.where}/{path}: this file of the index is damaged. Restore it from a copy; or "
                    f"remove {OWN} there together with the files, and run `ferryman retry PLAN --force`."
                ) from None
        return copy

    def _publish(self, name: str, part: _IndexPart) -> None:
        self._folder.put([(f"{_PARTS}/{name}", files.seal(part))])


def _next_name(names: Iterable[str]) -> str:
    """Return a name that sorts behind these, and that no other writer gives."""
    numbers = [int(name.partition("-")[0]) for name in names if name.partition("-")[0].isdecimal()]
    return f"{max(numbers, default=0) + 1:012d}-{uuid.uuid4().hex[:12]}.json"


def _rows_of(connection: sa.Connection, ids: Iterable[str]) -> list[_IndexRow]:
    rows: list[_IndexRow] = []
    for some in slices(ids, SLICE):
        rows += [_IndexRow(*row) for row in connection.execute(sa.select(DOCUMENTS).where(DOCUMENTS.c.id.in_(some)))]
    return rows


def _writers(connection: sa.Connection) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(sa.select(WRITERS_OF_FOLDER))]


def index_columns(connection: sa.Connection) -> set[str]:
    """Return the names of the columns of the documents."""
    return {column[1] for column in connection.exec_driver_sql("PRAGMA table_info(documents)")}


def record_writer(connection: sa.Connection, writer: str, written: list[Delivery]) -> None:
    """Record the highest sequence of a writer."""
    sqlite.record_sequence(connection.exec_driver_sql, WRITERS_OF_FOLDER.name, DOCUMENTS.name, writer, written)
