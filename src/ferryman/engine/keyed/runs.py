"""Sorted runs: the due documents of a keyed node in files, each in the order of buckets, keys and documents.

Several are merged with a bounded part of each in memory, however many documents one key has.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.records.events import EVENT_OF_ROW
from ferryman.records.schemas import OUTBOX_FILE
from ferryman.storage.files import here

ORDER: Final = ("bucket", "key", "source_number", "place", "sequence")
"""Documents of a key stand by source, then of a log by sequence, of another source by id (``place``)."""

_OUTBOX: Final = (*EVENT_OF_ROW, "attempt", "due", "since", "transient", "fields", "raw")

RUN: Final = pa.schema(
    [
        pa.field("bucket", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("source_number", pa.int64()),
        pa.field("place", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("file", pa.int64()),
        pa.field("fault", pa.string()),
        pa.field("holds", pa.bool_()),
        pa.field("task", pa.string()),
        pa.field("kept", pa.bool_()),
        pa.field("previous", pa.binary()),
        *(OUTBOX_FILE.field(name) for name in _OUTBOX),
    ]
)
"""``file``: first sequence of the outbox file. ``fault``: why the document has no key; null: it has one. ``holds``: if
it fails for good, do later documents of its key wait? ``task``: see ``KeyTask``. ``kept``: may the document change?
``previous``: what the key was given of it before, as JSON."""


class KeyTask(enum.StrEnum):
    """What is to be done with a document at a key."""

    COUNT = "count"
    """It goes into the state; or, as a delete, out of it."""
    WITHDRAW = "withdraw"
    """It has another key now: this one is told that it is gone. Then it comes to its new key."""
    NOTHING = "nothing"
    """No key was given anything of it."""


def write_run(path: Path, rows: pa.Table, runs: int = 1) -> None:
    """Write rows that are in order.

    Args:
        runs: so many are merged with this one: of all together ``KEY_MERGE_BYTES`` are in memory.
    """
    share = min(limits.KEY_RUN_BYTES, limits.KEY_MERGE_BYTES // max(1, runs))
    most = max(1, min(limits.KEY_RUN_ROWS, share * rows.num_rows // max(1, rows.nbytes)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, RUN) as writer:
        writer.write_table(rows.combine_chunks(), max_chunksize=most)


class _Run:
    """A run on its way into a merge: some of its rows are in memory."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._reader = pa.ipc.open_file(file)
        self._next = 0
        self._rows = RUN.empty_table()

    def fill(self) -> bool:
        """Have rows at hand; False: there are no more."""
        while not self._rows.num_rows and self._next < self._reader.num_record_batches:
            self._rows = pa.Table.from_batches([self._reader.get_batch(self._next)])
            self._next += 1
        return bool(self._rows.num_rows)

    def last(self) -> tuple[Any, ...]:
        """The place of the last row at hand."""
        return self._at(self._rows.num_rows - 1)

    def take(self, upto: tuple[Any, ...] | None) -> pa.Table:
        """The rows at hand that stand there or before, all if None."""
        end = self._rows.num_rows if upto is None else self._end(upto)
        taken, self._rows = self._rows.slice(0, end), self._rows.slice(end)
        return taken

    def _end(self, upto: tuple[Any, ...]) -> int:
        first, end = 0, self._rows.num_rows
        while first < end:
            middle = (first + end) // 2
            if self._at(middle) <= upto:
                first = middle + 1
            else:
                end = middle
        return first

    def _at(self, row: int) -> tuple[Any, ...]:
        return tuple(self._rows[name][row].as_py() for name in ORDER)


def merged(paths: Sequence[str]) -> Iterator[pa.Table]:
    """All rows in order, some at a time."""
    with ExitStack() as files:
        runs = [_Run(files.enter_context(pa.OSFile(here(path)))) for path in paths]
        while runs := [run for run in runs if run.fill()]:
            if len(runs) == 1:
                yield runs[0].take(None)
                continue
            upto = min(run.last() for run in runs)
            parts = [run.take(upto) for run in runs]
            yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in ORDER])
