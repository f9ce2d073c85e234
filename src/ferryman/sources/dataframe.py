"""Rows of a Spark DataFrame."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.document import Document, decode_fields
from ferryman.errors import BadDocument, UsageError
from ferryman.sources.base import Detect, Source

if TYPE_CHECKING:
    import pyarrow as pa

_ID_TYPES: Final = ("string", "char", "varchar", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
# Names of Spark's types that cannot be converted for Python, also inside other types, but not as the name of a field:
# struct<variant:int>.
_OPAQUE: Final = re.compile(r"(?:^|[:<,])(variant|geometry|geography|interval (?:year|month))\b(?!:)")
_SHOWN_CHARACTERS: Final = 200  # characters shown of a row without an id: enough to find it


class DataFrame(Source):
    """Rows of any Spark DataFrame: ``DataFrame(lambda spark: spark.table("sales.orders"), id="order_no")``.

    Each column is a field, the id's too; there are no raw bytes. Values become what JSON has: null, NaN and the
    infinite numbers null; structs, arrays and maps objects and arrays (keys of maps as text); dates and times text as
    in ISO 8601 (a timestamp in UTC, ``2024-05-01T10:00:00Z``, whatever the session's time zone; one without time zone
    as it is); decimals text, exact to the last digit; binary base64; day-time intervals ISO 8601 durations. Spark's
    VARIANT, GEOMETRY and year-month intervals are refused: make text of them in ``read``.

    The id is text, or a number, of which the text is taken. A row whose id is null or empty cannot be named. All other
    rows are listed, but the listing counts as incomplete, and says so: nothing is deleted while there are such rows.

    The engine does not ask a table for ``partitions`` and ``listing``. It calls ``read`` in the driver, once per scan,
    and ``columns`` in the workers, once per partition of the DataFrame, with its rows as Arrow batches. After a crash
    both are called again.

    Args:
        read: a function of the SparkSession that returns a DataFrame. It stays in the driver.
        id: name of the column that holds the id, unique in the table.
        prefix, detect, max_deleted: see ``Source``.
    """

    runs_queries = True

    def __init__(
        self,
        read: Callable[[Any], Any],
        id: str = "id",
        *,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if not callable(read):
            raise UsageError(
                f"DataFrame({read!r}): give a function of the SparkSession: DataFrame(lambda spark: spark.table(…))."
            )
        self._read: Callable[[Any], Any] | None = read
        self.id = id

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}  # it may hold a DataFrame or a session, which cannot be pickled

    def __repr__(self) -> str:
        return f"DataFrame(…, id={self.id!r})"

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function of the SparkSession.

        Raises:
            UsageError: this is a worker's copy, which has none.
        """
        if self._read is None:
            raise UsageError("DataFrame: its function stays in the program that made it; a pickled copy cannot read.")
        return self._read

    def read(self, spark: Any) -> Any:
        """The DataFrame, in the driver.

        Raises:
            UsageError: ``read`` returned no DataFrame, or one without the id's column, with two columns of one name,
                or with a type that cannot become JSON; names the column.
        """
        from ferryman.sources.arrow import (
            check_names,
            id_type_error,  # brings pyarrow, which building a plan does not need
        )

        frame = self.function(spark)
        types = getattr(frame, "dtypes", None)
        if not isinstance(types, list):
            raise UsageError(
                f"DataFrame: read returned a {type(frame).__name__}, not one of Spark's. Is a `return` missing?"
            )
        check_names([name for name, _ in types], self.id, "DataFrame")
        for name, kind in types:
            opaque = _OPAQUE.search(kind)
            if opaque is not None:
                raise UsageError(
                    f"DataFrame: column {name!r} holds {opaque[1]}, which JSON cannot hold. Cast it or drop it in read."
                )
            if name == self.id and kind.partition("(")[0] not in _ID_TYPES:
                raise UsageError(id_type_error(name, kind, "DataFrame"))
        return frame

    def columns(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[str], list[bytes]]]:
        """Ids (without prefix) and encoded fields of each batch's rows, in their order; in a worker.

        The fields are what ``encode_fields`` makes of them. Rows without an id are left out, and counted.

        Raises:
            UsageError: there is no such column, or ids cannot be made of it.
            BadDocument: some rows have no id; raised after the last batch.
        """
        from ferryman.sources.arrow import encode_batches

        rows = without_id = 0
        example = b""
        for ids, fields in encode_batches(batches, self.id, "DataFrame"):
            rows += len(ids)
            if None in ids or "" in ids:
                example = example or next(text for id, text in zip(ids, fields, strict=True) if not id)
                named = [(id, text) for id, text in zip(ids, fields, strict=True) if id]
                without_id += len(ids) - len(named)
                yield [id for id, _ in named], [text for _, text in named]
            else:
                yield ids, fields  # type: ignore[misc]  # there is no None in ids
        if without_id:
            raise BadDocument(
                f"{without_id} of {rows} rows have no {self.id!r} (null or empty) and cannot be documents. The first "
                f"is {_short_row(example)}. Give them an id, or leave them out in read: "
                f'.where("{self.id} is not null").'
            )

    def documents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Document]:
        """Convert rows to documents."""
        for ids, fields in self.columns(batches):
            for id, text in zip(ids, fields, strict=True):
                yield Document.of(id, decode_fields(text))


def _short_row(row: bytes) -> str:
    text = row.decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
