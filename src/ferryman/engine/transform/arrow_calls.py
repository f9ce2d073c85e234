"""Functions of record batches as functions of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import pyarrow as pa

from ferryman.document import Document
from ferryman.engine.transform.returned import kind_of
from ferryman.errors import PermanentError, plain_text
from ferryman.plan.calls import is_async


def on_record_batches(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    """Called with documents, it calls ``fn`` with a record batch of them. A document is its row then: its fields, and
    ``raw``, are those that the row has; None where its row is missing."""

    def called(docs: list[Document]) -> list[Document | None]:
        given = Given(docs)
        return given.matched(fn(given.batch))

    async def awaited(docs: list[Document]) -> list[Document | None]:
        given = Given(docs)
        return given.matched(await fn(given.batch))

    return awaited if is_async(fn) else called


class Given:
    """Documents as a record batch.

    Attributes:
        batch: columns ``id``, ``raw``, and one for each field that a document has.

    Raises:
        PermanentError: they do not make one.
    """

    def __init__(self, docs: list[Document]) -> None:
        self._docs = docs
        names = dict.fromkeys(name for doc in docs for name in doc.fields)
        if all(doc.fields.get("id", doc.id) == doc.id for doc in docs):
            names.pop("id", None)  # such as a table's rows have it: one column is both
        for name in ("id", "raw"):
            if name in names:
                raise PermanentError(
                    f"a field is called {name!r}, as a column of each record batch is: rename it in a step before this "
                    "one"
                )
        self._values: dict[str, list[Any]] = {name: [doc.fields.get(name) for doc in docs] for name in names}
        raws = pa.array([doc.raw for doc in docs], pa.large_binary())
        columns = [pa.array([doc.id for doc in docs], pa.string()), raws]
        for name, values in self._values.items():
            try:
                columns.append(pa.array(values))
            except Exception as e:  # Arrow's own errors, overflows, and what an object's conversion raises
                raise PermanentError(f"field {name!r} does not make one Arrow column: {plain_text(e)}") from None
        self.batch = pa.RecordBatch.from_arrays(columns, ["id", "raw", *names])

    def matched(self, out: Any) -> list[Document | None]:
        """Each document as its row; None where that is missing.

        Raises:
            PermanentError: what the step returned does not match.
        """
        if not isinstance(out, (pa.RecordBatch, pa.Table)):
            raise PermanentError(f"returned {kind_of(out)}, not a pyarrow.RecordBatch")
        names = out.schema.names
        if "id" not in names:
            raise PermanentError("returned a record batch without its column 'id', by which rows and documents match")
        if len(set(names)) < len(names):
            raise PermanentError("returned a record batch with two columns of one name")
        if isinstance(out, pa.RecordBatch) and self._takes_columns(out):
            return list(self._docs)
        return self._by_row(out)

    def _takes_columns(self, out: pa.RecordBatch) -> bool:
        """Take the columns as they are, if each document has its row, in its place, and each row all fields."""
        given, names = self.batch, [name for name in out.schema.names if name not in ("id", "raw")]
        if not out["id"].equals(given["id"]) or any(out[name].null_count for name in names):
            return False
        columns = []
        for name in names:
            is_given = name in self._values
            if is_given and out[name].equals(given[name]):
                columns.append(self._values[name])
            elif is_given and not _is_exact(given[name].type):
                return False  # of some documents it may be as it was
            else:
                columns.append(out[name].to_pylist())
        raws: list[bytes | None] = [None] * len(self._docs)
        if "raw" in out.schema.names:
            raws = [doc.raw for doc in self._docs] if out["raw"].equals(given["raw"]) else out["raw"].to_pylist()
        rows = zip(*columns, strict=True) if columns else repeat(())
        for doc, raw, row in zip(self._docs, raws, rows, strict=bool(columns)):
            doc.raw = raw
            _set_fields(doc, zip(names, row, strict=True))
        return True

    def _by_row(self, out: pa.RecordBatch | pa.Table) -> list[Document | None]:
        given, names = self.batch, out.schema.names
        loose = [name for name in given.schema.names if name in names and not _is_exact(given.schema.field(name).type)]
        before = given.select(loose).to_pylist() if loose else [{}] * len(self._docs)
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in out.to_pylist():
            rows.setdefault(row.pop("id"), []).append(row)
        found: list[Document | None] = []
        for doc, as_given in zip(self._docs, before, strict=True):
            mine = rows.get(doc.id)
            found.append(_taken(doc, mine.pop(0), as_given) if mine else None)
        for id, left in rows.items():
            if left:
                raise PermanentError(f"returned a row for {id!r} that it was not called with, or a second one")
        return found


def _taken(doc: Document, row: dict[str, Any], as_given: dict[str, Any]) -> Document:
    """The document is its row. A value that the step has left alone stays as it was: Arrow may hold it in other words,
    such as 1.0 for 1, or an object with the names of all."""
    doc.raw = row.pop("raw", None)
    fields = doc.fields
    kept = {name for name, value in as_given.items() if name in fields and row.get(name) == value}
    now = {name: fields[name] if name in kept else value for name, value in row.items()}
    _set_fields(doc, ((name, value) for name, value in now.items() if value is not None or name in kept))
    return doc


def _set_fields(doc: Document, now: Iterable[tuple[str, Any]]) -> None:
    """All but the one that is its id."""
    fields = doc.fields
    has_id = "id" in fields
    fields.clear()
    if has_id:
        fields["id"] = doc.id
    fields.update(now)


def _is_exact(of: pa.DataType) -> bool:
    """Do values of this type come back as they went?"""
    return any(kind(of) for kind in (pa.types.is_string, pa.types.is_large_binary, pa.types.is_boolean))
