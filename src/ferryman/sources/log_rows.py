"""Entries of a log as Arrow tables; not in ``sources.log``, because pyarrow takes long to load."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

ROWS: Final = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("version", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("dropped", pa.string()),
        pa.field("provenance", pa.string()),
    ]
)
"""Columns of ``Log.rows``; in each row either ``fields`` or ``refused`` is not null."""


def table_of_entries(rows: list[tuple[Any, ...]]) -> pa.Table:
    """Convert rows, with values in the order of ``ROWS``, to a table."""
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS)
