"""Rows that no destination has confirmed: they wait in the outbox, or are held there for review.

A delete leaves ``given`` when it is committed. Until it is confirmed the document may still be there; so a newer
version, or a document that vanishes, takes it up again, or a delete that ends as DEAD would be forgotten with the
revision that it belongs to.

An upsert stands in ``given`` from its commit on, with its content where a step has asked for that. Until it is
confirmed nobody knows what the destination has; so its family's contents are forgotten, and all of it is sent again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import duckdb
import pyarrow as pa

from ferryman.records.family import Published, encode_published
from ferryman.records.schemas import OUTBOX, OUTBOX_CONTENT, OUTBOX_PARTITION
from ferryman.storage import parquet
from ferryman.storage.query import quoted, stream
from ferryman.storage.tables import Table

UNCONFIRMED: Final = pa.schema(
    [
        ("h", pa.uint64()),
        ("destination", pa.string()),
        ("origin", pa.string()),
        ("document", pa.string()),
        ("route", pa.string()),
        ("revision", pa.int64()),
        ("waits", pa.bool_()),
    ]
)
"""A row that waits, or is held for review: ``document`` is null if it is an upsert. ``h``: the hash of its origin."""

_COLUMNS: Final = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, *OUTBOX_CONTENT)])

_OF_VERDICT: Final = """
    SELECT u.origin, u.document, u.route, u.destination
    FROM unconfirmed u JOIN compared v ON u.origin = v.id
    WHERE u.waits OR u.revision = v.revision  -- what is held for an older revision was processed when that ended
    ORDER BY ALL
"""


def unconfirmed(db: duckdb.DuckDBPyConnection, outbox: Table, source: str) -> Iterator[pa.RecordBatch]:
    """All such rows of a source."""
    by_destination: dict[str, list[str]] = defaultdict(list)
    for file in outbox.files.values():
        by_destination[file.partition["destination"]].append(file.path)
    for destination, paths in by_destination.items():
        db.register("outbox", parquet.scan(outbox.paths(paths), _COLUMNS))
        yield from stream(
            db,
            f"""
            SELECT origin, {quoted(destination)}, origin, CASE operation WHEN 'delete' THEN document END,
                route, revision, due IS NOT NULL
            FROM outbox WHERE source = {quoted(source)}
            """,
            UNCONFIRMED,
        )
        db.unregister("outbox")


def unconfirmed_of(db: duckdb.DuckDBPyConnection, compared: pa.Table) -> tuple[list[str | None], list[bool]]:
    """Of each compared row (``id``, ``revision``), from the relation ``unconfirmed``: deletes that count as given,
    as ``given`` has them, for they are not taken out yet; and whether an upsert of its family waits."""
    deletes: dict[str, list[Published]] = defaultdict(list)
    unsure: set[str] = set()
    db.register("compared", compared)
    for origin, document, route, destination in db.execute(_OF_VERDICT).fetchall():
        if document is None:
            unsure.add(origin)
        else:
            deletes[origin].append(Published(document[len(origin) :], route, destination))
    db.unregister("compared")
    ids = compared["id"].to_pylist()
    return [encode_published(deletes[id]) if id in deletes else None for id in ids], [id in unsure for id in ids]
