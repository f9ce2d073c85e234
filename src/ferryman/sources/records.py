"""Files of which every line or row is a document: ``Lines``, ``Csv``, ``JsonLines``, and the base of ``Parquet``."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from ferryman import limits
from ferryman.document import Document, json_error
from ferryman.errors import BadDocument, TransientError, Unavailable, UsageError
from ferryman.net.faults import is_connection_error
from ferryman.sources.base import MISSING, BytesRead, Detect, Doubt, Listed, id_of_text
from ferryman.sources.files import FileSelection, FileSource
from ferryman.sources.folder import LEAVE_OUT, open_unpacked

if TYPE_CHECKING:
    from ferryman.sources.inotify import FolderEvents


class RecordRow(NamedTuple):
    """A line or row of a file: a document, or the reason why it cannot be one."""

    name: str
    """Name in the file, such as ``line=12``: no child's key contains a ``=``, so ids cannot clash."""
    line: int
    """Number of its first line, or of the row where there are no lines, for messages."""
    fields: dict[str, Any]
    raw: bytes | None = None
    id: str | None = None
    """An id of its own; None: its id consists of the file and ``name``."""
    refused: str = ""
    """Why it cannot be a document; "" if it can."""


@dataclass(frozen=True, slots=True)
class RowPiece:
    """A piece of a listing: one file."""

    file: Listed
    single_file: bool
    """Whether the root of the source is this file."""


class ListingGap(NamedTuple):
    """Files that could not be listed.

    Attributes:
        is_outage: whether the device or the connection failed.
    """

    why: str
    is_outage: bool


class UnreadableRecords(Exception):
    """The rest of a file has no recognisable rows; the message begins with the line."""


class Records(FileSource):
    """Base of the sources of which a file holds many documents. A subclass says what the rows of a file are.

    The files are listed in the driver, and each is read by a worker in one go, row by row. What stops a file from being
    read to its end makes the listing incomplete: then nothing of the source is deleted, for the rest of its rows is not
    known. A row that is refused is a document that ends as ERROR_DOC. Where ids are in the rows, a refused row hides
    whose row it is; the listing counts as incomplete then too, or its document would be taken for deleted.
    """

    counts = "line"
    """Word before the number of a row in messages."""

    def __init__(
        self,
        files: FileSelection,
        max_bytes: int,
        *,
        prefix: str,
        detect: Detect,
        max_deleted: float | None,
    ) -> None:
        super().__init__(files, max_bytes, None, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.ids_in_rows = False

    def rows(self, stream: io.BufferedReader, file: str, path: str) -> Iterator[RecordRow]:
        """Yield the rows of a file.

        Args:
            file: its id, relative to the root.
            path: for messages.

        Raises:
            BadDocument: it cannot be read on.
            UnreadableRecords: the rest of the file has no recognisable rows.
        """
        raise NotImplementedError

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, or may not be read.
        """
        if not self._tree.is_file():
            self._tree.check()

    def partitions(self) -> list[RowPiece | ListingGap]:
        """A piece a file; and one that says why files could not be listed."""
        if self._tree.is_file():
            return [RowPiece(self._tree.single_file().listed(), True)]
        files: list[RowPiece | ListingGap] = []
        gaps: list[RowPiece | ListingGap] = []
        for piece in self._tree.pieces():
            try:
                listing = self._tree.listing(piece)  # in the driver, so there is nothing to doubt
                files.extend(RowPiece(each, False) for each in listing if isinstance(each, Listed))
            except TransientError as e:
                gaps.append(ListingGap(str(e), is_connection_error(e, reading=True)))
        return files + gaps

    def watch(self) -> FolderEvents | None:
        if not os.path.isfile(self.root):
            return super().watch()
        from ferryman.sources.inotify import FolderEvents

        folder, name = os.path.split(self.root)
        return FolderEvents(folder, lambda below: False, name.__eq__)

    def listing(self, partition: RowPiece | ListingGap) -> Iterator[Listed | Document | Doubt | BytesRead]:
        """The documents of this file.

        Raises:
            TransientError: it could not be read to its end, or rows without an id were left out; names the file.
        """
        if isinstance(partition, ListingGap):
            raise (Unavailable if partition.is_outage else TransientError)(partition.why)
        tree, file = self._tree.single_file() if partition.single_file else self._tree, partition.file
        if file.refused:
            raise TransientError(f"{file.refused} {_REST_UNKNOWN}")
        path = tree.display_path(file.id)
        try:
            stream = tree.open(file)
        except FileNotFoundError:
            if partition.single_file:  # then there is nothing to list from, which is not the same as nothing in it
                raise TransientError(f"{path}: deleted since it was listed. {_REST_UNKNOWN}") from None
            yield Doubt(file.id, MISSING)  # gone since it was listed, and its documents with it
            return
        except BadDocument as e:
            raise TransientError(f"{e} {_REST_UNKNOWN}") from e
        with open_unpacked(stream, path, file.size) as opened:
            documents = self._documents(opened, file.id, path)
            yield from documents if file.size < LARGE_BYTES else _with_progress(documents, stream, file.size)

    def _documents(self, stream: io.BufferedReader, file: str, path: str) -> Iterator[Listed | Document]:
        without_id = 0
        first = ""
        try:
            for row in self.rows(stream, file, path):
                id = f"{file}#{row.name}" if row.id is None else id_of_text(row.id)
                if not row.refused:
                    yield Document.of(id, row.fields, row.raw)
                    continue
                why = f"{path}, {self.counts} {row.line}: {row.refused}."
                if row.id is None:
                    without_id += 1
                    first = first or why
                yield Listed(id, 0, refused=why)
        except BadDocument as e:
            raise TransientError(f"{str(e).removesuffix('.')}. {_REST_UNKNOWN}") from e
        except UnreadableRecords as e:
            raise TransientError(f"{path}, {e}. {_REST_UNKNOWN}") from e
        if without_id and self.ids_in_rows:
            raise TransientError(f"{path} has rows ({without_id}) whose id cannot be known; the first: {first}")


class TextRecords(Records):
    """Base of the sources whose files are text.

    Args:
        encoding: of the files; a byte order mark in a file wins.
    """

    def __init__(self, files: FileSelection, encoding: str, max_bytes: int, **options: Any) -> None:
        super().__init__(files, max_bytes, **options)
        self.encoding = validate_encoding(type(self).__name__, encoding)

    def rows(self, stream: io.BufferedReader, file: str, path: str) -> Iterator[RecordRow]:
        return self.rows_of(physical_lines(stream, self.encoding, self.max_bytes, path))

    def rows_of(self, lines: Iterator[PhysicalLine]) -> Iterator[RecordRow]:
        """Yield the rows of these lines, see ``rows``."""
        raise NotImplementedError


LARGE_BYTES: Final = 64 * limits.MIB
"""Size from which on a file says how far it was read."""

_ROWS_BETWEEN: Final = 4096
"""Rows between two reports of that."""


def _with_progress(
    documents: Iterator[Listed | Document], stream: Any, size: int
) -> Iterator[Listed | Document | BytesRead]:
    """Yield the documents of a file, and now and then how many of its bytes were read, packed or not."""
    for number, document in enumerate(documents, 1):
        yield document
        if number % _ROWS_BETWEEN == 0:
            with suppress(OSError, ValueError, AttributeError):  # some streams have no position
                yield BytesRead(min(int(stream.tell()), size), size)


_REST_UNKNOWN: Final = "Not all that is in this file is known."


def id_problem(id: str) -> str:
    """Return why a text cannot be an id; "" if it can."""
    if not id:
        return "it has no id"
    return "" if id.splitlines() == [id] else f"its id has a line end in it: {id!r}"


# Rows of CSV files.


class Csv(TextRecords):
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
    stays text, and an empty cell is "". Make numbers and dates of them in a step. A first line ``sep=;``, as Excel
    writes and reads it, is not a row: it says the delimiter of its file.

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
        prefix, detect: see ``Source``.
        max_deleted: see ``Files``.

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
        max_deleted: float | None = None,
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
        if self.columns is not None and (why := self._column_problem(self.columns)):
            raise UsageError(f"Csv(columns={columns!r}): {why}.")

    def rows_of(self, lines: Iterator[PhysicalLine]) -> Iterator[RecordRow]:
        csv.field_size_limit(max(csv.field_size_limit(), self.max_bytes))  # Python's own, for all: ours is the feed's
        first = next(lines, None)
        stated = _SEPARATOR.fullmatch(first[1]) if first is not None else None
        if first is not None and stated is None:
            lines = chain([first], lines)
        row_lines = _RowLines(lines, self.max_bytes)
        reader = csv.reader(row_lines, **self._format | ({"delimiter": stated[1].decode()} if stated else {}))
        columns = self.columns
        number = 0
        while True:
            row_lines.begin()
            try:
                cells = next(reader, None)
            except csv.Error as e:
                row_lines.problem = row_lines.problem or _explain_csv(str(e))
            if row_lines.first == 0:
                return
            number += 1
            if columns is None and row_lines.problem:
                raise UnreadableRecords(f"line {row_lines.first}: the header cannot be read: {row_lines.problem}")
            if row_lines.problem:
                yield RecordRow(f"row={number}", row_lines.first, {}, refused=row_lines.problem)
                if row_lines.next_row_unknown:
                    raise UnreadableRecords(
                        f"line {row_lines.first}: {row_lines.problem}. Where the next row begins is not known"
                    )
            elif columns is None:
                columns = self._header(row_lines.first, cells)
            elif cells:
                yield self._row(f"row={number}", row_lines.first, columns, cells)

    def _header(self, line: int, cells: list[str] | None) -> list[str] | None:
        """Return the columns named by the header; None if the row is blank."""
        if not cells:
            return None
        columns = [name or f"column_{at}" for at, name in enumerate(cells, 1)]
        if why := self._column_problem(columns):
            raise UnreadableRecords(f"line {line}: {why}")
        return columns

    def _column_problem(self, columns: list[str]) -> str:
        """Return why these cannot be the columns; "" if they can."""
        if not columns:
            return "give a name for each column"
        duplicates = [name for name, times in Counter(columns).items() if times > 1]
        if duplicates:
            return f"two columns are called {', '.join(map(repr, duplicates))}: give them names of their own"
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
        if id is not None and (refused := id_problem(id)):
            return RecordRow(name, line, {}, refused=f"{refused} (in column {self.id!r})")
        raw = None if self.content is None else fields.pop(self.content).encode()
        return RecordRow(name, line, fields, raw, id)


_SEPARATOR: Final = re.compile(rb"\"?sep=([,;|:^~\t ])\"?[ ,;\t]*+\r?\n?", re.IGNORECASE)
"""Excel's line before the header, which says the delimiter; programs that do not know it put it into quotes."""


class _RowLines:
    """Iterator of lines for Python's CSV reader that keeps track of the lines of the current row.

    Attributes:
        first: number of the row's first line; 0: there was none.
        problem: why the row is refused; "" if it is not.
    """

    def __init__(self, lines: Iterator[PhysicalLine], limit_bytes: int) -> None:
        self._lines = lines
        self._limit = limit_bytes
        self.begin()

    def begin(self) -> None:
        """Begin a new row with the next line."""
        self.first = 0
        self.problem = ""
        self._last = 0
        self._bytes = 0
        self._too_long = False

    @property
    def next_row_unknown(self) -> bool:
        """Return whether it is unknown where the row after a refused one begins."""
        return self._last > self.first or self._too_long

    def __iter__(self) -> _RowLines:
        return self

    def __next__(self) -> str:
        number, line, problem = next(self._lines)  # its end is the row's, also in the middle
        self.first = self.first or number
        self._last = number
        self._bytes += len(line)
        self.problem = self.problem or problem
        if self._bytes > self._limit + 2 or (problem and not line):
            self._too_long = True
            self.problem = problem or f"a row of more than {self._limit} bytes. Raise max_bytes, or close the quote"
            raise csv.Error
        return line.decode()


def _explain_csv(error: str) -> str:
    """Explain an error of Python's CSV reader in words that help."""
    if error == "unexpected end of data":
        return "a quote that is never closed. Close it, or double it if it is part of the text"
    if "expected after" in error:
        return "text after a closing quote. Double the quote if it is part of the text"
    return f"not CSV: {error}"


# JSON objects, one a line.

_KINDS: Final = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}

_decode = msgspec.json.Decoder().decode


class JsonLines(TextRecords):
    """Every line of every file below ``root`` that the globs take, as a document: a JSON object, whose members are the
    fields.

    ``JsonLines("products.jsonl", id="sku")``, ``JsonLines("exports", include="**/*.jsonl.gz", id="/meta/id",
    content="/body")``.

    **Ids** are the file's path relative to the root and the line's number: ``exports/a.jsonl#line=12``. With ``id=`` an
    id is what stands there in the object, text or a number: then it does not matter in which file and line an object
    stands, and of several with one id the last counts.

    **Content.** Without ``content=`` a document is fields only. With it, the text that stands there is ``raw``, in
    UTF-8, and is not a field; where there is none, or null, the document has no ``raw``.

    **Bad input.** A line that is not a JSON object (``NaN`` and numbers that no double can hold are not JSON), is
    longer than ``max_bytes``, or has no id where ``id=`` says, ends as ERROR_DOC, named by file and line; the others go
    on. With ``id=`` nothing is deleted while there are such lines: whose they are is not known. Of two members of one
    name the last counts. Blank lines are passed by, but they count. About files, see ``Lines``.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several.
        id: a JSON pointer (RFC 6901), ``/meta/id``, or a member's name, ``id``.
        content: a JSON pointer, or a member's name.
        encoding: of the files. A byte order mark in a file wins.
        max_bytes: longest line (bytes).
        storage_options: see ``Files``.
        prefix, detect: see ``Source``.
        max_deleted: see ``Files``.

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
        encoding: str = "utf-8",
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float | None = None,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, encoding, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.id = _pointer("id", id)
        self.content = _pointer("content", content)
        self.ids_in_rows = self.id is not None

    def rows_of(self, lines: Iterator[PhysicalLine]) -> Iterator[RecordRow]:
        for number, line, problem in lines:
            if problem:
                yield RecordRow(f"line={number}", number, {}, refused=problem)
            elif not line.isspace():
                yield self._row(number, line)

    def _row(self, number: int, line: bytes) -> RecordRow:
        name = f"line={number}"
        try:
            value = _decode(line)
        except (ValueError, RecursionError) as e:
            return RecordRow(name, number, {}, refused=f"not JSON: {json_error(line, e)}")
        if not isinstance(value, dict):
            return RecordRow(name, number, {}, refused=f"{_KINDS.get(type(value), 'a number')}, not a JSON object")
        id = None
        if self.id is not None:
            id = self.id.of(value)
            if id is not None and (isinstance(id, bool) or not isinstance(id, str | int | float)):
                return RecordRow(name, number, {}, refused=f"its id, at {self.id}, is neither text nor a number")
            id = "" if id is None else str(id)
            if refused := id_problem(id):
                return RecordRow(name, number, {}, refused=f"{refused} (at {self.id})")
        raw = None
        if self.content is not None:
            text = self.content.pop(value)
            if not isinstance(text, str | None):
                return RecordRow(name, number, {}, id=id, refused=f"its content, at {self.content}, is not text")
            raw = None if text is None else text.encode()
        return RecordRow(name, number, value, raw, id)


def _pointer(option: str, text: str | None) -> Pointer | None:
    try:
        return None if text is None else Pointer(text)
    except ValueError as e:
        raise UsageError(f"JsonLines({option}={text!r}): {e}.") from None


# Lines of text files.

LineId = Literal["line", "content"]
Blank = Literal["skip", "keep"]


class Lines(TextRecords):
    """Every line of every file below ``root`` that the globs take, as a document: the line's text is ``raw``, in UTF-8
    and without its line end; there are no fields.

    ``Lines("sonnets.txt")``, ``Lines("logs", include="**/*.log*", encoding="latin-1")``, ``Lines("s3://bucket/logs")``.

    **Ids** are the file's path relative to the root and the line's number: ``logs/app.log#line=12``. So a changed line
    is one changed document, and a line at the end is one more; but one that is put in at the top shifts all that
    follow, and each is sent again. With ``id="content"`` a line is known by what is in it, wherever it stands
    (``logs/app.log#content=`` and 32 hex digits): then equal lines of a file are one document, which the run counts as
    duplicates, and a changed line is one document deleted and one new.

    **Lines** end with LF or CR LF. Blank ones (white space only) are no documents, but they count: numbers are those
    that an editor shows. ``blank="keep"`` makes documents of them.

    **Files** are found and named as by ``Files``, the root may be a single file, or a URL that fsspec reads. Those that
    are gzip, bzip2, xz or zstd by their first bytes are unpacked. They stream: only one line is held in memory.

    **Bad input.** A line that is not text in this encoding, or longer than ``max_bytes``, ends as ERROR_DOC; the others
    go on. A file that cannot be read to its end (rights, a broken disk, damaged compressed data, a link out of the
    root) makes the listing incomplete: what could be read goes on, nothing is deleted in this scan, and the run says
    which file and why. The lines of a file that was deleted are deleted.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several.
        id: what a line is known by: "line", its number, or "content".
        blank: "skip" or "keep".
        encoding: of the files. A byte order mark in a file wins.
        max_bytes: longest line (bytes).
        storage_options: see ``Files``.
        prefix, detect: see ``Source``.
        max_deleted: see ``Files``.

    Raises:
        UsageError: an argument that cannot be meant. Whether the root exists is asked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        *,
        id: LineId = "line",
        blank: Blank = "skip",
        encoding: str = "utf-8",
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float | None = None,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, encoding, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        for name, value, choices in (("id", id, get_args(LineId)), ("blank", blank, get_args(Blank))):
            if value not in choices:
                raise UsageError(f"Lines({name}={value!r}): choose one of {', '.join(choices)}.")
        self.id = id
        self.blank = blank

    def rows_of(self, lines: Iterator[PhysicalLine]) -> Iterator[RecordRow]:
        keep, by_content = self.blank == "keep", self.id == "content"
        for number, line, problem in lines:
            if problem:
                yield RecordRow(f"line={number}", number, {}, refused=problem)
            elif keep or not line.isspace():
                text = line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
                name = f"content={blake2b(text, digest_size=16).hexdigest()}" if by_content else f"line={number}"
                yield RecordRow(name, number, {}, text)


# The lines of a file, as UTF-8, whatever encoding the file has.

PhysicalLine = tuple[int, bytes, str]
"""Number from 1, the line in UTF-8 with its line end, and its problem or "". A line that is too long is b""."""

_BYTE_ORDER_MARKS: Final = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHUNK_BYTES: Final = 64 * limits.KIB


def validate_encoding(source: str, encoding: str) -> str:
    """Return Python's name of an encoding.

    Raises:
        UsageError: there is no such encoding, or it is not a text encoding.
    """
    try:
        codec = codecs.lookup(encoding)
        "".encode(encoding)  # base64 and its like are codecs too
    except (LookupError, TypeError):
        raise UsageError(
            f"{source}(encoding={encoding!r}): not a text encoding; give one such as 'utf-8' or 'cp1252'."
        ) from None
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def physical_lines(stream: io.BufferedReader, encoding: str, limit_bytes: int, path: str) -> Iterator[PhysicalLine]:
    """Yield the lines of a file, in UTF-8.

    Lines end with LF or CR LF; the last one need not. A byte order mark is left out, and wins over ``encoding``. A line
    over the limit is skipped without being held in memory.

    Args:
        limit_bytes: longest line (bytes in the file; in UTF-8 where the encoding's line end is not one byte, as
            UTF-16's).

    Raises:
        BadDocument: invalid UTF-16 or the like: where the next line begins cannot be known.
    """
    head = stream.peek(4)[:4]
    for mark, marked in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            stream.read(len(mark))
            encoding = marked
            break
    if "\n".encode(encoding) != b"\n":
        stream = io.BufferedReader(_AsUtf8(stream, encoding, path), _CHUNK_BYTES)
        encoding = "utf-8"
    number, is_utf8 = 0, encoding == "utf-8"
    readline = stream.readline
    while line := readline(limit_bytes + 2):
        number += 1
        if len(line) > limit_bytes and len(line.rstrip(b"\r\n")) > limit_bytes:
            while not line.endswith(b"\n") and (line := readline(_CHUNK_BYTES)):
                pass
            yield number, b"", f"more than {limit_bytes} bytes. Raise max_bytes, or shorten the line"
            continue
        try:
            text = line.decode(encoding)
            yield number, line if is_utf8 else text.encode(), ""
        except UnicodeError as e:
            yield (
                number,
                line.decode(encoding, "replace").encode(errors="replace"),
                _explain_undecodable(e, line, encoding),
            )


def _explain_undecodable(error: UnicodeError, line: bytes, encoding: str) -> str:
    at = error.start if isinstance(error, UnicodeDecodeError) else 0
    return (
        f"not {encoding} text: byte {at} of the line (0x{line[at]:02x}). Save the file in this encoding, or give its "
        "own: encoding='latin-1'"
    )


class _AsUtf8(io.RawIOBase):
    """UTF-8 content of a stream in another encoding."""

    def __init__(self, stream: io.BufferedReader, encoding: str, path: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._path = path
        self._decoded = b""
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decoded:
            data = self._stream.read1(_CHUNK_BYTES)
            try:
                self._decoded = self._decoder.decode(data, final=not data).encode()
            except UnicodeError as e:
                raise BadDocument(
                    f"{self._path}: not {self._encoding} text after byte {self._read}: {getattr(e, 'reason', e)}. "
                    f"Save the file again, {LEAVE_OUT}."
                ) from None
            self._read += len(data)
            if not data:
                break
        part, self._decoded = self._decoded[: len(buffer)], self._decoded[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


# JSON pointers (RFC 6901): paths to values inside a JSON value.

_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


class Pointer:
    """A JSON pointer: ``/meta/id``, ``/tags/0``, ``/a~1b`` for the name ``a/b``, ``~0`` for ``~``. A text that does not
    begin with a slash is a name at the top level: ``id``.

    Raises:
        ValueError: it is empty, which would mean the whole value, or has a ``~`` that escapes nothing.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text:
            raise ValueError("give a JSON pointer, as '/meta/id', or a name")
        self.text = text
        if not text.startswith("/"):
            self._steps = [text]
        elif _BAD_ESCAPE.search(text):
            raise ValueError("in a JSON pointer ~ is written ~0, and a / that is part of a name ~1")
        else:
            self._steps = [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]

    def __str__(self) -> str:
        return self.text

    def of(self, value: Any) -> Any:
        """Return the value that the pointer refers to; None if there is none."""
        for step in self._steps:
            value = _member(value, step)
        return value

    def pop(self, value: Any) -> Any:
        """Remove the value from its object and return it; values in arrays stay there."""
        for step in self._steps[:-1]:
            value = _member(value, step)
        removed = _member(value, self._steps[-1])
        if isinstance(value, dict):
            value.pop(self._steps[-1], None)
        return removed


def _member(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
        return value[int(step)]
    return None
