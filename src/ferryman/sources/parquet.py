"""Rows of Parquet files, read without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ferryman import limits
from ferryman.document import decode_fields
from ferryman.errors import UsageError
from ferryman.sources.base import Detect
from ferryman.sources.files import FileSelection
from ferryman.sources.records import ListingGap, RecordRow, Records, RowPiece, UnreadableRecords, id_problem

if TYPE_CHECKING:
    import io

    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

_BATCH_BYTES: Final = 8 * limits.MIB
_BATCH_ROWS: Final = 4096
_BUFFER_BYTES: Final = limits.MIB
"""Bytes of a column that are read at a time, so that memory does not grow with a row group."""

_TABLE_LOGS: Final = ("**/_delta_log/*.json", "**/metadata/*.metadata.json")
_DELTA: Final = re.compile(r"(?:^|/)_delta_log/")
_ICEBERG: Final = re.compile(r"(?:^|/)metadata/[^/]*\.metadata\.json$")
_NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class Parquet(Records):
    """Every row of every Parquet file below ``root`` that the globs take, as a document: each column is a field.

    ``Parquet("products.parquet", id="sku")``, ``Parquet("s3://bucket/articles", id="id", content="body")``.

    It needs no Spark, so a run that finds little to do takes a second. A worker reads a whole file: for a few large
    files, for a query, and for tables of Delta, Iceberg or Hudi use ``DataFrame``, which cuts them into parts and knows
    which of a table's files still count. The folder of a Delta or Iceberg table is refused.

    **Ids** are the file's path relative to the root and the number of the row, from 1: ``a.parquet#row=1``. With
    ``id=`` an id is the value of that column, text or a number: then it does not matter in which file and row it
    stands, and of several rows with one id the last counts.

    **Fields** have the values that ``DataFrame`` gives them, the id's too. Folders named ``column=value`` are a field
    each, as text, unless the file has a column of this name.

    **Content.** Without ``content=`` a document is fields only. With it, the text (in UTF-8) or bytes of that column
    are ``raw``, and no field; null: the document has no ``raw``.

    **Bad input.** A file that is not Parquet, is damaged, or lacks a column that is asked for makes the listing
    incomplete, and is named: nothing of the source is deleted meanwhile. A row without an id, or of more than
    ``max_bytes``, ends as ERROR_DOC, named by file and row; with ``id=`` nothing is deleted while there are such rows.
    About files, see ``Lines``.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several. By default files that Spark is writing, and those whose name begins with a dot.
        id: name of the column that holds the id.
        content: name of the column that holds the document's content.
        columns: columns to read, besides those of ``id`` and ``content``; None: all.
        max_bytes: largest row, as JSON and with its content (bytes).
        storage_options: see ``Files``.
        prefix, detect: see ``Source``.
        max_deleted: see ``Files``.

    Raises:
        UsageError: an argument is invalid. Whether the root exists is asked later, by ``check``.
    """

    counts = "row"

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*.parquet",
        exclude: str | Sequence[str] | None = ("**/_temporary", "**/.*"),
        *,
        id: str | None = None,
        content: str | None = None,
        columns: Sequence[str] | None = None,
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float | None = None,
    ) -> None:
        taken = [include] if isinstance(include, str) else [*include]
        files = FileSelection(root, [*taken, *_TABLE_LOGS], exclude, storage_options)
        super().__init__(files, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.include = include
        self.id, self.content = id, content
        self.columns = None if columns is None else list(columns)
        self.ids_in_rows = id is not None
        if id is not None and id == content:
            raise UsageError(f"Parquet(id={id!r}, content={content!r}): give two columns.")

    def partitions(self) -> list[RowPiece | ListingGap]:
        """Return a piece for each file; of a table with a log only why it is not read."""
        pieces = super().partitions()
        for piece in pieces:
            if isinstance(piece, RowPiece) and (table := _table_of(piece.file.id)):
                path = self._tree.display_path(piece.file.id)
                return [
                    ListingGap(
                        f"{path}: this is a table of {table}, whose folder keeps rows that were deleted. Read it with "
                        f'DataFrame(lambda spark: spark.read.format("{table.lower()}").load(…)).',
                        False,
                    )
                ]
        return pieces

    def rows(self, stream: io.BufferedReader, file: str, path: str) -> Iterator[RecordRow]:
        import pyarrow as pa  # 0.1 s, not spent where a plan is only built
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False) as opened:
                yield from self._rows(opened, _folder_values(file))
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, OSError) as e:
            raise UnreadableRecords(f"not a whole Parquet file: {' '.join(str(e).split())}") from e
        except UsageError as e:
            raise UnreadableRecords(str(e).rstrip(".")) from e

    def _rows(self, opened: ParquetFile, folders: Mapping[str, str | None]) -> Iterator[RecordRow]:
        from ferryman.sources.arrow import RowEncoder, check_names, plain_types

        names = opened.schema_arrow.names
        for wanted in (self.id, self.content, *(self.columns or ())):
            check_names(names, wanted, "Parquet")
        read = None if self.columns is None else [n for n in names if n in {*self.columns, self.id, self.content}]
        encoder: RowEncoder | None = None
        number = 0
        for batch in _batches(opened, read):
            batch = batch.cast(plain_types(batch.schema))
            contents = self._contents(batch)
            if self.content is not None:
                batch = batch.drop_columns([self.content])
            if encoder is None:
                encoder = RowEncoder(batch.schema, self.id, "Parquet")
            ids, fields = encoder.encode(batch)
            for id, text, raw in zip(ids, fields, contents, strict=True):
                number += 1
                yield self._row(number, id, text, raw, folders)

    def _contents(self, batch: pa.RecordBatch) -> list[bytes | None]:
        import pyarrow as pa
        from pyarrow import types

        if self.content is None:
            return [None] * batch.num_rows
        column = batch.column(self.content)
        if types.is_string(column.type) or types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        elif not (types.is_binary(column.type) or types.is_large_binary(column.type)):
            raise UsageError(f"Parquet(content={self.content!r}): the column holds {column.type}, not text or bytes")
        contents: list[bytes | None] = column.to_pylist()
        return contents

    def _row(
        self, number: int, id: str | None, text: bytes, raw: bytes | None, folders: Mapping[str, str | None]
    ) -> RecordRow:
        name = f"row={number}"
        if self.id is not None and (refused := id_problem(id or "")):
            return RecordRow(name, number, {}, refused=f"{refused} (in column {self.id!r})")
        size = len(text) + len(raw or b"")
        if size > self.max_bytes:
            return RecordRow(name, number, {}, id=id, refused=f"{size} bytes, more than max_bytes={self.max_bytes}")
        return RecordRow(name, number, {**folders, **decode_fields(text)}, raw, id)


def _table_of(file: str) -> str:
    """Return which kind of table has this file as part of its log; "" if it is none's."""
    return "Delta" if _DELTA.search(file) else "Iceberg" if _ICEBERG.search(file) else ""


def _folder_values(file: str) -> dict[str, str | None]:
    """Return the values of folders named ``column=value``, as Hive and Spark lay out a table."""
    found: dict[str, str | None] = {}
    for folder in file.split("/")[:-1]:
        name, equals, value = unquote(folder).partition("=")
        if name and equals:
            found[name] = None if value == _NULL_VALUE else unquote(value)
    return found


def _batches(opened: ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in batches of about ``_BATCH_BYTES``.

    None spans two row groups: pyarrow makes invalid arrays of a struct's nulls there (seen in 26.0).
    """
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        rows = _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
        yield from opened.iter_batches(max(1, min(_BATCH_ROWS, rows)), [number], columns, use_threads=False)
