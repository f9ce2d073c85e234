"""Columns of the three tables, as users of Spark, DuckDB and Polars find them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_DELIVERY: Final = [
    pa.field("source", pa.string()),
    pa.field("document", pa.string()),
    pa.field("parent", pa.string()),
    pa.field("origin", pa.string()),
    pa.field("version", pa.string()),
    pa.field("revision", pa.int64()),
    pa.field("operation", pa.string()),
    pa.field("route", pa.string()),
    pa.field("branches", pa.string()),
]

LEDGER: Final = pa.schema(
    [
        *_DELIVERY,
        pa.field("destination", pa.string()),
        pa.field("delivery_hash", pa.string()),
        pa.field("status", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("wave", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("transient", pa.int64()),
        pa.field("created", pa.timestamp("us", tz="UTC")),
    ]
)
"""One row an event. ``attempt``: attempts made. ``due``: when an ERROR is tried again, µs since 1970; ``since`` and
``transient`` then, as in the outbox. Events of a delivery are ordered by (wave, ordinal). Empty ``destination``: the
event is about the document."""

LEDGER_COLUMNS: Final = [f.name for f in LEDGER if f.name not in ("ordinal", "due", "since", "transient")]
"""The public ones, in their public order."""

DOCUMENTS: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("document", pa.string()),
        pa.field("version", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("wave", pa.int64()),
        pa.field("given", pa.string()),
        pa.field("due", pa.int64()),
        pa.field("owed", pa.int64()),
        pa.field("failed", pa.string()),
        pa.field("held", pa.string()),
        pa.field("forced", pa.bool_()),
        pa.field("again", pa.int64()),
    ]
)
"""The last row of a (source, document) by ``wave`` counts. ``given``: what destinations were given of its family, JSON;
"" if nothing. ``due``: when failed steps are tried again (µs since 1970; null: no step has failed), for how many
deliveries (``owed``), and where they failed (``failed``, JSON); see ``family``. ``held``: the nodes in trouble that all
of these wait for, a line each; null: it waits for its time only. ``forced``: an operator wants it read
again as a new revision. ``again``: when a step wants that (µs since 1970; null: never)."""

OUTBOX: Final = pa.schema(
    [
        pa.field("wave", pa.int64()),
        pa.field("destination", pa.string()),
        pa.field("first_sequence", pa.int64()),
        pa.field("row", pa.int64()),
        *_DELIVERY,
        pa.field("delivery_hash", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("transient", pa.int64()),
        pa.field("key_hash", pa.int64()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("provenance", pa.string()),
    ]
)
"""One row a committed delivery that has not left. Sequence = ``first_sequence`` + ``row``. ``attempt``: attempts made.
``due``: µs since 1970, 0 = now; null: held for review (dead, rejected, in doubt). ``since``: its first
transient error, µs since 1970; ``transient``: how many attempts ended so; null: none did. ``key_hash``: of what a keyed
node exports, its key, see ``keyed.key_hash``; null: of everything else. ``fields`` is JSON, ``provenance`` too: of what
comes from a log, where it came from."""

OUTBOX_PARTITION: Final = ["wave", "destination", "first_sequence"]

OUTBOX_FILE: Final = pa.schema([f for f in OUTBOX if f.name not in OUTBOX_PARTITION])
"""Columns inside an outbox file."""

OUTBOX_CONTENT: Final = ["fields", "raw", "provenance"]
"""The large columns of the outbox."""

OUTBOX_KEPT: Final = [name for name in OUTBOX_FILE.names if name not in OUTBOX_CONTENT]
"""The others: those of a whole file fit into memory."""

RANGE: Final = "range "
"""What the version of a range begins with, and no document's: entries of a log that an at-most-once plan has taken
together, and of which more is not known. Its row in ``ledger`` is like one of a document."""
