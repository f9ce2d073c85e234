"""Scan: of which ids do the listing and ``documents`` not say the same?

Only hashes are compared, 24 bytes a row, a part of them at a time: whatever the sizes, and whatever the query engine
does, this takes the same memory. What is found is looked at again by its whole id, so that two ids of one hash do not
matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ferryman import limits
from ferryman.storage.query import stream
from ferryman.storage.spread import Marks, Spread, look_up, part_of, partitions_for

_LISTED: Final = pa.schema([("h", pa.uint64()), ("v", pa.uint64()), ("f", pa.uint64())])
_KNOWN: Final = pa.schema([*_LISTED, ("wave", pa.int64()), ("flags", pa.uint8())])
_TAKEN: Final = pa.schema([("h", pa.uint64())])

SETTLED: Final = 1
"""It may be left alone if its version is the same."""
LIVE: Final = 2
"""It is at the source, as far as is known."""
WAITING: Final = 4
"""A failed step or an operator waits for it."""


_Array = np.ndarray[Any, Any]


class Candidates(Marks):
    """What has to be looked at by its id. Some more may be among it.

    Attributes:
        known: documents of the source that were there when it was last listed.
        any_known: was anything ever known of it?
        special: ids that are listed twice, or taken by a conflicting source; as hashes.
        rows: rows of listing and ``documents`` that are suspect, about.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known = 0
        self.any_known = False
        self.special = 0
        self.rows = 0


class Queries:
    """The rows to compare, as queries of one connection.

    Args:
        listed: ``h`` of the id, ``v`` of the version, ``f`` of the fingerprint, a row each.
        known: the same of ``documents``, with ``wave`` and ``flags``.
        taken: ``h`` of ids that are taken by a conflicting source; None: there is none.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, listed: str, known: str, taken: str | None) -> None:
        self.listed = (f"SELECT h, v, f FROM ({listed})", _LISTED)
        self.known = (f"SELECT h, v, f, wave, flags FROM ({known})", _KNOWN)
        self.taken = None if taken is None else (f"SELECT h FROM ({taken})", _TAKEN)
        self._db = db

    def stream(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A query's rows in these columns, few at a time."""
        return stream(self._db, query, schema)


def find_candidates(queries: Queries, folder: Path, rows: int, *, only_waiting: bool, with_gone: bool) -> Candidates:
    """Compare.

    Args:
        rows: of listing and ``documents``, about.
        only_waiting: only what is WAITING.
        with_gone: also what is LIVE and not listed.
    """
    parts = partitions_for(rows, 0, limits.COMPARED_ROWS, 1)
    spreads = [
        None if of is None else _spread(queries, of, folder / f"compared-{name}", parts)
        for name, of in (("listed", queries.listed), ("known", queries.known), ("taken", queries.taken))
    ]
    found = Candidates()
    for part in range(parts):
        listed, known, taken = ({} if s is None else _columns(s.read(part)) for s in spreads)
        _compare(found, listed, known, taken.get("h"), only_waiting, with_gone)
    return found


def _spread(queries: Queries, of: tuple[str, pa.Schema], path: Path, parts: int) -> Spread:
    spread = Spread(path.parent, path.name, of[1], parts)
    for batch in queries.stream(*of):
        spread.add(batch, part_of(batch.column(0).to_numpy(), parts))
    spread.close()
    return spread


def _columns(table: pa.Table) -> dict[str, _Array]:
    return {name: table[name].to_numpy() for name in table.column_names}


def _compare(
    found: Candidates,
    listed: dict[str, _Array],
    known: dict[str, _Array],
    taken: _Array | None,
    only_waiting: bool,
    with_gone: bool,
) -> None:
    """One part: the last row of each known id beside what is listed."""
    order = np.lexsort((known["wave"], known["h"]))
    ids = known["h"][order]
    last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
    known = {name: column[order[last]] for name, column in known.items()}
    ids, flags = known["h"], known["flags"]
    live = (flags & LIVE) != 0
    found.known += int(live.sum())
    found.any_known |= bool(len(ids))
    order = np.argsort(listed["h"])  # those of one id together
    listed = {name: column[order] for name, column in listed.items()}
    hashes = listed["h"]
    at, there = look_up(ids, hashes)
    twice = _twice(hashes)
    clash = np.isin(hashes, taken) if taken is not None else np.zeros(len(hashes), bool)
    found.special += int((twice | clash).sum())
    if only_waiting:
        suspect = there.copy()
        suspect[there] = (flags[at[there]] & WAITING) != 0
        _mark(found, hashes[suspect | clash], ids[:0])
        return
    same = there.copy()
    pairs = at[there]
    equal = (listed["v"][there] == known["v"][pairs]) | (listed["f"][there] == known["f"][pairs])
    same[there] = equal & ((flags[pairs] & SETTLED) != 0)
    looked_for = np.zeros(len(ids), bool)
    looked_for[at[there]] = True
    gone = ids[live & ~looked_for] if with_gone else ids[:0]
    _mark(found, hashes[~same | twice | clash], gone)


def _twice(hashes: _Array) -> _Array:
    """Which of them, in ascending order, are there more than once?"""
    equal = np.append(hashes[1:] == hashes[:-1], False)[: len(hashes)]
    found: _Array = equal | np.append(False, equal[:-1])[: len(hashes)]
    return found


def _mark(found: Candidates, listed: _Array, gone: _Array) -> None:
    found.add(listed)
    found.add(gone)
    found.rows += 2 * len(listed) + len(gone)
