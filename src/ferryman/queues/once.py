"""Rows that may be appended again: which of them are in the queue already, or have been.

A writer appends its rows in the order of their sequences, and each commit notes the highest one in the same log entry:
rows above it are new. The others are looked for among the messages, from the newest one back. A row that was being
appended when its process was killed is among the last ones.

A message that is trimmed may be one that its writer does not know to have arrived. So a commit also notes up to which
sequence all of the writer's rows are settled, and of trimmed messages from there on (hash, sequence) is kept, until the
writer has settled them too. Of a writer that never comes back, that stays: it is what it had sent last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash
from ferryman.errors import UsageError
from ferryman.queues.entries import MessageFile
from ferryman.queues.keys import KeyRun, Numbers, key_name
from ferryman.queues.reading import between
from ferryman.queues.store import QueueStore
from ferryman.storage.groups import RowGroups

SEQUENCE: Final = "sequence"
WRITER: Final = "writer"
"""Keys of a message's ``meta``; ``sequence`` is a column of the rows too."""

_HIGHEST, _SETTLED = f"{WRITER} ", "settled "
"""With a writer's name: the applications whose transaction numbers are its highest sequence, and the lowest of those
that it may append again."""

_AT_ONCE: Final = 65_536
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
        repeated = pc.less_equal(rows[SEQUENCE], highest(store, self.name))
        if not pc.any(repeated).as_py():
            return rows
        known = self._found(store, rows.filter(repeated))
        return rows.filter(pa.array([key not in known for key in _keys(rows)], pa.bool_()))

    def noted(self, store: QueueStore, rows: pa.Table) -> dict[str, int]:
        """What the commit of these rows notes, as transactions of the log."""
        noted = {f"{_HIGHEST}{self.name}": max(highest(store, self.name), pc.max(rows[SEQUENCE]).as_py())}
        if self.settled > _settled(store, self.name):
            noted[f"{_SETTLED}{self.name}"] = self.settled
        return noted

    def _refuse_settled(self, store: QueueStore, rows: pa.Table) -> None:
        """A process that slept for long, or an old copy of the writer's state: nobody knows what is in the queue."""
        least, settled = pc.min(rows[SEQUENCE]).as_py(), _settled(store, self.name)
        if least < settled:
            raise UsageError(
                f"{store.folder}: {self.name} sends sequence {least} again, though it had settled all below {settled}: "
                "its state is older than what it has sent, as an old copy is. Nothing was appended. Put the newest "
                "state back, or begin with a new one, which sends every document again."
            )

    def _found(self, store: QueueStore, rows: pa.Table) -> set[tuple[str, int]]:
        """(hash, sequence) of those that are in the queue, or were trimmed."""
        wanted = set(_keys(rows))
        hashes = rows["hash"].combine_chunks()
        found: set[tuple[str, int]] = set()
        for file in reversed(store.table.files):
            for part in between(store, file.first, file.end, ["hash", "meta"]):
                alike = part.filter(pc.is_in(part["hash"], hashes))
                found |= wanted & {(digest, n) for writer, n, digest in _written(alike) if writer == self.name}
            if len(found) == len(wanted):
                return found
        # after the messages: what is trimmed meanwhile is kept before it goes
        names = {_row_name(self.name, *key): key for key in wanted - found}
        return found | {names[name] for name in store.trimmed.known(names)}


def highest(store: QueueStore, writer: str) -> int:
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
    floors = {name: _settled(store, name) for name in names}
    by_number = {_number(name): floor for name, floor in floors.items()}
    store.trimmed.drop(lambda run: _wanted(run, by_number))
    kept: list[tuple[str, int, int]] = []
    for file in files:
        with RowGroups(str(store.table.folder / file.path), ["hash", "meta"], verified=True) as groups:
            for part in groups.all():
                kept += [
                    (_row_name(writer, digest, number), number, _number(writer))
                    for writer, number, digest in _written(part)
                    if number >= floors.get(writer, number + 1)
                ]
                if len(kept) >= _AT_ONCE:
                    store.trimmed.add(kept)
                    kept = []
    if kept:
        store.trimmed.add(kept)
        crash.point("trimmed.kept")
    store.trimmed.merge()


class _Meta(msgspec.Struct):
    """What a message's ``meta`` says of its writer; anything, where somebody else has written it."""

    writer: object = None
    sequence: object = None


_meta_of = msgspec.json.Decoder(_Meta).decode


def _written(rows: pa.Table) -> Iterator[tuple[str, int, str]]:
    """Writer, sequence and hash of the messages that have them."""
    for digest, text in zip(rows["hash"].to_pylist(), rows["meta"].to_pylist(), strict=True):
        if digest is not None and text:
            try:
                meta = _meta_of(text)
            except msgspec.DecodeError:  # somebody else's, and no object
                continue
            if isinstance(meta.writer, str) and isinstance(meta.sequence, int):
                yield meta.writer, meta.sequence, digest


def _settled(store: QueueStore, writer: str) -> int:
    return store.table.transactions.get(f"{_SETTLED}{writer}", 0)


def _row_name(writer: str, digest: str, sequence: int) -> str:
    return key_name(f"{writer}\0{sequence}\0{digest}")


def _number(writer: str) -> int:
    """Stands for a writer in a file of kept rows: 63 bits."""
    return int.from_bytes(blake2b(writer.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1


def _wanted(run: KeyRun, floors: dict[int, int]) -> Numbers:
    """Of each row in a file of kept ones: may its writer append it again?"""
    wanted = np.zeros(len(run.first), bool)
    for number in np.unique(run.rows).tolist():
        wanted |= (run.rows == number) & (run.first >= floors.get(number, 0))
    return wanted


def _keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["hash"].to_pylist(), rows[SEQUENCE].to_pylist(), strict=True))
