"""Durable queues: many processes append to one and read it, each message once and in order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.errors import EngineError, Misconfigured, StateFolderError, Unavailable, UsageError, describe
from ferryman.queues import place, upkeep
from ferryman.queues.append import RepeatingWriter, adopt_writer, append_rows, highest_sequence
from ferryman.queues.message import ROWS, Message, content_of, messages_of
from ferryman.queues.store import QueueStore, read_between
from ferryman.queues.table import key_name
from ferryman.queues.tailer import Tailer
from ferryman.storage.files import StatePath, classified_errors, explain_errors_of_class, explained_errors, fsync_folder
from ferryman.storage.locks import hold_lock
from ferryman.storage.objects import ObjectPath


@explain_errors_of_class(lambda queue: getattr(queue, "folder", "queue"))
class Queue:
    """A named queue in a folder. It is created by the first append or the first tailer, and exists until it is deleted.
    Messages have indices from 1 without gaps, and never change.

    Args:
        name: letters, digits, ``-``, ``_`` and ``.``.
        root: the folder of queues, or its URL in an object store, such as s3://bucket/queues.
        keep: at each append, remove files whose messages are all older than this (``"10d"``) and were read by all
            registered readers. None: keep everything.

    Raises:
        UsageError: the name is not valid, or something else is at its place.
    """

    def __init__(
        self, name: str, root: str | os.PathLike[str] | ObjectPath = "queues", *, keep: str | float | None = None
    ) -> None:
        self.name = place.check_name(name)
        self.root = place.root_of(root)
        self.folder = self.root / name
        self._keep_s = None if keep is None else upkeep.seconds_of(keep)
        self._store: QueueStore | None = None
        self._open_if_exists()

    def append(
        self, messages: Iterable[Mapping[str, Any]], key: str | None = None, *, meta: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Append messages in one atomic, durable commit; return their indices.

        Args:
            messages: JSON objects.
            key: makes the append safe to repeat: if the key was used before, nothing is appended, and the indices of
                the first append are returned.
            meta: JSON object stored with each of the messages.

        Raises:
            UsageError: a message is not a JSON object; nothing was appended.
            QueueReplaced: the queue was deleted after this object first used it; nothing was appended.
        """
        return [*self.append_rows(content_of(messages, meta), key)]

    def append_rows(self, rows: pa.Table, key: str | None = None) -> range:
        """Append messages given as Arrow; return their indices.

        Args:
            rows: ``message`` and ``meta`` (JSON objects as text), ``hash``; not checked.
            key: as for ``append``; ``appended`` says whether it took effect.
        """
        if key is not None and (not isinstance(key, str) or not key):
            raise UsageError(f"key={key!r}: give a text that is not empty.")
        return self._append(rows, key=key) if rows.num_rows else range(0)

    def append_new(self, rows: pa.Table, writer: str, settled: int = 0) -> int:
        """Append those rows of a writer that it has not appended before, in one commit; return how many. Rows that have
        been trimmed since are not appended again either.

        Args:
            rows: ``message``, ``meta`` and ``hash`` as for ``append_rows``, and ``sequence``, ascending and above 0.
                Rows of the same hash and sequence are the same row. Their ``meta`` has ``sequence`` and ``writer``.
            settled: rows with lower sequences will not be appended again, so nothing about them needs to be kept once
                they are trimmed.

        Raises:
            UsageError: a row's sequence was declared settled by an earlier call. Nothing was appended.
        """
        return len(self._append(rows, writer=RepeatingWriter(writer, settled))) if rows.num_rows else 0

    def highest_of(self, writer: str) -> int | None:
        """Return the highest sequence that a writer has appended (``append_new``); None if it has appended nothing."""
        store = self._open_if_exists()
        if store is None:
            return None
        store.refresh()
        return highest_sequence(store, writer) or None

    def adopt_writer(self, writer: str, known: int) -> None:
        """Accept a writer whose state is an older copy: what it has appended with sequences from ``known`` on is not
        appended again under the same hashes (``append_new``)."""
        if (store := self._open_if_exists()) is not None:
            adopt_writer(store, writer, known)

    def _append(self, rows: pa.Table, key: str | None = None, writer: RepeatingWriter | None = None) -> range:
        store = self._open_or_create()
        indices = append_rows(store, rows, key, writer)
        with upkeep.postpone_on_error():
            if self._keep_s is not None and upkeep.too_old(store, self._keep_s):
                upkeep.trim(store, self._keep_s, exact=False)
            upkeep.maintain(store)
        return indices

    def appended(self, key: str) -> range | None:
        """Return the indices of the append with this key; None if it has not taken effect."""
        store = self._open_if_exists()
        if store is None:
            return None
        store.refresh()
        with store.queue_errors():
            return store.find(key_name(key))

    def read(self, start: int = 1, limit: int = 100) -> list[Message]:
        """Return the messages from this index on, without those that were trimmed."""
        store = self._open_if_exists()
        if store is None or limit < 1:
            return []
        store.refresh()
        start = max(start, store.table.first)
        return [m for part in self.read_rows(start, start + limit) for m in messages_of(part)]

    def read_rows(self, start: int, end: int) -> Iterator[pa.Table]:
        """Return messages of ``start`` ≤ index < ``end`` as Arrow: ``index, message, meta, hash, created``."""
        store = self._open_if_exists()
        return iter(()) if store is None else read_between(store, start, end, ROWS.names)

    def indices_of(self, hashes: Collection[str]) -> list[int]:
        """Return the indices of the kept messages with these hashes, reading all messages."""
        store = self._open_if_exists()
        if store is None or not hashes:
            return []
        store.refresh()
        wanted = pa.array(list(hashes), pa.string())
        found: list[int] = []
        for rows in read_between(store, store.table.first, store.table.last + 1, ["index", "hash"]):
            found += rows.filter(pc.is_in(rows["hash"], value_set=wanted))["index"].to_pylist()
        return found

    def files(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (first index, index after the last, bytes) of each file that has kept messages of ``start`` ≤ index <
        ``end``."""
        store = self._open_if_exists()
        if store is None:
            return []
        store.refresh()
        return [(f.first, f.end, f.size) for f in store.table.files_covering(start, end)]

    def tailer(self, name: str | None = None) -> Tailer:
        """Return a reader that remembers its position: under this name in the queue; or, without a name, starting at 1
        each time.

        Raises:
            UsageError: the name is not valid.
        """
        if name is not None:
            place.check_name(name, "a reader")
        return Tailer(self._open_or_create(), name)

    def register(self, reader: str, position: int, moved: str = "") -> None:
        """Record a reader's position durably, so that messages it has not read are not trimmed. If the reader was moved
        in the meantime, the move stays in effect.

        Args:
            position: index of the next message.
            moved: the last move that the reader has followed; see ``moved``.
        """
        place.check_name(reader, "a reader")
        store = self._open_or_create()
        with store.queue_errors(), store.positions.hold(reader):
            store.check_identity()
            noted = False
            while not noted:
                found = store.positions.last_move(reader)
                noted = (found is not None and found[1] != moved) or store.positions.record(reader, position)

    def moved(self, reader: str) -> tuple[int, str] | None:
        """Return the position to which a reader was moved (``queue rewind``), and a unique id of this move; None if it
        reached its position by reading."""
        store = self._open_if_exists()
        if store is None:
            return None
        with store.queue_errors():
            return store.positions.last_move(place.check_name(reader, "a reader"))

    def readers(self) -> dict[str, int]:
        """Return registered reader -> index of its next message."""
        store = self._open_if_exists()
        if store is None:
            return {}
        with store.queue_errors():
            store.check_identity()
            return store.positions.all()

    def forget(self, reader: str) -> bool:
        """Remove a reader and its position, so that nothing is kept for it any more. Return False if there is no reader
        of that name."""
        store = self._open_if_exists()
        if store is None:
            return False
        with store.queue_errors():
            return reader in store.positions.list_readers() and store.positions.forget(reader)

    def trim(self, keep: str | float, force: bool = False) -> int:
        """Remove messages older than ``keep`` (``"10d"``) from the beginning; return how many.

        A message that a registered reader has not read is kept, with all messages after it, unless ``force``.
        """
        keep_s = upkeep.seconds_of(keep)
        store = self._open_if_exists()
        return 0 if store is None else upkeep.trim(store, keep_s, force=force)

    def delete(self) -> None:
        """Delete the queue with its messages and readers. A queue created later under its name is a different one."""
        store = self._open_if_exists()
        if store is not None:
            with store.queue_errors(), hold_lock(store.appending, limits.QUEUE_TURN_S):
                store.check_identity()
                place.remove(self.folder, store.identity.id)
        place.remove_leftovers(self.root)
        self._store = None

    def make(self) -> None:
        """Create the queue, empty, unless it exists."""
        self._open_or_create()

    @property
    def exists(self) -> bool:
        """Return whether the queue was created."""
        return self._open_if_exists() is not None

    @property
    def id(self) -> str | None:
        """Return the UUID of the queue, which differs even from that of a queue created later under its name; None if
        it was not created."""
        store = self._open_if_exists()
        return None if store is None else store.identity.id

    @property
    def last_index(self) -> int:
        """Return the index of the last message ever appended, 0 if there was none."""
        store = self._open_if_exists()
        if store is None:
            return 0
        store.refresh()
        return store.table.last

    @property
    def first_index(self) -> int:
        """Return the index of the first message that is kept; of the next one if none is."""
        store = self._open_if_exists()
        if store is None:
            return 1
        store.refresh()
        return store.table.first

    @classmethod
    def all(cls, root: str | os.PathLike[str] | ObjectPath = "queues") -> list[str]:
        """Return the names of the queues in a folder."""
        with explained_errors(root):
            return place.list_queues(place.root_of(root))

    @classmethod
    def unused(cls, root: str | os.PathLike[str] | ObjectPath = "queues") -> list[str]:
        """Return the names of the queues in a folder that have no registered reader."""
        return [name for name in cls.all(root) if not cls(name, root).readers()]

    def _open_if_exists(self) -> QueueStore | None:
        if self._store is None and (identity := place.identity_of(self.folder)) is not None:
            with contextlib.suppress(OSError):  # a folder that this process can only read
                fsync_folder(self.root)  # its creator may have been killed before the name was durable
            self._store = QueueStore(self.folder, identity)
        return self._store

    def _open_or_create(self) -> QueueStore:
        if (store := self._open_if_exists()) is None:
            place.make(self.folder)
            store = self._open_if_exists()
        if store is None:
            raise EngineError(f"{self.folder}: it was deleted while it was made. Try again.")
        return store

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, root={str(self.root)!r})"


# --- errors of a queue as sources and destinations raise them ---


@contextmanager
def classified_queue_errors(folder: StatePath) -> Iterator[None]:
    """Raise errors within the block as errors about the whole queue.

    Raises:
        Misconfigured: it was deleted, is damaged, or cannot be read or written.
        Unavailable: no room, no memory, or a failing disk.
    """
    try:
        with classified_errors(folder):
            yield
    except (StateFolderError, UsageError) as e:
        raise Misconfigured(str(e)) from e
    except (EngineError, MemoryError, pa.ArrowException) as e:
        # No single message is to blame, so later ones wait and keep their order.
        raise Unavailable(str(e) or describe(e)) from e
