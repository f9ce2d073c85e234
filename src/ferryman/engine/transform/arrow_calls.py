"""Functions of record batches as functions of documents."""

from __future__ import annotations

from collections.abc import Callable
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
        given = _record_batch(docs)
        return _matched(fn(given), given, docs)

    async def awaited(docs: list[Document]) -> list[Document | None]:
        given = _record_batch(docs)
        return _matched(await fn(given), given, docs)

    return awaited if is_async(fn) else called


def _record_batch(docs: list[Document]) -> pa.RecordBatch:
    """Columns ``id``, ``raw``, and one for each field that a document has."""
    names = dict.fromkeys(name for doc in docs for name in doc.fields)
    for name in ("id", "raw"):
        if name in names:
            raise PermanentError(
                f"a field is called {name!r}, as a column of each record batch is: rename it in a step before this one"
            )
    columns = [pa.array([doc.id for doc in docs], pa.string()), pa.array([doc.raw for doc in docs], pa.large_binary())]
    for name in names:
        try:
            columns.append(pa.array([doc.fields.get(name) for doc in docs]))
        except Exception as e:  # Arrow's own errors, overflows, and what an object's conversion raises
            raise PermanentError(f"field {name!r} does not make one Arrow column: {plain_text(e)}") from None
    return pa.RecordBatch.from_arrays(columns, ["id", "raw", *names])


def _matched(out: Any, given: pa.RecordBatch, docs: list[Document]) -> list[Document | None]:
    if not isinstance(out, (pa.RecordBatch, pa.Table)):
        raise PermanentError(f"returned {kind_of(out)}, not a pyarrow.RecordBatch")
    names = out.schema.names
    if "id" not in names:
        raise PermanentError("returned a record batch without its column 'id', by which rows and documents match")
    if len(set(names)) < len(names):
        raise PermanentError("returned a record batch with two columns of one name")
    loose = [name for name in given.schema.names if name in names and not _is_exact(given.schema.field(name).type)]
    before = given.select(loose).to_pylist() if loose else [{}] * len(docs)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in out.to_pylist():
        rows.setdefault(row.pop("id"), []).append(row)
    found: list[Document | None] = []
    for doc, as_given in zip(docs, before, strict=True):
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
    fields.clear()
    fields.update((name, value) for name, value in now.items() if value is not None or name in kept)
    return doc


def _is_exact(of: pa.DataType) -> bool:
    """Do values of this type come back as they went?"""
    return any(kind(of) for kind in (pa.types.is_string, pa.types.is_large_binary, pa.types.is_boolean))
