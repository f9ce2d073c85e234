"""Folder of a queue as opened by a process: its table, keys and locks; reading messages as Arrow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ferryman.errors import QueueDamaged, QueueReplaced, StateDamaged
from ferryman.queues.message import ROWS
from ferryman.queues.place import Identity, home_of, identity_of, stamp_of
from ferryman.queues.positions import Positions
from ferryman.queues.table import MessageFile, MessageTable, RememberedKeys
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import RowGroups


class QueueStore:
    """An open queue. Only one thread at a time may use it: hold ``guard`` to change its attributes."""

    def __init__(self, folder: StatePath, identity: Identity) -> None:
        self.folder = folder
        self.identity = identity
        self.home = home = home_of(folder, identity.id)
        self.table = MessageTable(home / "messages")
        self.keys = RememberedKeys(home / "keys")
        self.trimmed_rows = RememberedKeys(home / "trimmed")
        self.positions = Positions(home / "tailers", identity.id)
        self.appending = home / "appending"
        self.merging = home / "merging"
        self.guard = threading.RLock()

    def check_identity(self) -> None:
        """Check that this is still the queue that was opened.

        Raises:
            QueueReplaced: it was deleted, and perhaps created again.
        """
        try:
            if stamp_of(self.folder) == self.identity.stamp:
                return
        except (FileNotFoundError, NotADirectoryError):
            raise QueueReplaced(str(self.folder), self.identity.id, None) from None
        now = identity_of(self.folder)
        if now is None or now.id != self.identity.id:
            raise QueueReplaced(str(self.folder), self.identity.id, now.id if now else None)
        self.identity = now  # the file was replaced by a copy

    def refresh(self) -> bool:
        """Read the newest version; return whether there was a new one.

        Raises:
            QueueReplaced: it is no longer the queue that was opened.
            QueueDamaged: a file of the log is missing, or not what was written.
        """
        with self.guard, self.queue_errors():
            self.check_identity()
            return self.table.refresh()

    def find(self, name: str) -> range | None:
        """Return the indices of an append with a key, as of the version read last.

        Args:
            name: hash of the key.
        """
        for file in reversed(self.table.files):
            if file.key == name:
                return range(file.first, file.end)
        return self.keys.find(name)

    @contextlib.contextmanager
    def queue_errors(self) -> Iterator[None]:
        """Convert damage to errors of queues; if the queue was deleted, missing files are not damage.

        Raises:
            QueueDamaged, QueueReplaced
        """
        try:
            yield
        except QueueDamaged:
            raise
        except StateDamaged as e:
            self.check_identity()
            raise QueueDamaged(e.path, e.what, e.remedy) from e
        except FileNotFoundError as e:
            self.check_identity()
            raise QueueDamaged(str(e.filename), "the file is missing") from e


# --- reading messages as Arrow by index: any range, one row group in memory at a time ---


def read_between(store: QueueStore, start: int, end: int, columns: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
    """Yield the kept messages of ``start`` ≤ index < ``end`` in order; a concurrent merge or trim is harmless.

    Raises:
        QueueDamaged: a file is missing, or not what was written.
        QueueReplaced: the queue was deleted.
    """
    start = max(start, 1)
    while start < end:
        found = _open_file(store, start, end, columns)
        if found is None:
            return
        file, groups = found
        with groups, store.queue_errors():
            yield from groups.rows_between(max(start, file.first) - file.first, min(end, file.end) - file.first)
        start = file.end


def _open_file(store: QueueStore, start: int, end: int, columns: Sequence[str]) -> tuple[MessageFile, RowGroups] | None:
    """Open the file with the first of these messages that is kept. Once open, it may be removed.

    1. look it up in the version read last, as messages never change, else in the newest version
    2. open it; if it is missing it was replaced, and a newer version says by which file
    """
    with store.guard, store.queue_errors():
        if store.table.last < end - 1:  # 1
            store.refresh()
        while files := store.table.files_covering(start, end):
            try:  # 2
                return files[0], RowGroups(str(store.table.folder / files[0].path), [*columns], verified=True)
            except StateDamaged:
                if not store.refresh():
                    raise
        return None
