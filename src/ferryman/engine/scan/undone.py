"""Rows that no destination has confirmed: they wait in the outbox, or are parked there.

A delete leaves ``given`` when it is committed. Until it is confirmed the document may still be there; so a newer
version, or a document that vanishes, takes it up again, or a delete that ends as DEAD would be forgotten with the
revision that it belongs to.

An upsert stands in ``given`` from its commit on, with its content where a step has asked for that. Until it is
confirmed nobody knows what the destination has; so its family's contents are forgotten, and all of it is sent again.
"""

from __future__ import annotations

from collections import defaultdict

import duckdb
import pyarrow as pa

from ferryman.ledger.family import CONTENT, Given, decode_given, encode_given
from ferryman.ledger.schemas import OUTBOX, OUTBOX_PARTITION
from ferryman.storage import parquet
from ferryman.storage.query import quoted
from ferryman.storage.tables import Table

_COLUMNS = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, "fields", "raw")])


class Undone:
    """Adds them to what is known of documents that are taken up.

    Args:
        documents: query for the documents taken up: ``id``, ``known_revision``, ``given``.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, outbox: Table, source: str, documents: str) -> None:
        self._given: dict[str, list[Given]] = defaultdict(list)
        self._unsure: set[str] = set()
        """Families of which an upsert waits."""
        by_destination: dict[str, list[str]] = defaultdict(list)
        for file in outbox.files.values():
            by_destination[file.partition["destination"]].append(file.path)
        for destination, paths in by_destination.items():
            db.register("waiting", parquet.scan([outbox.folder / path for path in paths], _COLUMNS))
            # What is parked for an older revision was taken up when that ended.
            found = db.execute(f"""
                SELECT w.origin, w.document, w.route FROM waiting w JOIN ({documents}) d ON w.origin = d.id
                WHERE w.operation = 'delete' AND w.source = {quoted(source)}
                    AND (w.due IS NOT NULL OR w.revision = d.known_revision)
                ORDER BY ALL
            """).fetchall()
            unsure = db.execute(f"""
                SELECT DISTINCT d.id FROM waiting w JOIN ({documents}) d ON w.origin = d.id
                WHERE w.operation = 'upsert' AND w.source = {quoted(source)} AND contains(d.given, ',"{CONTENT}')
                    AND (w.due IS NOT NULL OR w.revision = d.known_revision)
            """).fetchall()
            self._unsure |= {id for (id,) in unsure}
            db.unregister("waiting")
            for origin, document, route in found:
                self._given[origin].append(Given(document[len(origin) :], route, destination))

    def added_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with ``id`` and ``given``: these deletes count as given, for they are not taken out yet."""
        if not self._given and not self._unsure:
            return batch
        given = [
            self._amended(id, text)
            for id, text in zip(batch.column("id").to_pylist(), batch.column("given").to_pylist(), strict=True)
        ]
        at = batch.schema.get_field_index("given")
        return batch.set_column(at, batch.schema.field(at), pa.array(given, batch.schema.field(at).type))

    def _amended(self, id: str, text: str | None) -> str | None:
        given = [*decode_given(text or ""), *self._given.get(id, ())]
        if id in self._unsure:
            given = [Given(*each.place) for each in given]
        elif id not in self._given:
            return text
        return encode_given(tuple({each.place: each for each in given}.values()))
