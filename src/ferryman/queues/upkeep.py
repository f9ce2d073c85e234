"""Keeping the number of a queue's files small: neighbouring files are merged, the log is folded, unnamed files are
removed, old messages are trimmed.

Files are merged by level: about thirty files of one level become one file of the next. So each message is copied once
per level, and the cost of an append or a read does not grow with the queue.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.errors import StateDamaged, UsageError, describe
from ferryman.queues.append import keep_trimmed, write_rows
from ferryman.queues.message import ROWS
from ferryman.queues.store import QueueStore
from ferryman.queues.table import MessageFile
from ferryman.storage.delta import LogEntry
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import changed_before, fsync_folder, list_names, remove, remove_all, remove_temporary
from ferryman.storage.locks import hold_lock
from ferryman.storage.parquet import RowGroups, combine_small_tables

_log: Final = logging.getLogger(__name__)

_FULL_FRACTION: Final = 2
"""Divisor of ``PART_BYTES``: files larger than that share are not merged any more."""
_WAIT_FACTOR: Final = 4
"""Multiple of the usual number of files from which on merging no longer waits for another process that is about to
merge."""


@contextlib.contextmanager
def postpone_on_error() -> Iterator[None]:
    """Postpone failing upkeep, whatever the reason, to a later append: the append before it has taken effect and must
    not appear to have failed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as e:  # including a Rust extension's panic, which is not an Exception
        _log.debug("upkeep of a queue is left for later: %s", describe(e))


def maintain(store: QueueStore) -> None:
    """Merge small files, fold a long log, remove replaced files. Fast if there is nothing to do."""
    if not _due(store, 1):
        return
    with hold_lock(store.merging, 0) as is_held, store.guard:
        if not is_held and not _due(store, _WAIT_FACTOR):
            return
        store.refresh()
        merged = False
        while batch := next_batch(store.table.files):
            merge(store, batch)
            merged = True
        if store.table.log.commits_since_checkpoint >= limits.QUEUE_COMMITS:
            store.table.log.checkpoint()
        if merged:
            sweep(store)


def _due(store: QueueStore, times: int) -> bool:
    table = store.table
    folding = table.log.commits_since_checkpoint >= limits.QUEUE_COMMITS * times
    return folding or bool(next_batch(table.files, limits.QUEUE_FILES * times))


def next_batch(files: list[MessageFile], wanted: int | None = None) -> list[MessageFile]:
    """Return neighbouring files at the end of one level that are to be merged; [] while there are fewer than
    ``wanted``."""
    wanted = wanted or limits.QUEUE_FILES
    run: list[MessageFile] = []
    level = -1
    for file in reversed(files):
        if file.size > limits.PART_BYTES // _FULL_FRACTION:
            break
        if file.level > level:
            if len(run) >= wanted:
                break
            run, level = [], file.level
        run.append(file)
    return _select_to_merge(run) if len(run) >= wanted else []


def _select_to_merge(run: list[MessageFile]) -> list[MessageFile]:
    """Return the oldest of these files that fit into one file, in order: at least two."""
    batch: list[MessageFile] = []
    size = 0
    for file in reversed(run):
        if len(batch) > 1 and size + file.size > limits.PART_BYTES:
            break
        batch.append(file)
        size += file.size
    return batch


def merge(store: QueueStore, batch: list[MessageFile]) -> None:
    """Replace neighbouring files by one.

    1. write it
    2. store the keys of the files that leave the log
    3. commit; if others have committed in the meantime, try again, unless one of them has replaced these files
    4. remove the small ones
    """
    table = store.table
    rows = combine_small_tables(_read_files(store, batch), limits.QUEUE_GROUP_ROWS)
    part = write_rows(table.folder, rows)  # 1
    crash.point("merge.staged")
    fsync_folder(table.folder)
    oldest, newest = min(f.oldest for f in batch), max(f.newest for f in batch)
    merged = MessageFile(
        part.path, part.size, batch[0].first, part.rows, oldest, newest, max(f.level for f in batch) + 1
    )
    store.keys.remember(batch)  # 2
    while set(batch) <= set(table.files):  # 3
        if table.commit(LogEntry("merge", (merged,), tuple(file.path for file in batch)), data_change=False):
            retire(store, batch)  # 4
            crash.point("merge.removed")
            return
        store.refresh()
    remove(table.folder / part.path)


def retire(store: QueueStore, files: Iterable[MessageFile]) -> None:
    """Remove replaced files; a process that needs one of them finds a newer version of the table."""
    remove_all(store.table.folder / file.path for file in files)


def sweep(store: QueueStore) -> None:
    """Remove files that no entry names and that nobody is about to commit, left by a crash."""
    now = time.time()  # before listing: this process may be stopped in between
    with hold_lock(store.appending, 0) as quiet:
        old = now - (limits.READERS_GRACE_S if quiet and isinstance(store.appending, Path) else limits.QUEUE_STRAY_S)
        found = list_names(store.table.folder)
        store.refresh()
        live = {f.path for f in store.table.files}
        for name in found:
            path = store.table.folder / name
            stray = name.endswith(".parquet") or name.startswith(TEMPORARY)
            if stray and name not in live and changed_before(path, old):
                remove(path)
    folders = (store.home / name for name in ("keys", "trimmed", "tailers"))
    for folder in (store.table.log.entries_folder, *folders):
        remove_temporary(folder, now - limits.TEMPORARY_S)


def _read_files(store: QueueStore, files: list[MessageFile]) -> Iterator[pa.Table]:
    for file in files:
        with RowGroups(str(store.table.folder / file.path), ROWS.names, verified=True) as groups:
            yield from groups.all_rows()


# --- trimming: removing messages from the beginning by age, without changing indices ---

_FOREVER: Final = 1 << 62


def seconds_of(keep: str | float) -> float:
    """Parse a duration: ``10d``, ``90s``, a number of seconds.

    Raises:
        UsageError: not a duration.
    """
    try:
        return limits.seconds(str(keep))
    except ValueError as e:
        raise UsageError(f"keep={e}") from None


def too_old(store: QueueStore, keep_s: float) -> bool:
    """Return whether there is a file whose messages are all older than ``keep_s`` seconds."""
    files = store.table.files
    return bool(files) and files[0].newest < _oldest_kept(keep_s)


def trim(store: QueueStore, keep_s: float, *, force: bool = False, exact: bool = True) -> int:
    """Remove messages older than ``keep_s`` seconds; return how many. Messages that a registered reader has not read
    are kept, with all messages after them.

    1. find the files whose messages are all removed, and (with ``exact``) the one that loses only a part
    2. write the remaining messages of that file to a new one
    3. store the keys of the files that leave the log, and the rows that a writer may append again
    4. commit; if others have committed in the meantime, begin again
    5. remove the files

    Args:
        force: ignore the readers.
    """
    before = _oldest_kept(keep_s)
    with contextlib.ExitStack() as held:
        held.enter_context(store.queue_errors())
        if not force:  # so that a reader that moves back meanwhile still finds its messages
            busy = held.enter_context(store.positions.hold_all(limits.QUEUE_TURN_S if exact else 0))
            if busy is not None and exact:
                who = f"{store.positions.describe_holder(busy)} holds it"
                raise UsageError(f"{store.folder}: the reader {busy} is busy: {who}. Nothing was trimmed; try later.")
            if busy is not None:
                return 0
        held.enter_context(hold_lock(store.merging, limits.QUEUE_TURN_S if exact else 0))
        held.enter_context(store.guard)
        while True:
            store.refresh()
            first_unread = _FOREVER if force else min(store.positions.all().values(), default=_FOREVER)
            removed, part = _files_to_trim(store, before, first_unread)  # 1
            staying = _write_remainder(store, part, before, first_unread) if part is not None and exact else ()  # 2
            if part is not None and exact and (not staying or staying[0].rows < part.rows):
                removed.append(part)
            else:
                staying = ()
            if not removed:
                return 0
            try:
                keep_trimmed(store, removed)  # 3
            except StateDamaged:
                if not store.refresh():
                    raise
                continue  # another process has merged or trimmed them
            store.keys.remember(removed)
            if store.table.commit(LogEntry("trim", staying, tuple(file.path for file in removed))):  # 4
                retire(store, removed)  # 5
                return sum(f.rows for f in removed) - sum(f.rows for f in staying)
            for file in staying:
                remove(store.table.folder / file.path)


def _files_to_trim(store: QueueStore, before: int, first_unread: int) -> tuple[list[MessageFile], MessageFile | None]:
    """Return the files from the first on whose messages are all removed, and the next file if it loses a part."""
    removed: list[MessageFile] = []
    for file in store.table.files:
        if file.newest >= before or file.end > first_unread:
            return removed, file if file.oldest < before and file.first < first_unread else None
        removed.append(file)
    return removed, None


def _write_remainder(store: QueueStore, file: MessageFile, before: int, first_unread: int) -> tuple[MessageFile, ...]:
    """Write the remaining messages to a new file; return the file itself if all remain, and nothing if none do."""
    with RowGroups(str(store.table.folder / file.path), ROWS.names, verified=True) as groups:
        rows = pa.concat_tables(groups.all_rows())
    young = pc.greater_equal(rows.column("created").cast(pa.int64()), before)
    kept = pc.or_(young, pc.greater_equal(rows.column("index"), first_unread))
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


def _oldest_kept(keep_s: float) -> int:
    """Return the oldest time that is kept, µs since 1970."""
    return time.time_ns() // 1000 - int(keep_s * 1_000_000)
