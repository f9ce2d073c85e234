"""Appending to a queue: one commit, with new indices each time another process was faster."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.errors import EngineError, UsageError
from ferryman.queues.message import CONTENT, ROWS
from ferryman.queues.store import QueueStore, read_between
from ferryman.queues.table import LAST, KeyRun, MessageFile, Numbers, key_name
from ferryman.records.rows import scalar_of
from ferryman.storage import files
from ferryman.storage.delta import CommitUnknown, LogEntry
from ferryman.storage.files import StatePath, fsync_folder, is_disk_full
from ferryman.storage.locks import hold_lock
from ferryman.storage.parquet import Part, PartWriter, RowGroups, number_array


def append_rows(
    store: QueueStore, rows: pa.Table, key: str | None = None, writer: RepeatingWriter | None = None
) -> range:
    """Append messages (``message.CONTENT``) durably; return their indices.

    1. wait for a lock; this is only for fairness, and correctness does not depend on it
    2. read the newest version of the table. If it has the key, the messages are appended already. If there is a writer,
       drop its rows that were already appended
    3. write the messages to a file, with the next indices
    4. commit the file. If another process has committed in the meantime, begin again at 2

    Args:
        writer: writer of the rows, which have a hash and a ``sequence``: each of them is appended once.

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
                continue  # it was refreshed while it was read
            transactions = {} if writer is None else writer.transactions(store, new)
            file = _write_messages(store, new.select(CONTENT.names), name)  # 3
            crash.point("append.staged")
            fsync_folder(store.table.folder)
            # missing if this process was suspended, and another one removed it as a leftover
            exists = files.exists(store.table.folder / file.path)
            if exists and _commit(store, file, transactions, repeatable=bool(name or writer)):  # 4
                return range(file.first, file.end)
            files.remove(store.table.folder / file.path)


def _commit(store: QueueStore, file: MessageFile, transactions: dict[str, int], *, repeatable: bool) -> bool:
    """Commit a file; return False if another process was faster.

    Raises:
        CommitUnknown: this process was stopped for so long that the result is unknown.
    """
    try:
        return store.table.commit(LogEntry("append", (file,), (), {LAST: file.end - 1, **transactions}))
    except CommitUnknown:
        store.refresh()
        if file in store.table.files:
            return True
        if not repeatable:
            raise
        return False  # the retry finds out by the key, or by the writer's rows


def _write_messages(store: QueueStore, rows: pa.Table, key: str) -> MessageFile:
    first = store.table.last + 1
    now = dt.datetime.now(dt.UTC)
    numbered = rows.add_column(0, ROWS.field("index"), number_array(np.arange(first, first + rows.num_rows)))
    created = pa.repeat(scalar_of(now, ROWS.field("created").type), rows.num_rows)
    part = write_rows(store.table.folder, [numbered.append_column(ROWS.field("created"), created)])
    at = int(now.timestamp()) * 1_000_000 + now.microsecond
    return MessageFile(part.path, part.size, first, rows.num_rows, at, at, 0, key)


def write_rows(folder: StatePath, tables: Iterator[pa.Table] | list[pa.Table]) -> Part:
    """Write a synced data file of these rows, in row groups small enough for reading a single message."""
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
    """Explain the error of a full disk.

    Raises:
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


# --- rows that a writer may append again: finding those that are, or have been, in the queue ---
#
# A writer appends its rows in the order of their sequences, and each commit records the highest one in the same log
# entry: rows above it are new. The others are searched among the messages, from the newest one back. A row that was
# being appended when its process was killed is among the last ones.
#
# A trimmed message may be one that its writer does not know to have arrived. So a commit also records up to which
# sequence all of the writer's rows are settled, and of trimmed messages from there on (hash, sequence) is kept, until
# the writer has settled them too. For a writer that never returns it stays: these are the rows it sent last.

SEQUENCE: Final = "sequence"
WRITER: Final = "writer"
"""Keys of a message's ``meta``; ``sequence`` is a column of the rows too."""

_HIGHEST, _SETTLED = f"{WRITER} ", "settled "
"""Prefixes, followed by a writer's name, of applications whose transaction numbers are its highest sequence, and the
lowest of those that it may append again."""

_ADOPTED_FIRST, _ADOPTED_LAST = "adopted first ", "adopted last "
"""Prefixes, likewise, of the first and the last index among which its messages are that its state does not know."""

_BUFFERED_ROWS: Final = 65_536
"""Trimmed rows held in memory before they are written."""


class RepeatingWriter(NamedTuple):
    """Writer whose rows have a hash and a sequence, and which may append them again."""

    name: str
    settled: int = 0
    """Rows of lower sequences are not appended again."""

    def new_rows(self, store: QueueStore, rows: pa.Table) -> pa.Table:
        """Return the rows that are not, and were not, in the queue, as of the version that ``store`` has read.

        Args:
            rows: ``message.CONTENT`` and ``sequence``.

        Raises:
            UsageError: there are rows that the writer had settled before.
        """
        self._refuse_settled(store, rows)
        if adopted := self._adopted_hashes(store, rows["hash"].combine_chunks()):
            rows = rows.filter(pc.invert(pc.is_in(rows["hash"], pa.array(sorted(adopted), pa.string()))))
        repeated = pc.less_equal(rows[SEQUENCE], scalar_of(highest_sequence(store, self.name), pa.int64()))
        if not pc.any(repeated).as_py():
            return rows
        known = self._find_repeated(store, rows.filter(repeated))
        return rows.filter(pa.array([key not in known for key in _row_keys(rows)], pa.bool_()))

    def transactions(self, store: QueueStore, rows: pa.Table) -> dict[str, int]:
        """Return the transactions of the log that the commit of these rows records."""
        numbers = {f"{_HIGHEST}{self.name}": max(highest_sequence(store, self.name), pc.max(rows[SEQUENCE]).as_py())}
        if self.settled > _settled_sequence(store, self.name):
            numbers[f"{_SETTLED}{self.name}"] = self.settled
        return numbers

    def _adopted_hashes(self, store: QueueStore, hashes: pa.Array) -> set[str]:
        """Return those of the hashes that the writer appended before an older copy of its state was adopted, and that
        the copy does not know."""
        last = store.table.transactions.get(f"{_ADOPTED_LAST}{self.name}", 0)
        found: set[str] = set()
        if last and len(hashes):
            first = store.table.transactions.get(f"{_ADOPTED_FIRST}{self.name}", 1)
            for part in read_between(store, first, last + 1, ["hash", "meta"]):
                alike = part.filter(pc.is_in(part["hash"], hashes))
                found |= {digest for writer, _, digest in _rows_with_writer(alike) if writer == self.name}
        return found

    def _refuse_settled(self, store: QueueStore, rows: pa.Table) -> None:
        """Refuse rows whose sequences are already settled, from a process that was suspended for long or an old copy of
        the writer's state: whether they were appended is not known."""
        least, settled = pc.min(rows[SEQUENCE]).as_py(), _settled_sequence(store, self.name)
        if least < settled:
            raise UsageError(
                f"{store.folder}: {self.name} sends sequence {least} again, though it had settled all below {settled}: "
                "its state is older than what it has sent, as an old copy is. Nothing was appended. Put the newest "
                "state back, or begin with a new one, which sends every document again."
            )

    def _find_repeated(self, store: QueueStore, rows: pa.Table) -> set[tuple[str, int]]:
        """Return (hash, sequence) of those rows that are in the queue, or were trimmed."""
        wanted = set(_row_keys(rows))
        hashes = rows["hash"].combine_chunks()
        found: set[tuple[str, int]] = set()
        for file in reversed(store.table.files):
            for part in read_between(store, file.first, file.end, ["hash", "meta"]):
                alike = part.filter(pc.is_in(part["hash"], hashes))
                found |= wanted & {(digest, n) for writer, n, digest in _rows_with_writer(alike) if writer == self.name}
            if len(found) == len(wanted):
                return found
        # after the messages: messages trimmed in the meantime are recorded before they are removed
        names = {_row_name(self.name, *key): key for key in wanted - found}
        return found | {names[name] for name in store.trimmed_rows.find_known(names)}


def adopt_writer(store: QueueStore, writer: str, known: int) -> None:
    """Record durably where the messages are that a writer has appended with sequences from ``known`` on, of which its
    state, an older copy, does not know: messages of the same hashes are not appended again.

    Raises:
        QueueReplaced: the queue was deleted.
    """
    with store.guard, store.queue_errors():
        while True:
            store.refresh()
            first, last = _adopted_range(store, writer, known)
            numbers = {f"{_ADOPTED_FIRST}{writer}": first, f"{_ADOPTED_LAST}{writer}": last}
            if not last or numbers.items() <= store.table.transactions.items():
                return
            if store.table.commit(LogEntry("append", (), (), numbers)):
                return


def _adopted_range(store: QueueStore, writer: str, known: int) -> tuple[int, int]:
    """Return the first and the last index of the messages that ``adopt_writer`` records; (0, 0): there are none."""
    first, last = (store.table.transactions.get(f"{name}{writer}", 0) for name in (_ADOPTED_FIRST, _ADOPTED_LAST))
    for file in reversed(store.table.files):
        own = [
            sequence
            for part in read_between(store, file.first, file.end, ["hash", "meta"])
            for name, sequence, _ in _rows_with_writer(part)
            if name == writer
        ]
        if any(sequence >= known for sequence in own):
            first, last = min(file.first, first or file.first), max(file.end - 1, last)
        elif own:
            break  # it appends in the order of its sequences
    return first, last


def highest_sequence(store: QueueStore, writer: str) -> int:
    """Return the highest sequence of a writer, 0 if it has appended nothing."""
    return store.table.transactions.get(f"{_HIGHEST}{writer}", 0)


def keep_trimmed(store: QueueStore, files: Sequence[MessageFile]) -> None:
    """Before these files leave the log, record durably which of their rows may be appended again; remove recorded rows
    for which that is no longer possible.

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
    """Writer and sequence in a message's ``meta``; their types are unchecked, since another program may have written
    it."""

    writer: object = None
    sequence: object = None


_meta_of = msgspec.json.Decoder(_Meta).decode


def _rows_with_writer(rows: pa.Table) -> Iterator[tuple[str, int, str]]:
    """Yield writer, sequence and hash of the messages that have them."""
    for digest, text in zip(rows["hash"].to_pylist(), rows["meta"].to_pylist(), strict=True):
        if digest is not None and text:
            try:
                meta = _meta_of(text)
            except msgspec.DecodeError:  # another program's, and not an object
                continue
            if isinstance(meta.writer, str) and isinstance(meta.sequence, int):
                yield meta.writer, meta.sequence, digest


def _settled_sequence(store: QueueStore, writer: str) -> int:
    return store.table.transactions.get(f"{_SETTLED}{writer}", 0)


def _row_name(writer: str, digest: str, sequence: int) -> str:
    return key_name(f"{writer}\0{sequence}\0{digest}")


def _writer_number(writer: str) -> int:
    """Return a 63-bit number that stands for a writer in a file of recorded rows."""
    return int.from_bytes(blake2b(writer.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1


def _still_repeatable(run: KeyRun, floors: dict[int, int]) -> Numbers:
    """Return, for each row in a file of recorded rows, whether its writer may append it again."""
    wanted = np.zeros(len(run.first), bool)
    for number in np.unique(run.rows).tolist():
        wanted |= (run.rows == number) & (run.first >= floors.get(number, 0))
    return wanted


def _row_keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["hash"].to_pylist(), rows[SEQUENCE].to_pylist(), strict=True))
