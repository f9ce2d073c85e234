"""One queue's folder as a process has it open: its table, its keys, its locks; and whether it is still that queue."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.errors import EngineError, QueueDamaged, QueueReplaced, StateDamaged, UsageError
from ferryman.queues.entries import LAST, LogEntry, MessageFile
from ferryman.queues.message import CONTENT, ROWS
from ferryman.queues.place import Identity, home_of, identity_of, stamp_of
from ferryman.queues.positions import Positions
from ferryman.queues.table import CommitUnknown, KeyRun, MessageTable, Numbers, RememberedKeys, key_name
from ferryman.storage import files
from ferryman.storage.files import StatePath, fsync_folder, is_disk_full
from ferryman.storage.locks import hold_lock
from ferryman.storage.parquet import Part, PartWriter, RowGroups


class QueueStore:
    """An open queue. One thread at a time uses it: whoever changes what it knows holds ``guard``."""

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
        """Is it still the queue that was opened?

        Raises:
            QueueReplaced: it was deleted, and perhaps made again.
        """
        try:
            if stamp_of(self.folder) == self.identity.stamp:
                return
        except (FileNotFoundError, NotADirectoryError):
            raise QueueReplaced(str(self.folder), self.identity.id, None) from None
        now = identity_of(self.folder)
        if now is None or now.id != self.identity.id:
            raise QueueReplaced(str(self.folder), self.identity.id, now.id if now else None)
        self.identity = now  # a copy of it, put in its place

    def refresh(self) -> bool:
        """See the newest version; was there one?

        Raises:
            QueueReplaced: it is not the queue any more that was opened.
            QueueDamaged: a file of the log is missing, or not what was written.
        """
        with self.guard, self.queue_errors():
            self.check_identity()
            return self.table.refresh()

    def find(self, name: str) -> range | None:
        """The indices that were given to an append with a key, as of the version that was moved on to.

        Args:
            name: what stands for the key.
        """
        for file in reversed(self.table.files):
            if file.key == name:
                return range(file.first, file.end)
        return self.keys.find(name)

    @contextlib.contextmanager
    def queue_errors(self) -> Iterator[None]:
        """What is damaged is told in the words of queues; what vanished with its queue is not damage.

        Raises:
            QueueDamaged, QueueReplaced
        """
        try:
            yield
        except QueueDamaged:
            raise
        except StateDamaged as e:
            self.check_identity()
            raise QueueDamaged(e.path, e.what) from e
        except FileNotFoundError as e:
            self.check_identity()
            raise QueueDamaged(str(e.filename), "the file is missing") from e


# Appending: one commit, numbered again as often as somebody else was faster.


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
    with (
        store.guard,
        store.queue_errors(),
        hold_lock(store.appending, limits.QUEUE_TURN_S),
        explain_full_disk(store),
    ):  # 1
        while True:
            store.refresh()  # 2
            if name and (before := store.find(name)) is not None:
                return before
            version = store.table.version
            new = rows if writer is None else writer.new_rows(store, rows)
            if not new.num_rows:
                return range(0)
            if store.table.version != version:
                continue  # it was moved on while it was read
            noted = {} if writer is None else writer.transactions(store, new)
            file = _write_messages(store, new.select(CONTENT.names), name)  # 3
            crash.point("append.staged")
            fsync_folder(store.table.folder)
            # not there if we slept, and somebody took it for left over
            there = files.exists(store.table.folder / file.path)
            if there and _commit(store, file, noted, repeatable=bool(name or writer)):  # 4
                return range(file.first, file.end)
            files.remove(store.table.folder / file.path)


def _commit(store: QueueStore, file: MessageFile, noted: dict[str, int], *, repeatable: bool) -> bool:
    """Commit it; False: somebody else was faster.

    Raises:
        CommitUnknown: we were stopped so long that nobody can tell.
    """
    try:
        return store.table.commit(LogEntry("append", (file,), (), {LAST: file.end - 1, **noted}))
    except CommitUnknown:
        store.refresh()
        if file in store.table.files:
            return True
        if not repeatable:
            raise
        return False  # then the key, or the writer's rows, tell


def _write_messages(store: QueueStore, rows: pa.Table, key: str) -> MessageFile:
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
def explain_full_disk(store: QueueStore) -> Iterator[None]:
    """Raises:
    EngineError: the disk is full; says what to do.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as e:
        if not is_disk_full(e):
            raise
        raise EngineError(
            f"{store.folder}: the disk is full. What was appended before is there. Make room and append again, with "
            "the same key if there was one."
        ) from e


# Rows that may be appended again: which of them are in the queue already, or have been.
#
# A writer appends its rows in the order of their sequences, and each commit notes the highest one in the same log
# entry: rows above it are new. The others are looked for among the messages, from the newest one back. A row that was
# being appended when its process was killed is among the last ones.
#
# A message that is trimmed may be one that its writer does not know to have arrived. So a commit also notes up to
# which sequence all of the writer's rows are settled, and of trimmed messages from there on (hash, sequence) is kept,
# until the writer has settled them too. Of a writer that never comes back, that stays: it is what it had sent last.

SEQUENCE: Final = "sequence"
WRITER: Final = "writer"
"""Keys of a message's ``meta``; ``sequence`` is a column of the rows too."""

_HIGHEST, _SETTLED = f"{WRITER} ", "settled "
"""With a writer's name: the applications whose transaction numbers are its highest sequence, and the lowest of those
that it may append again."""

_BUFFERED_ROWS: Final = 65_536
"""Trimmed rows that are in memory before they are written."""


class RepeatingWriter(NamedTuple):
    """Whoever appends rows that have a hash and a sequence, and may append them again."""

    name: str
    settled: int = 0
    """Rows of lower sequences do not come again."""

    def new_rows(self, store: QueueStore, rows: pa.Table) -> pa.Table:
        """Those that are not in the queue, nor were, as of the version that ``store`` has been moved on to.

        Args:
            rows: ``message.CONTENT`` and ``sequence``.

        Raises:
            UsageError: there are rows that the writer had settled before.
        """
        self._refuse_settled(store, rows)
        repeated = pc.less_equal(rows[SEQUENCE], highest_sequence(store, self.name))
        if not pc.any(repeated).as_py():
            return rows
        known = self._find_repeated(store, rows.filter(repeated))
        return rows.filter(pa.array([key not in known for key in _row_keys(rows)], pa.bool_()))

    def transactions(self, store: QueueStore, rows: pa.Table) -> dict[str, int]:
        """What the commit of these rows notes, as transactions of the log."""
        noted = {f"{_HIGHEST}{self.name}": max(highest_sequence(store, self.name), pc.max(rows[SEQUENCE]).as_py())}
        if self.settled > _settled_sequence(store, self.name):
            noted[f"{_SETTLED}{self.name}"] = self.settled
        return noted

    def _refuse_settled(self, store: QueueStore, rows: pa.Table) -> None:
        """A process that slept for long, or an old copy of the writer's state: nobody knows what is in the queue."""
        least, settled = pc.min(rows[SEQUENCE]).as_py(), _settled_sequence(store, self.name)
        if least < settled:
            raise UsageError(
                f"{store.folder}: {self.name} sends sequence {least} again, though it had settled all below {settled}: "
                "its state is older than what it has sent, as an old copy is. Nothing was appended. Put the newest "
                "state back, or begin with a new one, which sends every document again."
            )

    def _find_repeated(self, store: QueueStore, rows: pa.Table) -> set[tuple[str, int]]:
        """(hash, sequence) of those that are in the queue, or were trimmed."""
        wanted = set(_row_keys(rows))
        hashes = rows["hash"].combine_chunks()
        found: set[tuple[str, int]] = set()
        for file in reversed(store.table.files):
            for part in read_between(store, file.first, file.end, ["hash", "meta"]):
                alike = part.filter(pc.is_in(part["hash"], hashes))
                found |= wanted & {(digest, n) for writer, n, digest in _rows_with_writer(alike) if writer == self.name}
            if len(found) == len(wanted):
                return found
        # after the messages: what is trimmed meanwhile is kept before it goes
        names = {_row_name(self.name, *key): key for key in wanted - found}
        return found | {names[name] for name in store.trimmed_rows.find_known(names)}


def highest_sequence(store: QueueStore, writer: str) -> int:
    """The highest sequence of a writer, 0 if it has appended nothing."""
    return store.table.transactions.get(f"{_HIGHEST}{writer}", 0)


def keep_trimmed(store: QueueStore, files: Sequence[MessageFile]) -> None:
    """Before these files leave the log: keep, durably, which of their rows may be appended again, and forget those that
    were kept and may not any more.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    names = [name.removeprefix(_HIGHEST) for name in store.table.transactions if name.startswith(_HIGHEST)]
    if not names:
        return
    floors = {name: _settled_sequence(store, name) for name in names}
    by_number = {_writer_number(name): floor for name, floor in floors.items()}
    store.trimmed_rows.drop(lambda run: _still_repeatable(run, by_number))
    kept: list[tuple[str, int, int]] = []
    for file in files:
        with RowGroups(str(store.table.folder / file.path), ["hash", "meta"], verified=True) as groups:
            for part in groups.all_rows():
                kept += [
                    (_row_name(writer, digest, number), number, _writer_number(writer))
                    for writer, number, digest in _rows_with_writer(part)
                    if number >= floors.get(writer, number + 1)
                ]
                if len(kept) >= _BUFFERED_ROWS:
                    store.trimmed_rows.add(kept)
                    kept = []
    if kept:
        store.trimmed_rows.add(kept)
        crash.point("trimmed.kept")
    store.trimmed_rows.merge()


class _Meta(msgspec.Struct):
    """What a message's ``meta`` says of its writer; anything, where somebody else has written it."""

    writer: object = None
    sequence: object = None


_meta_of = msgspec.json.Decoder(_Meta).decode


def _rows_with_writer(rows: pa.Table) -> Iterator[tuple[str, int, str]]:
    """Writer, sequence and hash of the messages that have them."""
    for digest, text in zip(rows["hash"].to_pylist(), rows["meta"].to_pylist(), strict=True):
        if digest is not None and text:
            try:
                meta = _meta_of(text)
            except msgspec.DecodeError:  # somebody else's, and no object
                continue
            if isinstance(meta.writer, str) and isinstance(meta.sequence, int):
                yield meta.writer, meta.sequence, digest


def _settled_sequence(store: QueueStore, writer: str) -> int:
    return store.table.transactions.get(f"{_SETTLED}{writer}", 0)


def _row_name(writer: str, digest: str, sequence: int) -> str:
    return key_name(f"{writer}\0{sequence}\0{digest}")


def _writer_number(writer: str) -> int:
    """Stands for a writer in a file of kept rows: 63 bits."""
    return int.from_bytes(blake2b(writer.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1


def _still_repeatable(run: KeyRun, floors: dict[int, int]) -> Numbers:
    """Of each row in a file of kept ones: may its writer append it again?"""
    wanted = np.zeros(len(run.first), bool)
    for number in np.unique(run.rows).tolist():
        wanted |= (run.rows == number) & (run.first >= floors.get(number, 0))
    return wanted


def _row_keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["hash"].to_pylist(), rows[SEQUENCE].to_pylist(), strict=True))


# Messages as Arrow, by their indices: any range, a row group in memory at a time.


def read_between(store: QueueStore, start: int, end: int, columns: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
    """Messages of ``start`` ≤ index < ``end`` that are there and kept, in order; a merge or trim beside it is harmless.

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
    """The file with the first of these messages that is kept. Once it is open it may be removed.

    1. look it up: in what is known, as messages never change, else in the newest version
    2. open it; if it is gone it was replaced, and a newer version says by what
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
