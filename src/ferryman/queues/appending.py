"""Appending: one commit, numbered again as often as somebody else was faster."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.errors import EngineError
from ferryman.queues.entries import LAST, LogEntry, MessageFile
from ferryman.queues.keys import key_name
from ferryman.queues.message import CONTENT, ROWS
from ferryman.queues.once import RepeatingWriter
from ferryman.queues.store import QueueStore
from ferryman.queues.table import CommitUnknown
from ferryman.storage import files
from ferryman.storage.files import StatePath, disk_full, fsync_folder
from ferryman.storage.lock import turn
from ferryman.storage.parquet import Part, PartWriter


def append_rows(
    store: QueueStore, rows: pa.Table, key: str | None = None, writer: RepeatingWriter | None = None
) -> range:
    """Append messages (``message.CONTENT``), durably; their indices.

    1. wait for our turn, which is only fair: nothing rests on it
    2. bring the table to its newest version. If that knows the key, the messages are appended already; of a writer's
       rows those are left out that are there
    3. write them to a file, with the indices that come next
    4. commit it. If somebody else has committed meanwhile, begin again with 2

    Args:
        writer: whose rows they are, each with a hash and a ``sequence``: each of them is appended once.

    Raises:
        QueueReplaced: the queue was deleted; nothing was appended.
        EngineError: the disk is full.
    """
    name = key_name(key) if key is not None else ""
    with store.guard, store.damage_told(), turn(store.appending, limits.QUEUE_TURN_S), full_disk_told(store):  # 1
        while True:
            store.move_on()  # 2
            if name and (before := store.find(name)) is not None:
                return before
            version = store.table.version
            new = rows if writer is None else writer.new_rows(store, rows)
            if not new.num_rows:
                return range(0)
            if store.table.version != version:
                continue  # it was moved on while it was read
            noted = {} if writer is None else writer.noted(store, new)
            file = _staged(store, new.select(CONTENT.names), name)  # 3
            crash.point("append.staged")
            fsync_folder(store.table.folder)
            # not there if we slept, and somebody took it for left over
            there = files.exists(store.table.folder / file.path)
            if there and _committed(store, file, noted, repeatable=bool(name or writer)):  # 4
                return range(file.first, file.end)
            files.remove(store.table.folder / file.path)


def _committed(store: QueueStore, file: MessageFile, noted: dict[str, int], *, repeatable: bool) -> bool:
    """Commit it; False: somebody else was faster.

    Raises:
        CommitUnknown: we were stopped so long that nobody can tell.
    """
    try:
        return store.table.commit(LogEntry("append", (file,), (), {LAST: file.end - 1, **noted}))
    except CommitUnknown:
        store.move_on()
        if file in store.table.files:
            return True
        if not repeatable:
            raise
        return False  # then the key, or the writer's rows, tell


def _staged(store: QueueStore, rows: pa.Table, key: str) -> MessageFile:
    first = store.table.last + 1
    now = dt.datetime.now(dt.UTC)
    numbered = rows.add_column(0, ROWS.field("index"), pa.array(np.arange(first, first + rows.num_rows)))
    created = pa.repeat(pa.scalar(now, ROWS.field("created").type), rows.num_rows)
    part = write_rows(store.table.folder, [numbered.append_column(ROWS.field("created"), created)])
    at = int(now.timestamp()) * 1_000_000 + now.microsecond
    return MessageFile(part.path, part.size, first, rows.num_rows, at, at, 0, key)


def write_rows(folder: StatePath, tables: Iterator[pa.Table] | list[pa.Table]) -> Part:
    """A synced data file of these rows, in row groups that a look at one message can afford."""
    writer = PartWriter(folder, ROWS, epoch=0)
    try:
        for table in tables:
            for start in range(0, table.num_rows, limits.QUEUE_GROUP_ROWS):
                writer.write(table.slice(start, limits.QUEUE_GROUP_ROWS).cast(ROWS).combine_chunks())
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


@contextlib.contextmanager
def full_disk_told(store: QueueStore) -> Iterator[None]:
    """Raises:
    EngineError: the disk is full; says what to do.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as e:
        if not disk_full(e):
            raise
        raise EngineError(
            f"{store.folder}: the disk is full. What was appended before is there. Make room and append again, with "
            "the same key if there was one."
        ) from e
