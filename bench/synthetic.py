"""States of any size without a run: tables of ``documents`` and a listing, as a run would have made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ferryman.engine.scan.listing import LISTING, ListedPart, Listing
from ferryman.ledger.events import table_of
from ferryman.ledger.family import Given, encode_given
from ferryman.ledger.schemas import DOCUMENTS
from ferryman.plan import Plan, SourceNode
from ferryman.sources import Memory
from ferryman.storage.parquet import write_part
from ferryman.storage.tables import Table

_ROWS = 65_536


def ids(first: int, end: int) -> list[str]:
    """Of 45 characters, as files have them."""
    return [f"contracts/2024/region-{n % 97:02d}/file-{n:011d}.pdf" for n in range(first, end)]


def documents_table(folder: Path, count: int, *, children: int = 0, revisions: int = 1, forced: bool = False) -> Table:
    """``documents`` of a source ``docs``; every file has up to 65 536 rows."""
    table = Table(folder, DOCUMENTS, [])
    table.create()
    table.load()
    table.fence("bench", 1)
    given = encode_given((Given("", "", "out"), *(Given(f"#{n}", "", "out") for n in range(children))))
    parts = []
    for revision in range(1, revisions + 1):
        for first, end in blocks(count):
            rows = table_of(
                DOCUMENTS,
                end - first,
                source="docs",
                document=ids(first, end),
                version=versions(first, end, revision),
                revision=revision,
                fingerprint=f"{revision}",
                operation="upsert",
                wave=revision,
                given=given,
                owed=0,
                forced=forced and revision == revisions,
            )
            parts.append(table.data_file(write_part(folder, rows)))
    table.commit("documents", adds=parts)
    return table


def listing_of(folder: Path, count: int, revision: int, *, first: int = 0) -> Listing:
    """All these documents in this revision, 65 536 to a file."""
    parts = []
    for start, end in blocks(count - first):
        start, end = start + first, end + first
        path = str(folder / f"listed-{start:011d}.parquet")
        rows = table_of(
            LISTING,
            end - start,
            row=np.arange(end - start),
            id=ids(start, end),
            size=1000,
            fingerprint="",
            location="",
            version=versions(start, end, revision),
        )
        pq.write_table(rows, path, compression="none", use_dictionary=False, row_group_size=16_384)
        parts.append(ListedPart("docs", path, end - start, 1000 * (end - start), None))
    plan = Plan("sizes", version=1)
    plan.source("docs", Memory([]))
    [node] = [node for node in plan.nodes if isinstance(node, SourceNode)]
    return Listing(node, parts)


def versions(first: int, end: int, revision: int) -> list[str]:
    """As long as content versions are."""
    return [f"{n:056x}{revision:08x}" for n in range(first, end)]


def blocks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _ROWS):
        yield first, min(first + _ROWS, count)


def empty_outbox(folder: Path) -> Any:
    from ferryman.ledger.schemas import OUTBOX, OUTBOX_PARTITION

    table = Table(folder, OUTBOX, OUTBOX_PARTITION)
    table.create()
    table.load()
    table.fence("bench", 1)
    return table
