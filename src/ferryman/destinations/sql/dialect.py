"""The port to a kind of database: everything about ``Sql`` and its search that databases do differently.

The methods of a dialect are called in this order:

    …_findings(…)          when the plan is built: what is wrong with the arguments; no I/O
    prepare(…)             driver, ``check``: database, tables and index are there, or are made now
    writer(…)              worker, ``open``: a connection
    Writer.write(chunk)    worker: one transaction per chunk, whatever it takes to repeat it
    Writer.close()
    inventory(…)           ``ferryman verify``: the rows, as they read back
    open_reader, find      ``ferryman search``, of a database in ``SEARCHED``
    open_vector_reader, nearest    questions with a vector, if ``vector_findings`` allows vectors

Errors of the database are raised as they are; ``explain`` converts them. A dialect has no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ferryman.destinations.base import Delivery, Hit, Outcome, Query, StoredColumns
from ferryman.destinations.sql.layout import ColumnTypes, Layout
from ferryman.destinations.vectors import Filter, VectorField
from ferryman.errors import DeliveryError, Misconfigured, PermanentError
from ferryman.net.databases import sqlalchemy as sa

if TYPE_CHECKING:
    import numpy as np


class Writer(ABC):
    """One connection, open for a task."""

    @abstractmethod
    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write the whole chunk in one transaction.

        Raises:
            Exception: an error of the database, about itself or one of the deliveries. Nothing was written, or, if the
                connection was lost during the commit, all of it: writing it again is safe.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, also a broken one."""


class Dialect(ABC):
    """Port for one kind of database, see the module."""

    single_writer: ClassVar[bool]
    """Whether the database allows only one writer at a time."""
    reserved: ClassVar[tuple[str, ...]]
    """Names of columns that the dialect adds."""
    column_types: ClassVar[ColumnTypes]

    @abstractmethod
    def url_findings(self, url: sa.URL) -> Iterator[str]:
        """Yield a text for each mistake in a URL, with the remedy."""

    @abstractmethod
    def argument_findings(self, table: str, full_text: tuple[str, ...], columns: Collection[str]) -> Iterator[str]:
        """Yield a text for each mistake in these arguments, with the remedy.

        ``full_text`` (``columns`` in ``prepare``): columns to search; ``columns``: those that fields are copied to.
        """

    @abstractmethod
    def place(self, url: sa.URL) -> str:
        """Return the database's URL as a target: without user, password and options."""

    @abstractmethod
    def prepare(self, url: sa.URL, layout: Layout, columns: tuple[str, ...], where: str) -> None:
        """Create database, tables and index where missing; any number of drivers may do so at once. ``where`` begins
        the error texts.

        Raises:
            Misconfigured: existing ones do not fit.
        """

    @abstractmethod
    def writer(self, url: sa.URL, layout: Layout, name: str) -> Writer:
        """Return a writer into a table that ``prepare`` has checked. With each chunk it records its highest sequence
        under this name, see ``Layout.writers``."""

    @abstractmethod
    def inventory(self, url: str, layout: Layout, ids: Collection[str] | None) -> Iterator[StoredColumns]:
        """Yield the rows of a table, or those with these ids, some at a time; none if there is no such table."""

    @abstractmethod
    def explain(self, error: BaseException, where: str) -> DeliveryError | None:
        """Convert an error to that of the delivery, or of the whole database; None if it is not the database's."""

    @abstractmethod
    def open_reader(self, url: sa.URL) -> sa.Engine:
        """Return an engine that cannot change anything.

        Raises:
            UsageError: there is no such database, as far as that can be told without connecting.
        """

    def identity(self, url: str, layout: Layout) -> str:
        """Return the identity of the table; "" if there is no such table, or it has none yet.

        Raises:
            UsageError: see ``open_reader``.
        """
        return str(self.ask(url, layout.identity))

    def highest_of(self, url: str, layout: Layout, writer: str) -> int | None:
        """Return the highest sequence that a writer has written to the table; None: it has written nothing.

        Raises:
            UsageError: see ``open_reader``.
        """
        highest: int | None = self.ask(url, partial(layout.highest_of, writer=writer))
        return highest

    def ask(self, url: str, question: Callable[[sa.Connection], Any]) -> Any:
        """Return what a function finds out by a connection that cannot change anything.

        Raises:
            UsageError: see ``open_reader``.
        """
        engine = self.open_reader(sa.make_url(url))
        try:
            with engine.connect() as connection:
                return question(connection)
        finally:
            engine.dispose()

    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        """Return whether this table has a full-text index."""
        return False

    def vector_findings(self, vectors: Mapping[str, VectorField], table: str) -> Iterator[str]:
        """Yield a text for each declared vector that the database cannot hold, with the remedy."""
        yield from ()

    def durability_risk(self, connection: sa.Connection) -> str:
        """Return by which settings the server may lose what it has confirmed, and what to set instead; "": by none."""
        return ""

    def maintain(self, url: str, layout: Layout, where: str) -> list[str]:
        """Do what is better done once after a load than with each chunk; return a line about each thing done."""
        return []

    def open_vector_reader(self, url: sa.URL) -> sa.Engine:
        """Return an engine as ``open_reader`` does, with the functions that compare vectors."""
        return self.open_reader(url)

    def nearest(
        self,
        connection: sa.Connection,
        layout: Layout,
        field: str,
        question: np.ndarray[Any, Any],
        limit: int,
        wanted: Filter,
    ) -> list[Hit]:
        """Return the rows with the nearest vectors, best first."""
        raise NotImplementedError

    def find(
        self,
        connection: sa.Connection,
        table: str,
        query: Query,
        limit: int,
        mark: tuple[str, str],
        wanted: Filter | None = None,
    ) -> list[Hit]:
        """Return the rows that match the query and fit the filter, best first, of a table that has an index."""
        raise NotImplementedError

    @contextmanager
    def translated_errors(self, where: str) -> Iterator[None]:
        """Convert errors of the database to ``DeliveryError``, with ``where`` and what to do."""
        try:
            yield
        except Exception as e:
            fault = self.explain(e, where)
            if fault is None or fault is e:
                raise
            raise fault from e

    def is_row_error(self, error: BaseException) -> bool:
        """Return whether the error is about one delivery's value, so that the others can still be written."""
        fault = self.explain(error, "")
        return isinstance(fault, PermanentError) and not fault.universal


def index_mismatch(where: str, indexed: tuple[str, ...], wanted: tuple[str, ...], drop: str) -> PermanentError:
    """Return the error for an existing full-text index that differs from the plan's; ``drop`` is the SQL to remove
    it."""
    return Misconfigured(
        f"{where}: the full-text index has the columns {', '.join(indexed)}, the plan says {', '.join(wanted)}. "
        f"Correct the plan, or {drop}: the next run makes it again from the table.",
    )
