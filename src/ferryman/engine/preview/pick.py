"""One document out of a compared listing, whether or not the scan takes it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman.engine.scan.batches import LISTED, SLICE, RowRange, TaskSplit
from ferryman.engine.scan.known import kept
from ferryman.engine.scan.listing import Listing
from ferryman.engine.scan.reason import Reason
from ferryman.records.events import table_of
from ferryman.storage.groups import RowGroups
from ferryman.storage.query import connect, quoted_list
from ferryman.storage.tables import Table

_UNSURE = (Reason.LOOK, Reason.UNCHANGED)
"""A document of which the content decides whether it is processed; one that is not processed."""


class Picked(NamedTuple):
    """A document's row of each source that has it, as cuts of one row."""

    id: str
    cuts: list[TaskSplit]
    """As the scan takes it up, if it does once it has read it."""
    anyway: dict[str, tuple[str, TaskSplit]]
    """Source -> (why the scan does not take it up, a cut that takes it up all the same): "unchanged", or "later", when
    failed steps are due."""


def pick(
    id: str,
    cuts: Iterable[TaskSplit],
    listings: Iterable[Listing],
    documents: Table,
    folder: Path,
    through: Mapping[str, int] | None = None,
) -> Picked:
    """Find it among what is processed, else in the listing.

    Args:
        documents: the state's table.
        folder: for the rows.
        through: logs whose entry of this id was processed, and its revision: that nothing else is known of it does not
            make it new.
    """
    through = through or {}
    found: dict[str, tuple[pa.Table, int]] = {}
    for cut in cuts:
        for rows in cut.slices():
            mine = rows.filter(pc.equal(rows["id"], id))
            if mine.num_rows:
                found[cut.source] = mine, cut.number
    passed = {s: _with(rows, reason=Reason.FORCED) for s, (rows, _) in found.items() if s in through and _is_new(rows)}
    anyway = {s: ("unchanged", _cut(s, rows, 0, folder / f"anyway-{s}", through[s] + 1)) for s, rows in passed.items()}
    found = {source: row for source, row in found.items() if source not in passed}
    cuts = [_cut(source, rows, number, folder / f"picked-{source}") for source, (rows, number) in found.items()]
    files = kept(documents, folder / "known")
    with connect(folder) as db:
        for listing in listings:
            name = listing.source.name
            if name in passed:
                continue
            rows = found[name][0] if name in found else _listed(id, listing)
            if rows is None or rows["reason"][0].as_py() not in _UNSURE:
                continue
            known, retry = _known(db, files, name, id)
            rows = _with(rows, reason=Reason.RETRY if retry else Reason.FORCED, **known)
            cut = _cut(name, rows, 0, folder / f"anyway-{name}")
            anyway[name] = ("later" if retry else "unchanged", cut)
    return Picked(id, cuts, anyway)


def _is_new(rows: pa.Table) -> bool:
    return bool(rows["reason"][0].as_py() == Reason.NEW)


def _listed(id: str, listing: Listing) -> pa.Table | None:
    """Its last row in the listing, in SLICE's columns."""
    found = None
    for part in listing.parts:
        if not part.rows:
            continue
        with RowGroups(part.path, LISTED) as file:
            for rows in file.all():
                mine = rows.filter(pc.equal(rows["id"], id))
                if mine.num_rows:
                    last = mine.slice(mine.num_rows - 1)
                    columns = {name: last[name] for name in LISTED}
                    found = table_of(SLICE, 1, part=part.path, reason=Reason.UNCHANGED, unsure=False, **columns)
    return found


def _known(db: duckdb.DuckDBPyConnection, files: list[str], source: str, id: str) -> tuple[dict[str, Any], bool]:
    """Where ``documents`` has its last row, in SLICE's columns, {} if nowhere; and are failed steps due?"""
    if not files:
        return {}, False
    found = db.execute(
        f"""
        SELECT filename, file_row_number, due IS NOT NULL
        FROM read_parquet({quoted_list(files)}, filename = true, file_row_number = true)
        WHERE source = $source AND document = $id ORDER BY wave DESC LIMIT 1
        """,
        {"source": source, "id": id},
    ).fetchone()
    return ({}, False) if found is None else ({"known_file": found[0], "known_row": found[1]}, found[2])


def _with(rows: pa.Table, **values: Any) -> pa.Table:
    """The row with other values in these columns."""
    return pa.Table.from_pylist([{**rows.to_pylist()[-1], **values}], schema=SLICE)


def _cut(source: str, rows: pa.Table, number: int, path: Path, revision: int = 1) -> TaskSplit:
    pq.write_table(rows.cast(SLICE), f"{path}.parquet")
    return TaskSplit(source, [RowRange(f"{path}.parquet", 0, rows.num_rows)], True, number, revision)
