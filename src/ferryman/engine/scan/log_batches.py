"""What a wave processes of logs: pieces that are read where they lie. Nothing is listed or compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

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


_KNOWN = COMPARED.names[COMPARED.names.index("known_version") :]


class HeldEntry(NamedTuple):
    """An export that is to go its way again.

    Attributes:
        known: what ``documents`` says of it: values of ``_KNOWN``.
    """

    place: int
    known: tuple[Any, ...]


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
    held: frozenset[int] = frozenset()
    """Of what a keyed node exports: keys of which an earlier export has not gone through."""
    held_back: tuple[HeldEntry, ...] = ()
    """Of these exports a step could not take one, or they waited for such a one: only they are processed. Positions
    do not move."""

    @property
    def rows(self) -> int:
        return len(self.held_back) or self.piece.end - self.piece.start

    def tables(self, log: Log) -> Iterator[pa.Table]:
        """The entries in the columns of ``COMPARED``, and others of ``ROWS``."""
        for rows in log.rows(self.piece):
            if self.held_back:
                rows = rows.filter(pc.is_in(rows["place"], value_set=pa.array([p.place for p in self.held_back])))
            columns: dict[str, Any] = {name: rows[name] for name in ("id", "version", "refused")}
            if "key_hash" in rows.column_names:
                columns |= self._about_exports(rows)
            table = table_of(
                COMPARED,
                rows.num_rows,
                **{"fingerprint": "", "reason": Reason.NEW.value, **columns},
                size=0,
                location="",
            )
            for name in (*_OWN, *(n for n in rows.column_names if n not in ROWS.names)):
                table = table.append_column(name, self._replayed(rows[name]) if name == "revision" else rows[name])
            yield table

    def _replayed(self, revisions: pa.ChunkedArray) -> pa.ChunkedArray:
        """Read again from an earlier place, all are higher than any before."""
        return pc.add(revisions, (self.revision - 1) * _REPLAY)

    def _about_exports(self, rows: pa.Table) -> dict[str, Any]:
        """Columns of ``COMPARED``: what is known of them."""
        columns: dict[str, Any] = {"fingerprint": rows["key_hash"].cast(pa.string())}
        if self.held_back:
            known = {each.place: each.known for each in self.held_back}
            mine = [known[place] for place in rows["place"].to_pylist()]
            columns |= {name: [each[at] for each in mine] for at, name in enumerate(_KNOWN)}
            columns["reason"] = Reason.RETRY.value
        return columns

    def holding(self, keys: frozenset[int]) -> LogSplit:
        """The same, with more keys of which an earlier export has not gone through."""
        return self._replace(held=self.held | keys)

    def after(self, places: int) -> LogSplit:
        """The same without its first places."""
        return self._replace(piece=self.piece._replace(start=self.piece.start + places))

    def reasons(self) -> Counter[str]:
        """How many are processed for which reason: places, for how many have an entry shows when they are read."""
        return Counter({Reason.NEW.value: self.rows})

    def before(self, place: int) -> LogSplit:
        """The same without the entries from this place on."""
        left = tuple(each for each in self.held_back if each.place < place)
        if self.held_back and not left:
            place = self.piece.start
        return self._replace(piece=self.piece._replace(end=place), held_back=left)


class LogBatch(NamedTuple):
    """What one wave processes of logs."""

    tasks: list[LogSplit]
    bytes: int
    once: bool = False
    """No step may see an entry of it a second time."""

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tasks)
