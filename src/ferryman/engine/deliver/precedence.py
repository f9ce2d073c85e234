"""Deliver, in the driver: of several pending rows of one document the oldest goes first, the others are held.

A newer revision waits for every row of an older one. Within a revision (a retry may add to it) a row waits for those of
the same route that were committed before it; copies by different routes have no order among each other. What keyed
nodes have exported goes by another order, see ``key_heads``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from ferryman import limits
from ferryman.storage.parquet import read_part
from ferryman.storage.query import connect

Numbers = np.ndarray[Any, Any]


class SendOrder(NamedTuple):
    """What the order of documents says about rows of one outbox file, by their ``row``."""

    first: Numbers
    """Others wait for these: they go now, due or not."""
    held: Numbers
    """They wait for these."""


class _Pending(NamedTuple):
    """Pending rows, an array a column. Documents and routes are hashes: a collision holds a row for a pass, no more."""

    file: Numbers
    row: Numbers
    document: Numbers
    route: Numbers
    revision: Numbers
    sequence: Numbers

    def take(self, at: Numbers) -> _Pending:
        return _Pending(*(column[at] for column in self))


def order_of(
    files: Mapping[int, Path], pending: int, spill: Path, share_rows: int = limits.CONTEST_ROWS
) -> dict[int, SendOrder]:
    """Key of each outbox file with contested rows -> what is said about them.

    Args:
        files: key (first sequence) -> file, all of one destination.
        pending: how many pending rows they have, about.
        spill: a folder of this process, see ``query.connect``.
        share_rows: rows that are compared at once; more are taken in shares, by a hash of their documents.
    """
    shares = max(1, -(-pending // share_rows))
    found: dict[int, list[SendOrder]] = {}
    with connect(spill) as db:
        for share in range(shares):
            columns = list(zip(*_read(db, files, share, shares), strict=True))
            if columns:
                for key, order in _compare(_Pending(*map(np.concatenate, columns))):
                    found.setdefault(key, []).append(order)
    return {key: SendOrder(*map(np.concatenate, zip(*orders, strict=True))) for key, orders in found.items()}


def _read(db: duckdb.DuckDBPyConnection, files: Mapping[int, Path], share: int, shares: int) -> Iterator[_Pending]:
    for key, path in files.items():
        table = read_part(path, ["row", "source", "document", "route", "revision", "due", "key_hash"])
        db.register("rows", table.set_column(0, "row", table["row"].cast(pa.int64())))
        columns = db.execute(f"""
            SELECT "row", hash(source, document) AS document, hash(route) AS route, revision FROM rows
            WHERE due IS NOT NULL AND key_hash IS NULL AND hash(source, document) % {shares} = {share}
        """).fetchnumpy()
        row, document, route, revision = (np.asarray(columns[c]) for c in ("row", "document", "route", "revision"))
        yield _Pending(np.full(len(row), key), row, document, route, revision, row + key)


def _compare(rows: _Pending) -> Iterator[tuple[int, SendOrder]]:
    rows = rows.take(np.lexsort((rows.sequence, rows.revision, rows.document)))
    document = _groups(rows.document)
    oldest = rows.revision[np.searchsorted(document, document)]
    held = rows.revision > oldest
    among = np.flatnonzero(~held)
    among = among[np.lexsort((rows.sequence[among], rows.route[among], document[among]))]
    way = _groups(document[among], rows.route[among])
    held[among[1:][way[1:] == way[:-1]]] = True
    contested = np.zeros(len(document), bool)
    contested[document[held]] = True  # by the number of the group
    first = contested[document] & ~held
    for key in np.unique(rows.file[first | held]):
        of_file = rows.file == key
        yield int(key), SendOrder(rows.row[of_file & first], rows.row[of_file & held])


def _groups(*sorted_columns: Numbers) -> Numbers:
    """The number of each row's group, from 0: neighbours that are equal in all columns are one."""
    changes = np.zeros(len(sorted_columns[0]), bool)
    for column in sorted_columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.cumsum(changes)
