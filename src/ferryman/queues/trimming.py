"""Removing the oldest messages, by age, from the beginning: indices stay what they are."""

from __future__ import annotations

import contextlib
import time
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, durations, limits
from ferryman.errors import StateDamaged, UsageError
from ferryman.queues.appending import write_rows
from ferryman.queues.entries import LogEntry, MessageFile
from ferryman.queues.merging import retire
from ferryman.queues.message import ROWS
from ferryman.queues.once import keep_trimmed
from ferryman.queues.store import QueueStore
from ferryman.storage.files import fsync_folder, remove
from ferryman.storage.groups import RowGroups
from ferryman.storage.lock import turn

_FOREVER: Final = 1 << 62


def seconds_of(keep: str | float) -> float:
    """``10d``, ``90s``, a number of seconds.

    Raises:
        UsageError: not a duration.
    """
    try:
        return durations.seconds(str(keep))
    except ValueError as e:
        raise UsageError(f"keep={e}") from None


def too_old(store: QueueStore, keep_s: float) -> bool:
    """Is there a file of which every message is older than this?"""
    files = store.table.files
    return bool(files) and files[0].newest < _before(keep_s)


def trim(store: QueueStore, keep_s: float, *, force: bool = False, exact: bool = True) -> int:
    """Remove messages older than this; how many. Those that a registered reader has not read stay, and all after them.

    1. find the files all of whose messages go, and (``exact``) the one of which a part goes
    2. write what stays of that one
    3. the keys of what leaves the log are kept elsewhere, and which rows a writer may append again
    4. commit; if others have committed meanwhile, begin again
    5. remove the files

    Args:
        force: never mind the readers.
    """
    before = _before(keep_s)
    with contextlib.ExitStack() as held:
        held.enter_context(store.damage_told())
        if not force:  # a reader that goes back meanwhile is sure of what it goes back to
            busy = held.enter_context(store.positions.all_held(limits.QUEUE_TURN_S if exact else 0))
            if busy is not None and exact:
                who = f"{store.positions.holder(busy)} holds it"
                raise UsageError(f"{store.folder}: the reader {busy} is busy: {who}. Nothing was trimmed; try later.")
            if busy is not None:
                return 0
        held.enter_context(turn(store.merging, limits.QUEUE_TURN_S if exact else 0))
        held.enter_context(store.guard)
        while True:
            store.move_on()
            upto = _FOREVER if force else min(store.positions.all().values(), default=_FOREVER)
            gone, part = _old(store, before, upto)  # 1
            staying = _staying(store, part, before, upto) if part is not None and exact else ()  # 2
            if part is not None and exact and (not staying or staying[0].rows < part.rows):
                gone.append(part)
            else:
                staying = ()
            if not gone:
                return 0
            try:
                keep_trimmed(store, gone)  # 3
            except StateDamaged:
                if not store.move_on():
                    raise
                continue  # somebody else has merged or trimmed them
            store.keys.remember(gone)
            if store.table.commit(LogEntry("trim", staying, tuple(gone))):  # 4
                retire(store, gone)  # 5
                return sum(f.rows for f in gone) - sum(f.rows for f in staying)
            for file in staying:
                remove(store.table.folder / file.path)


def _old(store: QueueStore, before: int, upto: int) -> tuple[list[MessageFile], MessageFile | None]:
    """Files all of whose messages go, from the first on; the one after them, if a part of it goes."""
    gone: list[MessageFile] = []
    for file in store.table.files:
        if file.newest >= before or file.end > upto:
            return gone, file if file.oldest < before and file.first < upto else None
        gone.append(file)
    return gone, None


def _staying(store: QueueStore, file: MessageFile, before: int, upto: int) -> tuple[MessageFile, ...]:
    """A new file of what stays; the file itself, if all of it does; nothing, if nothing does."""
    with RowGroups(str(store.table.folder / file.path), ROWS.names, verified=True) as groups:
        rows = pa.concat_tables(groups.all())
    young = pc.greater_equal(rows.column("created").cast(pa.int64()), before)
    kept = pc.or_(young, pc.greater_equal(rows.column("index"), upto))
    at = pc.index(kept, True).as_py()
    if at == 0:
        return (file,)
    if at < 0:
        return ()
    rest = rows.slice(at)
    part = write_rows(store.table.folder, [rest])
    crash.point("trim.staged")
    fsync_folder(store.table.folder)
    return (MessageFile(part.path, part.size, file.first + at, part.rows, file.oldest, file.newest, file.level),)


def _before(keep_s: float) -> int:
    """The oldest that is kept, µs since 1970."""
    return time.time_ns() // 1000 - int(keep_s * 1_000_000)
