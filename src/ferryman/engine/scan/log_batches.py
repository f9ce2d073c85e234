"""What a wave processes of logs: pieces that are read where they lie. Nothing is listed or compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.engine.ranges import EntryRange
from ferryman.engine.scan.batches import COMPARED
from ferryman.engine.scan.reason import Reason
from ferryman.records.events import table_of
from ferryman.sources.log import Log, Piece
from ferryman.sources.log_rows import ROWS
from ferryman.state.log_positions import Head

_OWN = [name for name in ROWS.names if name not in COMPARED.names]
"""Columns that rows of a log have beside those of ``COMPARED``."""

_REPLAY: Final = 1 << 40
"""Revisions that a log itself counts stay below."""


class LogSplit(NamedTuple):
    """What one transform task takes of a log."""

    source: str
    piece: Piece
    revision: int = 1
    """Of its documents: one more each time the log is read again from an earlier place."""
    head: Head | None = None
    """The entry at which the log waits: this is another attempt of it."""
    number: int = 0
    """Of this task in its wave."""
    rerun: EntryRange | None = None
    """What it runs again, if that was taken before."""

    @property
    def rows(self) -> int:
        return self.piece.end - self.piece.start

    def tables(self, log: Log) -> Iterator[pa.Table]:
        """The entries in the columns of ``COMPARED``, and others of ``ROWS``."""
        for rows in log.rows(self.piece):
            columns = {name: rows[name] for name in ("id", "version", "refused")}
            table = table_of(
                COMPARED, rows.num_rows, size=0, fingerprint="", location="", reason=Reason.NEW.value, **columns
            )
            for name in (*_OWN, *(n for n in rows.column_names if n not in ROWS.names)):
                table = table.append_column(name, self._replayed(rows[name]) if name == "revision" else rows[name])
            yield table

    def _replayed(self, revisions: pa.ChunkedArray) -> pa.ChunkedArray:
        """Read again from an earlier place, all are higher than any before."""
        return pc.add(revisions, (self.revision - 1) * _REPLAY)

    def after(self, places: int) -> LogSplit:
        """The same without its first places."""
        return self._replace(piece=self.piece._replace(start=self.piece.start + places))

    def reasons(self) -> Counter[str]:
        """How many are processed for which reason: places, for how many have an entry shows when they are read."""
        return Counter({Reason.NEW.value: self.rows})

    def before(self, place: int) -> LogSplit:
        """The same without the entries from this place on."""
        return self._replace(piece=self.piece._replace(end=place))


class LogBatch(NamedTuple):
    """What one wave processes of logs."""

    tasks: list[LogSplit]
    bytes: int
    once: bool = False
    """No step may see an entry of it a second time."""

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tasks)
