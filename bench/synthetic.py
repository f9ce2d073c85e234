"""States of any size made without a run: tables and a listing as a run would make them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.engine.results import ListedPart, Listing
from ferryman.engine.tasks import LISTING
from ferryman.plan import Plan, SourceNode
from ferryman.records.families import Published, encode_published
from ferryman.records.rows import DOCUMENTS, LEDGER, table_of
from ferryman.sources import Memory
from ferryman.state.outbox import due_stats
from ferryman.state.state import SEQUENCE, SETTLED, WAVE, State
from ferryman.storage.parquet import write_part
from ferryman.storage.tables import Table

_ROWS = 65_536


def ids(first: int, end: int) -> list[str]:
    """Return ids of 45 characters, like paths of files."""
    return [id_of(n) for n in range(first, end)]


def id_of(n: int) -> str:
    """Return the id of the document of this number."""
    return f"contracts/2024/region-{n % 97:02d}/file-{n:011d}.pdf"


def documents_table(folder: Path, count: int, *, children: int = 0, revisions: int = 1, forced: bool = False) -> Table:
    """Make the table ``documents`` of a source ``docs``; every file has up to 65 536 rows."""
    table = Table(folder, DOCUMENTS, [])
    table.create()
    table.load()
    table.fence("bench", 1)
    given = encode_published((Published("", "", "out"), *(Published(f"#{n}", "", "out") for n in range(children))))
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
            parts.append(table.data_file(write_part(folder, rows, epoch=1)))
    table.commit("documents", adds=parts)
    return table


def listing_of(
    folder: Path, count: int, revision: int, *, first: int = 0, only: Callable[[int], bool] = lambda n: True
) -> Listing:
    """Make a listing of documents in this revision, 65 536 to a file; only those whose number passes ``only``."""
    parts = []
    for start, end in blocks(count - first):
        start, end = start + first, end + first
        numbers = [n for n in range(start, end) if only(n)]
        path = str(folder / f"listed-{start:011d}.parquet")
        rows = table_of(
            LISTING,
            len(numbers),
            row=np.arange(len(numbers)),
            id=[id_of(n) for n in numbers],
            size=1000,
            fingerprint="",
            location="",
            version=[version_of(n, revision) for n in numbers],
        )
        pq.write_table(rows, path, compression="none", use_dictionary=False, row_group_size=16_384)
        parts.append(ListedPart("docs", path, len(numbers), 1000 * len(numbers), None))
    plan = Plan("sizes", version=1)
    plan.source("docs", Memory([]))
    [node] = [node for node in plan.nodes if isinstance(node, SourceNode)]
    return Listing(node, parts)


def versions(first: int, end: int, revision: int) -> list[str]:
    """Return versions as long as content versions."""
    return [version_of(n, revision) for n in range(first, end)]


def version_of(n: int, revision: int) -> str:
    """Return the version of the document of this number."""
    return f"{n:056x}{revision:08x}"


def hash_of(n: int, revision: int) -> str:
    """Return the hash of the delivery of the document of this number."""
    return f"{hash((n, revision)) & (1 << 64) - 1:016x}{n:016x}"


def blocks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _ROWS):
        yield first, min(first + _ROWS, count)


def empty_outbox(folder: Path) -> Any:
    from ferryman.records.rows import OUTBOX, OUTBOX_PARTITION

    table = Table(folder, OUTBOX, OUTBOX_PARTITION)
    table.create()
    table.load()
    table.fence("bench", 1)
    return table


def state(root: Path, plan: Plan, count: int, *, revisions: int = 1, dead: int = 0, dead_every: int = 0) -> None:
    """Make a state in which documents were delivered once for each revision.

    Args:
        dead: number of the first documents that failed in a step.
        dead_every: distance of others that failed, too; 0: none.
    """
    with State.take(root, plan) as new_state:
        documents, ledger = [], []
        given = encode_published((Published("", "", "out"),))
        for revision in range(1, revisions + 1):
            for first, end in blocks(count):
                n = end - first
                document, version = ids(first, end), versions(first, end, revision)
                order = np.arange(first, end)
                failed = (order < dead) & (revision == revisions)
                if dead_every and revision == revisions:
                    failed |= order % dead_every == 0
                rows = table_of(
                    DOCUMENTS,
                    n,
                    source="docs",
                    document=document,
                    version=version,
                    revision=revision,
                    fingerprint="",
                    operation="upsert",
                    wave=revision,
                    given=given,
                    owed=0,
                    forced=pa.repeat(False, n),
                )
                documents.append(
                    new_state.documents.data_file(
                        write_part(new_state.documents.folder, rows, epoch=new_state.epoch, stats=due_stats([None] * n))
                    )
                )
                event = table_of(
                    LEDGER,
                    n,
                    source="docs",
                    document=document,
                    origin=document,
                    version=version,
                    revision=revision,
                    operation="upsert",
                    route="",
                    branches="",
                    destination="out",
                    delivery_hash=[hash_of(i, revision) for i in range(first, end)],
                    status=np.where(failed, "DEAD", "INDEXED"),
                    message=[
                        f"{id}: step parse: ValueError: line {at % 9} of 'it' is torn" if bad else None
                        for id, at, bad in zip(document, order.tolist(), failed.tolist(), strict=True)
                    ],
                    attempt=1,
                    wave=revision,
                    ordinal=2,
                    created=dt.datetime.now(dt.UTC),
                )
                ledger.append(
                    new_state.ledger.data_file(write_part(new_state.ledger.folder, event, epoch=new_state.epoch))
                )
        new_state.ledger.commit("version", adds=ledger, transactions={SETTLED: revisions})
        new_state.documents.commit("version", adds=documents, transactions={SETTLED: revisions})
        numbers = {SETTLED: revisions, WAVE: revisions, SEQUENCE: new_state.next_sequence + count}
        new_state.outbox.commit("version", transactions=numbers)
        new_state.journal.close(revisions)
