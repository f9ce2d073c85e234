"""Rows that may be appended again: which of them are in the queue already.

A writer appends its rows in the order of their sequences, and each commit notes the highest one in the same log entry:
rows above it are new. The others are looked for among the messages, from the newest one back. A row that was being
appended when its process was killed is among the last ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.queues.reading import between
from ferryman.queues.store import QueueStore

SEQUENCE: Final = "sequence"
WRITER: Final = "writer"
"""Keys of a message's ``meta``; ``sequence`` is a column of the rows too."""


class RepeatingWriter(NamedTuple):
    """Whoever appends rows that have a hash and a sequence, and may append them again."""

    name: str

    def new_rows(self, store: QueueStore, rows: pa.Table) -> pa.Table:
        """Those that are not in the queue, as of the version that ``store`` has been moved on to.

        Args:
            rows: ``message.CONTENT`` and ``sequence``.
        """
        repeated = pc.less_equal(rows[SEQUENCE], self._highest(store))
        if not pc.any(repeated).as_py():
            return rows
        known = self._found(store, rows.filter(repeated))
        return rows.filter(pa.array([key not in known for key in _keys(rows)], pa.bool_()))

    def noted(self, store: QueueStore, rows: pa.Table) -> dict[str, int]:
        """What the commit of these rows notes, as a transaction of the log."""
        return {self._application: max(self._highest(store), pc.max(rows[SEQUENCE]).as_py())}

    @property
    def _application(self) -> str:
        return f"writer {self.name}"

    def _highest(self, store: QueueStore) -> int:
        return store.table.transactions.get(self._application, 0)

    def _found(self, store: QueueStore, rows: pa.Table) -> set[tuple[str, int]]:
        """(hash, sequence) of those that are in the queue."""
        wanted = set(_keys(rows))
        hashes = rows["hash"].combine_chunks()
        found: set[tuple[str, int]] = set()
        for file in reversed(store.table.files):
            for part in between(store, file.first, file.end, ["hash", "meta"]):
                alike = part.filter(pc.is_in(part["hash"], hashes))
                for digest, text in zip(alike["hash"].to_pylist(), alike["meta"].to_pylist(), strict=True):
                    meta = msgspec.json.decode(text or "{}")
                    if meta.get(WRITER) == self.name and (key := (digest, meta.get(SEQUENCE))) in wanted:
                        found.add(key)
            if len(found) == len(wanted):
                break
        return found


def _keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["hash"].to_pylist(), rows[SEQUENCE].to_pylist(), strict=True))
