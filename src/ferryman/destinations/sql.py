"""A destination in a relational database: a row a document, or a row a delivery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, get_args

import sqlalchemy as sa

from ferryman.destinations import sqlite, sqlite_fts
from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Outcome
from ferryman.destinations.sql_layout import RESERVED, STANDARD, Layout, Mode
from ferryman.destinations.sql_writer import Writer
from ferryman.destinations.sqlite_fts import FullText
from ferryman.errors import PermanentError, PlanError

_FTS_WORDS: Final = ("rank", "rowid")
"""What FTS5 calls columns of its own."""


class Sql(Destination):
    """Writes documents into a table, which is made if it is not there. SQLite.

    ``Sql("sqlite:///index.db", columns={"title": "title"}, full_text=["title", "text"])`` keeps one row an id, the
    title in a column of its own, and an index to search both with (``ferryman search index.db "henry"``).

    The columns: ``id``, ``parent_id``, ``origin_id``, ``source``, ``version``, ``sequence``, ``delivery_hash``,
    ``route`` (a JSON list), ``text`` (the raw bytes decoded as UTF-8; NULL without raw) and ``fields`` (JSON).

    After a kill any chunk may be written again, also by two workers at once: a chunk is one transaction, which takes
    the write lock before it reads, and holds hashes, tombstones, rows and index. So a delivery is there once, whole, or
    not at all; and once ``write`` has returned, a power cut does not undo it.

    Args:
        url: an SQLAlchemy URL. A relative path of a file is meant from where the plan is built, in workers too.
        table: its name. ``<table>_tombstones`` remembers deletes, ``<table>_fts`` is the full-text index.
        mode: "upsert": one row an id. An older sequence never overwrites a newer one (stale), a repeated hash changes
            nothing, a delete removes the row and is remembered, so that an older upsert cannot bring it back.
            "append": one row a delivery, deletes too (column ``operation``; their text and fields are NULL);
            ``delivery_hash`` is the key, so each delivery is there once.
        columns: column name -> field to copy into it: numbers and text as they are, lists and dicts as JSON text.
        full_text: columns to search (FTS5). An index that another Sql made for the table is kept right in any case.

    A value that the database cannot hold (a lone surrogate, an integer beyond 64 bit, more than SQLite's 1 GB) is a
    permanent outcome of its delivery; the others of the chunk are written.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    single_writer = True
    compares_sequences = True
    preferred_batch: ClassVar[int | None] = 10_000
    """A transaction's fixed cost (an fsync, a segment of the full-text index) is shared by so many: half as dear
    a document as with 500, and still below what ``batch_bytes`` allows for short documents."""

    def __init__(
        self,
        url: str,
        table: str = "documents",
        mode: Mode = "upsert",
        columns: Mapping[str, str] | None = None,
        full_text: Sequence[str] | None = None,
    ) -> None:
        """Raises ``PlanError`` with everything that is wrong with the arguments."""
        self.columns = dict(columns or {})
        self.full_text = tuple([full_text] if isinstance(full_text, str) else full_text or ())
        self.table = table
        self.mode: Mode = mode
        if findings := list(self._findings(url)):
            raise PlanError([f"Sql(table={table!r}): {finding}" for finding in findings])
        self.url = sqlite.resolved(sa.make_url(url)).render_as_string(hide_password=False)
        self._writer: Writer | None = None

    def _findings(self, url: str) -> Iterator[str]:
        try:
            backend = sa.make_url(url).get_backend_name()
        except sa.exc.ArgumentError:
            yield "the url is not one that SQLAlchemy knows. Write, for a file: sqlite:///index.db"
        else:
            if backend != "sqlite":
                yield f"{backend} is not supported. Use sqlite:///index.db"
        if self.mode not in get_args(Mode):
            yield f"mode={self.mode!r}: use 'upsert' or 'append'"
        if not self.table or self.table.lower().startswith("sqlite_"):
            yield "a table needs a name, and SQLite keeps names with sqlite_ for itself"
        for name in self.columns:
            if not name or name.lower() in RESERVED:
                yield f"columns: {name!r} is the name of one of Sql's own columns; give the field another column name"
        if len({name.lower() for name in self.columns}) < len(self.columns):
            yield "columns: two names differ only in case, which SQL does not see"
        known = {*(name for name, _, _ in STANDARD), *self.columns}
        for name in self.full_text:
            if name not in known:
                yield f"full_text: there is no column {name!r}; copy the field into one: columns={{{name!r}: {name!r}}}"
            elif name.lower() in _FTS_WORDS:
                yield f"full_text: FTS5 has a meaning of its own for {name!r}; copy the field into another column"
        if len(set(self.full_text)) < len(self.full_text):
            yield "full_text: a column is named twice"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_writer": None}

    @property
    def keyed_by_id(self) -> bool:  # type: ignore[override]
        """One row an id, unless it appends."""
        return self.mode == "upsert"

    def target(self) -> str:
        url = sa.make_url(self.url)
        url = url.set(drivername=url.get_backend_name(), password=None, query={})
        return f"{url.render_as_string()}#{self.table}"

    def check(self) -> None:
        """Make database, tables and index, if they are not there; any number of drivers may do so at once.

        Raises:
            TransientError: locked by another program for too long, or the disk is full.
            PermanentError: no such folder, no right to write, a table that is not Ferryman's.
        """
        with sqlite.explained(self.target()):
            engine = sqlite.engine(sa.make_url(self.url))
            sqlite.prepare(engine)
            with engine.connect() as connection, connection.begin():
                self._check_tables(connection)

    def _check_tables(self, connection: sa.Connection) -> None:
        layout = Layout(self.table, self.mode, self.columns)
        layout.documents.create(connection, checkfirst=True)
        if self.mode == "upsert":
            layout.tombstones.create(connection, checkfirst=True)
        layout.check(connection, self.target())
        if not self.full_text:
            return
        index = FullText.of(connection, self.table)
        if index is None:
            FullText(self.table, self.full_text).create(connection)
        elif index.columns != self.full_text:
            raise PermanentError(
                f"{self.target()}: the full-text index has the columns {', '.join(index.columns)}, the plan says "
                f"{', '.join(self.full_text)}. Correct the plan, or DROP TABLE {self.table}{sqlite_fts.SUFFIX}: "
                "the next run makes it anew from the table.",
                universal=True,
            )

    def open(self, context: DestinationContext) -> None:
        with sqlite.explained(self.target()):
            self._writer = Writer(self.url, self.table, self.mode, self.columns)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One transaction a chunk; more only if the database does not take some value of it.

        Raises:
            TransientError: (universal) locked for too long, or the disk is full.
            PermanentError: (universal) the database or its table is not fit any more.
        """
        if self._writer is None:
            raise PermanentError(f"{self.target()}: write before open", universal=True)
        with sqlite.explained(self.target()):
            return _write_or_split(self._writer, chunk)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _write_or_split(writer: Writer, chunk: list[Delivery]) -> list[Outcome]:
    """Half by half around deliveries that the database does not take: they must not harm the others."""
    if not chunk:
        return []
    try:
        return writer.write(chunk)
    except Exception as e:
        if not sqlite.blames_a_row(e):
            raise
        if len(chunk) == 1:
            id = chunk[0].id.encode(errors="replace").decode()  # the reason must be text, if the id is none
            return [Outcome.permanent(str(sqlite.explain(e, id)))]
    middle = len(chunk) // 2
    return _write_or_split(writer, chunk[:middle]) + _write_or_split(writer, chunk[middle:])
