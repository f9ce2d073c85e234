"""Rows of CSV files."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.sources.base import Detect
from ferryman.sources.physical import Physical
from ferryman.sources.records import RecordRow, Records, UnreadableRecords, bad_id
from ferryman.sources.selection import FileSelection


class Csv(Records):
    """Every row of every CSV file below ``root`` that the globs take, as a document: each column is a field, as text.

    ``Csv("products.csv", id="sku")``, ``Csv("exports", include="**/*.tsv.gz", delimiter="\\t", content="body")``.

    **Ids** are the file's path relative to the root and the number of the row: ``products.csv#row=2`` is the first one
    below the header, as spreadsheets count, blank rows included. A cell with line ends in it shifts no numbers. With
    ``id=`` an id is the text of that column: then it does not matter in which file and row it stands, and of several
    rows with one id the last counts.

    **Content.** Without ``content=`` a document is fields only. With it, that column is ``raw``, in UTF-8, and is no
    field.

    **Format.** RFC 4180, and what ``delimiter``, ``quote`` and ``escape`` say: cells in quotes may hold delimiters,
    line ends, and quotes, doubled. The first row is the header; a column without a name is called by its place,
    ``column_3``. Give ``columns=`` for files that have no header. Nothing is trimmed, and nothing is guessed: ``007``
    stays text, and an empty cell is "". Make numbers and dates of them in a step.

    **Bad input.** A row with more or fewer cells than the header, with text after a closing quote, or with bytes that
    are not in this encoding, ends as ERROR_DOC, named by file and line; the others go on. Where a quote is closed wrong
    some lines later, or never, nobody knows where the next row begins: this row is refused, the rest of the file is not
    read, and nothing is deleted. So it is with a row of more than ``max_bytes``. With ``id=`` nothing is deleted while
    there are refused rows: whose they are is not known. A header with two columns of one name, or without the column
    of ``id=`` or ``content=``, makes the listing incomplete. About files, see ``Lines``.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several.
        id: name of the column that holds the id.
        content: name of the column that holds the document's text.
        columns: names of the columns, where the first row is not a header.
        delimiter: one character between cells.
        quote: one character around cells; None: there are no quotes.
        escape: one character that makes the next one mean itself; None: quotes in quotes are doubled.
        encoding: of the files. A byte order mark in a file wins.
        max_bytes: longest row (bytes).
        storage_options: see ``Files``.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant. Whether the root exists is asked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        *,
        id: str | None = None,
        content: str | None = None,
        columns: Sequence[str] | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        encoding: str = "utf-8",
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, encoding, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.id = id
        self.content = content
        self.columns = None if columns is None else list(columns)
        self.ids_in_rows = id is not None
        self._format: dict[str, Any] = {
            "delimiter": delimiter,
            "quotechar": quote,
            "escapechar": escape,
            "quoting": csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL,
            "doublequote": escape is None,
            "strict": True,
        }
        try:
            if {"\r", "\n"}.intersection((delimiter, quote, escape)):
                raise ValueError("a line end ends the row")
            csv.reader([], **self._format)
        except (TypeError, ValueError, csv.Error) as e:
            raise UsageError(f"Csv(delimiter={delimiter!r}, quote={quote!r}, escape={escape!r}): {e}.") from None
        if self.columns is not None and (why := self._wrong(self.columns)):
            raise UsageError(f"Csv(columns={columns!r}): {why}.")

    def rows(self, lines: Iterator[Physical]) -> Iterator[RecordRow]:
        csv.field_size_limit(max(csv.field_size_limit(), self.max_bytes))  # Python's own, for all: ours is the feed's
        feed = _Feed(lines, self.max_bytes)
        reader = csv.reader(feed, **self._format)
        columns = self.columns
        number = 0
        while True:
            feed.begin()
            try:
                cells = next(reader, None)
            except csv.Error as e:
                feed.wrong = feed.wrong or _why(str(e))
            if feed.first == 0:
                return
            number += 1
            if columns is None and feed.wrong:
                raise UnreadableRecords(f"line {feed.first}: the header cannot be read: {feed.wrong}")
            if feed.wrong:
                yield RecordRow(f"row={number}", feed.first, {}, refused=feed.wrong)
                if feed.lost:
                    raise UnreadableRecords(f"line {feed.first}: {feed.wrong}. Where the next row begins is not known")
            elif columns is None:
                columns = self._header(feed.first, cells)
            elif cells:
                yield self._row(f"row={number}", feed.first, columns, cells)

    def _header(self, line: int, cells: list[str] | None) -> list[str] | None:
        """The columns by the header; None if the row was blank."""
        if not cells:
            return None
        columns = [name or f"column_{at}" for at, name in enumerate(cells, 1)]
        if why := self._wrong(columns):
            raise UnreadableRecords(f"line {line}: {why}")
        return columns

    def _wrong(self, columns: list[str]) -> str:
        """Why these cannot be the columns."""
        if not columns:
            return "give a name for each column"
        twice = [name for name, times in Counter(columns).items() if times > 1]
        if twice:
            return f"two columns are called {', '.join(map(repr, twice))}: give them names of their own"
        for option, name in (("id", self.id), ("content", self.content)):
            if name is not None and name not in columns:
                return f"there is no column {name!r} for {option}=. There are: {', '.join(columns)}"
        return ""

    def _row(self, name: str, line: int, columns: list[str], cells: list[str]) -> RecordRow:
        if len(cells) != len(columns):
            why = f"{len(cells)} cells, but there are {len(columns)} columns. Correct the row"
            return RecordRow(name, line, {}, refused=why)
        fields: dict[str, Any] = dict(zip(columns, cells, strict=True))
        id = None if self.id is None else fields[self.id]
        if id is not None and (refused := bad_id(id)):
            return RecordRow(name, line, {}, refused=f"{refused} (in column {self.id!r})")
        raw = None if self.content is None else fields.pop(self.content).encode()
        return RecordRow(name, line, fields, raw, id)


class _Feed:
    """What the reader of Python's reads: lines, with what is to be known of those that made a row."""

    def __init__(self, lines: Iterator[Physical], limit_bytes: int) -> None:
        self._lines = lines
        self._limit = limit_bytes
        self.begin()

    def begin(self) -> None:
        """The next line is a row's first one."""
        self.first = 0
        """Its number; 0: there was none."""
        self.wrong = ""
        self._last = 0
        self._bytes = 0
        self._too_long = False

    @property
    def lost(self) -> bool:
        """If the row is wrong: is it not known where the next one begins?"""
        return self._last > self.first or self._too_long

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        number, line, wrong = next(self._lines)  # its end is the row's, also in the middle
        self.first = self.first or number
        self._last = number
        self._bytes += len(line)
        self.wrong = self.wrong or wrong
        if self._bytes > self._limit + 2 or (wrong and not line):
            self._too_long = True
            self.wrong = wrong or f"a row of more than {self._limit} bytes. Raise max_bytes, or close the quote"
            raise csv.Error
        return line.decode()


def _why(error: str) -> str:
    """What Python's reader says, in words that help."""
    if error == "unexpected end of data":
        return "a quote that is never closed. Close it, or double it if it is part of the text"
    if "expected after" in error:
        return "text after a closing quote. Double the quote if it is part of the text"
    return f"not CSV: {error}"
