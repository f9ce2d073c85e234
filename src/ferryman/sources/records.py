"""What ``Lines``, ``Csv`` and ``JsonLines`` share: files of which every line or row is a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ferryman.document import Document
from ferryman.errors import BadDocument, TransientError, Unavailable
from ferryman.outages import is_connection
from ferryman.sources.base import MISSING, Detect, Doubt, Listed
from ferryman.sources.packed import unpacked
from ferryman.sources.paths import id_of_text
from ferryman.sources.physical import Physical, checked_encoding, physical_lines
from ferryman.sources.selection import FileSelection, FileSource


class RecordRow(NamedTuple):
    """What a file has at one place: a document, or why it is not one."""

    name: str
    """What it is called in its file, as ``line=12``: no child's key has a ``=`` in it, so that ids cannot clash."""
    line: int
    """Where it begins, for messages."""
    fields: dict[str, Any]
    raw: bytes | None = None
    id: str | None = None
    """An id of its own; None: its file and name are its id."""
    refused: str = ""
    """Why it can be no document."""


@dataclass(frozen=True, slots=True)
class RowPiece:
    """A piece of a listing: one file."""

    file: Listed
    alone: bool
    """The root is this file itself."""


class Gap(NamedTuple):
    """Files that could not be listed.

    Attributes:
        away: it was the device, or the connection.
    """

    why: str
    away: bool


class UnreadableRecords(Exception):
    """Why the rest of a file is not rows, beginning with the line."""


class Records(FileSource):
    """Base of the sources of which a file holds many documents. A subclass says what the rows of a file are.

    The files are listed in the driver, and each is read by a worker in one go, row by row. What stops a file from being
    read to its end makes the listing incomplete: then nothing of the source is deleted, for the rest of its rows is not
    known. A row that is refused is a document that ends as ERROR_DOC. Where ids are in the rows, a refused row hides
    whose row it is; the listing counts as incomplete then too, or its document would be taken for deleted.
    """

    def __init__(
        self,
        files: FileSelection,
        encoding: str,
        max_bytes: int,
        *,
        prefix: str,
        detect: Detect,
        max_deleted: float,
    ) -> None:
        super().__init__(files, max_bytes, None, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.encoding = checked_encoding(type(self).__name__, encoding)
        self.ids_in_rows = False

    def rows(self, lines: Iterator[Physical]) -> Iterator[RecordRow]:
        """The rows of a file.

        Raises:
            UnreadableRecords: of the rest of the file no rows can be made.
        """
        raise NotImplementedError

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, or may not be read.
        """
        if not self._tree.is_file():
            self._tree.check()

    def partitions(self) -> list[RowPiece | Gap]:
        """A piece a file; and one that says why files could not be listed."""
        if self._tree.is_file():
            return [RowPiece(self._tree.alone().listed(), True)]
        files: list[RowPiece | Gap] = []
        gaps: list[RowPiece | Gap] = []
        for piece in self._tree.pieces():
            try:
                found = self._tree.listing(piece)  # in the driver, so there is nothing to doubt
                files.extend(RowPiece(each, False) for each in found if isinstance(each, Listed))
            except TransientError as e:
                gaps.append(Gap(str(e), is_connection(e, reading=True)))
        return files + gaps

    def listing(self, partition: RowPiece | Gap) -> Iterator[Listed | Document | Doubt]:
        """The documents of this file.

        Raises:
            TransientError: it could not be read to its end, or rows without an id were left out; names the file.
        """
        if isinstance(partition, Gap):
            raise (Unavailable if partition.away else TransientError)(partition.why)
        tree, file = self._tree.alone() if partition.alone else self._tree, partition.file
        if file.refused:
            raise TransientError(f"{file.refused} {_REST}")
        path = tree.shown(file.id)
        try:
            stream = tree.open(file)
        except FileNotFoundError:
            if partition.alone:  # then there is nothing to list from, which is not the same as nothing in it
                raise TransientError(f"{path}: deleted since it was listed. {_REST}") from None
            yield Doubt(file.id, MISSING)  # gone since it was listed, and its documents with it
            return
        except BadDocument as e:
            raise TransientError(f"{e} {_REST}") from e
        with unpacked(stream, path, file.size) as opened:
            yield from self._documents(opened, file.id, path)

    def _documents(self, opened: Any, file: str, path: str) -> Iterator[Listed | Document]:
        nameless = 0
        first = ""
        try:
            for row in self.rows(physical_lines(opened, self.encoding, self.max_bytes, path)):
                id = f"{file}#{row.name}" if row.id is None else id_of_text(row.id)
                if not row.refused:
                    yield Document.of(id, row.fields, row.raw)
                    continue
                why = f"{path}, line {row.line}: {row.refused}."
                if row.id is None:
                    nameless += 1
                    first = first or why
                yield Listed(id, 0, refused=why)
        except BadDocument as e:
            raise TransientError(f"{str(e).removesuffix('.')}. {_REST}") from e
        except UnreadableRecords as e:
            raise TransientError(f"{path}, {e}. {_REST}") from e
        if nameless and self.ids_in_rows:
            raise TransientError(f"{path} has rows ({nameless}) whose id cannot be known; the first: {first}")


_REST: Final = "Not all that is in this file is known."


def bad_id(id: str) -> str:
    """Why this text cannot be an id; "" if it can."""
    if not id:
        return "it has no id"
    return "" if id.splitlines() == [id] else f"its id has a line end in it: {id!r}"
