"""Changes of a state as Arrow, read from its files. Apart from the log: DuckDB takes longer to load than a command
line may."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from ferryman.document import content_version, excess
from ferryman.errors import StateDamaged
from ferryman.records.change_readers import FORGOTTEN
from ferryman.records.events import table_of
from ferryman.records.keyed import BUCKETS, KEY_STATE, PUBLISHED, lane_of, lanes
from ferryman.sources.log import Piece, Positions
from ferryman.sources.log_rows import ROWS
from ferryman.storage.files import StatePath, here
from ferryman.storage.handles import DataFile, newest_to_read
from ferryman.storage.log_entries import LogUnreadable
from ferryman.storage.mirror import log_folder
from ferryman.storage.query import connect, quoted_list, stream, verify

_UNPACKED: Final = 4
"""So many times as large are states in memory as in their files, about."""
_CHANGED: Final = pa.schema([KEY_STATE.field(name) for name in ("key", "value", "sequence", "wave")])
_NOTHING: Final = content_version(b"", None)
"""Version of a deletion."""


class ChangedFiles:
    """The files of a node's state, as of now.

    Attributes:
        forgotten: the last wave of which deletions may have been dropped; 0: none were.

    Raises:
        StateDamaged: the table cannot be read.
    """

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        try:
            table = newest_to_read(log_folder(folder) or Path(str(folder)))
            self._files = list(table.files().values())
            self._published = table.transaction(PUBLISHED)
            self.forgotten = table.transaction(FORGOTTEN)
        except LogUnreadable as e:
            raise StateDamaged(str(folder / "_delta_log"), f"the log cannot be read ({e})") from e

    @property
    def row_bytes(self) -> int:
        """Of a key and its state, about."""
        rows = sum(file.rows for file in self._files)
        return _UNPACKED * sum(file.size for file in self._files) // max(1, rows)

    def end(self) -> dict[str, int]:
        """Of each range of keys the wave after the last one that has changed any: a reader that has them all needs no
        deletion of before."""
        last = max(map(self._last_wave, self._files), default=-1)
        return dict.fromkeys(lanes(), 1 + max(last, self.forgotten or -1))

    def counts(self, start: Positions, end: Positions) -> list[tuple[str, int, int]]:
        """(range of keys, wave, keys that it has changed) between these places, by wave.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        first = min((start.get(lane, last) for lane, last in end.items()), default=0)
        paths = self._paths(first)
        if not paths:
            return []
        query = f"""
            SELECT bucket * {len(lanes())} // {BUCKETS} AS lane, wave, count(*)
            FROM read_parquet({quoted_list(map(here, paths))}) GROUP BY ALL ORDER BY wave
        """
        with tempfile.TemporaryDirectory() as scratch, connect(Path(scratch)) as db:
            found = [(lanes()[lane], wave, count) for lane, wave, count in db.execute(query).fetchall()]
        return [each for each in found if start.get(each[0], end[each[0]]) <= each[1] < end[each[0]]]

    def rows(self, piece: Piece, upto: int, full_id: Callable[[str], str]) -> Iterator[pa.Table]:
        """The keys of a piece in the columns of ``ROWS``, with ``revision`` and ``deletes``; by wave and key. One that
        another wave before ``upto`` has changed again is left out: it comes with that one.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        lane = lanes().index(piece.partition)
        paths = self._paths(piece.start, piece.partition)
        if not paths:
            return
        verify(Path(here(path)) for path in paths)
        query = f"""
            SELECT {", ".join(_CHANGED.names)} FROM (
                SELECT * FROM read_parquet({quoted_list(map(here, paths))})
                WHERE bucket * {len(lanes())} // {BUCKETS} = {lane} AND wave >= {piece.start} AND wave < {upto}
                QUALIFY row_number() OVER (PARTITION BY key ORDER BY wave DESC) = 1
            ) WHERE wave < {piece.end} ORDER BY wave, key
        """
        with tempfile.TemporaryDirectory() as scratch, connect(Path(scratch)) as db:
            for batch in stream(db, query, _CHANGED):
                yield _told(batch, full_id)

    def _paths(self, first: int, lane: str | None = None) -> list[str]:
        """Files that may have changes of this wave or later ones."""
        files = [f for f in self._files if self._last_wave(f) >= first and (lane is None or _reaches(f, lane))]
        return [str(self._folder / file.path) for file in files]

    def _last_wave(self, file: DataFile) -> int:
        """The last wave of which a file has rows; an older Ferryman has not written down which."""
        return int(file.stats.get("maxValues", {}).get("wave", self._published))


def _reaches(file: DataFile, lane: str) -> bool:
    first, last = (lanes().index(lane_of(int(file.stats[kind]["bucket"]))) for kind in ("minValues", "maxValues"))
    return first <= lanes().index(lane) <= last


def _told(batch: pa.RecordBatch, full_id: Callable[[str], str]) -> pa.Table:
    changed = zip(*(column.to_pylist() for column in batch.columns[:3]), strict=True)
    rows = [_row(key, value, sequence, full_id) for key, value, sequence in changed]
    ids, fields, versions, refused, dropped, deletes = map(list, zip(*rows, strict=True))
    table = table_of(
        ROWS, len(ids), place=batch["wave"], id=ids, fields=fields, version=versions, refused=refused, dropped=dropped
    )
    # A wave changes a key once, and a later one has a higher number.
    return table.append_column("revision", batch["wave"]).append_column("deletes", pa.array(deletes, pa.bool_()))


def _row(key: str, value: str | None, sequence: int, full_id: Callable[[str], str]) -> tuple[Any, ...]:
    """Id, fields, version, why it is refused, why it is dropped, and whether it is a deletion."""
    if not key:
        return full_id("(empty)"), b"{}", _NOTHING, None, "an empty key cannot be the id of a document", False
    if value is None:
        return full_id(key), None, _NOTHING, None, None, True
    fields = b'{"key":%s,"sequence":%d,"value":%s}' % (msgspec.json.encode(key), sequence, value.encode())
    if why := excess(fields, None):
        return full_id(key), None, content_version(why.encode(), None), why, None, False
    return full_id(key), fields, content_version(fields, None), None, None, False
