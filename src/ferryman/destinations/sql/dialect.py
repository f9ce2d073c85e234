"""The port to a kind of database: everything about ``Sql`` and its search that SQLite and PostgreSQL do differently.

A dialect is asked in this order:

    mistakes(…)            when the plan is built: what is wrong with the arguments; no I/O
    prepare(…)             driver, ``check``: database, tables and index are there, or are made now
    writer(…)              worker, ``open``: a connection
    Writer.write(chunk)    worker: one transaction a chunk, whatever it takes to repeat it
    Writer.close()
    open_reader, find      ``ferryman search``

What the database raises comes out as it is; ``explain`` says what it means. A dialect has no state: one object does for
everybody.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import sqlalchemy as sa

from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.sql.layout import ColumnTypes, Layout
from ferryman.errors import DeliveryError, Misconfigured, PermanentError


class Writer(ABC):
    """One connection, open for a task."""

    @abstractmethod
    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """All of the chunk in one transaction.

        Raises:
            Exception: what the database says of itself, or of one of the deliveries; nothing was written, or (the
                connection was lost while it committed) all of it: written again it is the same.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the connection up; also a broken one."""


class Dialect(ABC):
    """Port for one database, see the module."""

    single_writer: ClassVar[bool]
    """Does it take one writer at a time?"""
    reserved: ClassVar[tuple[str, ...]]
    """Names of columns that are the dialect's own."""
    column_types: ClassVar[ColumnTypes]

    @abstractmethod
    def argument_findings(self, url: sa.URL, table: str, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a text for each mistake in these arguments, with the remedy.

        ``columns`` (here and in ``prepare``): those to search.
        """

    @abstractmethod
    def place(self, url: sa.URL) -> str:
        """The database as a target: no user, no password, no options."""

    @abstractmethod
    def prepare(self, url: sa.URL, layout: Layout, columns: tuple[str, ...], where: str) -> None:
        """Make what is not there; any number of drivers may do so at once. ``where`` begins the error texts.

        Raises:
            Misconfigured: what is there is not fit.
        """

    @abstractmethod
    def writer(self, url: sa.URL, layout: Layout) -> Writer:
        """A writer into a table that ``prepare`` has found fit."""

    @abstractmethod
    def explain(self, error: BaseException, where: str) -> DeliveryError | None:
        """Return the error for the delivery, or for the whole database; None for errors of something else."""

    @abstractmethod
    def open_reader(self, url: sa.URL) -> sa.Engine:
        """An engine that changes nothing.

        Raises:
            UsageError: there is no such database; for what can be seen without asking it.
        """

    @abstractmethod
    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        """Has this table a full-text index?"""

    @abstractmethod
    def find(
        self, connection: sa.Connection, table: str, terms: list[Term], limit: int, mark: tuple[str, str]
    ) -> list[Hit]:
        """The best rows that have all of the terms, best first, of a table that has an index."""

    @contextmanager
    def translated_errors(self, where: str) -> Iterator[None]:
        """Errors of the database inside come out as ``DeliveryError``, with ``where`` and what to do."""
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
    """The full-text index that is there is not the one that the plan wants; ``drop`` is the SQL to be rid of it."""
    return Misconfigured(
        f"{where}: the full-text index has the columns {', '.join(indexed)}, the plan says {', '.join(wanted)}. "
        f"Correct the plan, or {drop}: the next run makes it again from the table.",
    )


# What is looked for in a full-text index, and what is found.

SNIPPET_WORDS = 16
"""Words of a snippet: about a line."""

_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')


class Term(NamedTuple):
    """A word, or several that must follow each other."""

    phrase: str
    is_prefix: bool
    """The last word may go on."""


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    title: str | None
    """The column ``title``, if there is one."""
    snippet: str
    """Where the words stand."""
    rank: float
    """Rank as the database gives it, signed so that lower is better: BM25 on SQLite, ``ts_rank`` on PostgreSQL."""


def terms_of(text: str) -> list[Term]:
    """Parse a user's query: words, ``"in quotes"``, ``begin*``. No other sign has a meaning, and nothing is an
    error."""
    terms = []
    for phrase, star, word in _TERM.findall(text):
        if word:
            phrase, star = word.rstrip("*"), "*" if word.endswith("*") else ""
        if any(character.isalnum() for character in phrase):
            terms.append(Term(phrase, bool(star)))
    return terms
