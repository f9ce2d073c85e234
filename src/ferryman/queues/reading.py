"""Messages as Arrow, by their indices: any range, a row group in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ferryman.errors import StateDamaged
from ferryman.queues.entries import MessageFile
from ferryman.queues.message import ROWS
from ferryman.queues.store import QueueStore
from ferryman.storage.groups import RowGroups


def between(store: QueueStore, start: int, end: int, columns: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
    """Messages of ``start`` ≤ index < ``end`` that are there and kept, in order; a merge or trim beside it is harmless.

    Raises:
        QueueDamaged: a file is missing, or not what was written.
        QueueReplaced: the queue was deleted.
    """
    start = max(start, 1)
    while start < end:
        found = _open(store, start, end, columns)
        if found is None:
            return
        file, groups = found
        with groups, store.damage_told():
            yield from groups.between(max(start, file.first) - file.first, min(end, file.end) - file.first)
        start = file.end


def _open(store: QueueStore, start: int, end: int, columns: Sequence[str]) -> tuple[MessageFile, RowGroups] | None:
    """The file with the first of these messages that is kept. Once it is open it may be removed.

    1. look it up: in what is known, as messages never change, else in the newest version
    2. open it; if it is gone it was replaced, and a newer version says by what
    """
    with store.guard, store.damage_told():
        if store.table.last < end - 1:  # 1
            store.move_on()
        while files := store.table.covering(start, end):
            try:  # 2
                return files[0], RowGroups(str(store.table.folder / files[0].path), [*columns], verified=True)
            except StateDamaged:
                if not store.move_on():
                    raise
        return None
