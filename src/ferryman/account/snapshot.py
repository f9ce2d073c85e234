"""Snapshot of the deliveries that still matter to counts, so that a large state is counted by the events since.

A delivery matters while it is of its document's current revision, or has a row in the outbox. Others are replaced by
how many of them ended twice. So a snapshot is as large as the current documents, however many events came before; only
deliveries of entries of logs all stay, since no revision replaces them.

The rows are in a file of the folder ``counted``. ``counted.json`` describes it, and the ledger's log has its number: a
random one, so that no other file, and no file of another copy of the state, is taken for it. Whoever finds that a
snapshot may not be right does not use it, and counts all events.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.errors import StateDamaged
from ferryman.records.rows import Status
from ferryman.state.maintenance import Columns
from ferryman.state.state import SNAPSHOT, SNAPSHOTS, State
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import PartWriter, RowGroups, epoch_of
from ferryman.storage.query import look_up, quote
from ferryman.storage.tables import Table

EVENTS: Final = pa.schema(
    [
        ("o", pa.uint64()),
        ("h", pa.uint64()),
        ("revision", pa.int64()),
        ("at", pa.int64()),
        ("status", pa.int8()),
        ("deletes", pa.bool_()),
        ("destination", pa.int16()),
        ("log", pa.int16()),
        ("unread", pa.bool_()),
    ]
)
"""``o``: hash of the family; ``h``: hash of the delivery; ``at`` orders the events of a delivery; ``log``: number of
the source among the logs, else -1; ``unread``: the event says that something of the document was not read."""

ROWS: Final = pa.schema(
    [
        *EVENTS,
        ("ended", pa.int32()),
        ("begun", pa.int32()),
        ("indexed", pa.bool_()),
        ("listed", pa.bool_()),
    ]
)
"""A row for each delivery, with its last event; how often it ended, and was begun again by an
operator; whether it was ever delivered; and whether its family is in ``documents``. A row without a destination (-1) is
not a delivery: it says up to which revision a family was counted, or that a delivery in the outbox had no event yet."""

NO_EVENT: Final = -1
"""Destination of a row that is not a delivery."""


class SnapshotUnusable(Exception):
    """The snapshot cannot be proved right: count all events."""


class WaveCounts(TypedDict):
    """Counts of a wave's events: all; and those by which a delivery was delivered or deleted, has failed, was rejected,
    is in doubt, or is pending after an attempt that failed.

    ``created``: ISO 8601 time of the first event, and no earlier than those of the waves before.
    """

    wave: int
    created: str
    events: int
    delivered: int
    failed: int
    rejected: int
    in_doubt: int
    pending: int


class EndedRow(msgspec.Struct, frozen=True, array_like=True):
    """Number of events by which deliveries ended, of a destination, stored status, operation and attempt."""

    destination: str
    status: str
    operation: str
    attempt: int
    number: int


class Snapshot(msgspec.Struct, frozen=True):
    """Description of a snapshot, with what is counted of its events beside the deliveries.

    Attributes:
        number: number of the commit that made it valid, on the ledger.
        wave: the last wave whose events are in it.
        events: number of events up to that wave.
        sources: ledger files that have no other events.
        file: name of the file with the rows.
        rows: their number.
        salt: what is hashed before each family's name.
        statuses, destinations, logs: the names that columns of the rows have the positions of.
        ended_twice: deliveries that ended more often than they were begun, of those that are not in it.
        waves: the result of ``account.waves``.
        ended: the result of ``queries.ended``.
    """

    number: int
    wave: int
    events: int
    sources: list[str]
    file: str
    rows: int
    salt: str
    statuses: list[str]
    destinations: list[str]
    logs: list[str]
    ended_twice: int
    waves: list[WaveCounts]
    ended: list[EndedRow]

    def is_valid(self, ledger: Table, settled: int, logs: Sequence[str]) -> bool:
        """Return whether the loaded ledger has the events of this snapshot, and the plan the same logs."""
        return (
            self.number == ledger.transaction(SNAPSHOT)
            and self.wave <= settled
            and self.logs == list(logs)
            and self.statuses == list(Status)
        )

    def newer_files(self, ledger: Table) -> list[str]:
        """Return the ledger's files that may have newer events."""
        known = set(self.sources)
        return [name for name in ledger.files if name not in known]

    def check_events(self, ledger: Table, others: int) -> None:
        """Check that the ledger has as many events up to the snapshot's wave as were counted.

        Args:
            others: number of such events in ``newer_files``.

        Raises:
            SnapshotUnusable: it has more or fewer.
        """
        known = sum(file.rows for name in self.sources if (file := ledger.files.get(name)) is not None)
        if known + others != self.events:
            raise SnapshotUnusable(f"{known + others} events up to wave {self.wave}, not {self.events}")

    def is_outgrown(self, newer: int) -> bool:
        """Return whether there are so many newer events that another snapshot is due."""
        return newer * limits.SNAPSHOT_SHARE >= self.rows

    def read(self, root: StatePath, destinations: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, few in memory at a time.

        Args:
            destinations: names that the column ``destination`` shall have the positions of.

        Raises:
            SnapshotUnusable: the file is missing or damaged.
        """
        position = np.array([*map(destinations.index, self.destinations), NO_EVENT], np.int16)
        at = ROWS.get_field_index("destination")
        try:
            with RowGroups(str(root / SNAPSHOTS / self.file), ROWS.names, verified=True) as groups:
                for table in groups.all_rows():
                    renamed = pa.array(position[table["destination"].to_numpy()])
                    yield from table.set_column(at, ROWS.field(at), renamed).cast(ROWS).to_batches()
        except (StateDamaged, OSError) as e:
            raise SnapshotUnusable(str(e)) from e

    def merge_waves(self, newer: list[WaveCounts], limit: int) -> list[WaveCounts]:
        """Return the result of ``account.waves``, of that of the newer events."""
        latest = max((row["created"] for row in self.waves), key=datetime.fromisoformat, default=None)
        for row in newer:
            if latest is not None and datetime.fromisoformat(row["created"]) < datetime.fromisoformat(latest):
                row["created"] = latest
        return [*newer, *self.waves][:limit]

    def merge_ended(self, newer: list[EndedRow]) -> list[EndedRow]:
        """Return the result of ``queries.ended``, of that of the newer events."""
        numbers: dict[tuple[str, str, str, int], int] = {}
        for row in (*self.ended, *newer):
            key = row.destination, row.status, row.operation, row.attempt
            numbers[key] = numbers.get(key, 0) + row.number
        return [EndedRow(*key, number) for key, number in sorted(numbers.items())]


def family_hash_sql(salt: str, document: str) -> str:
    """Return SQL for a hash of a family that is the same in every process; nobody who does not know the salt can choose
    names that collide.

    Args:
        document: SQL for the family.
    """
    return f"md5_number_lower({quote(salt)} || {document})"


def new_salt() -> str:
    """Return a salt for a new snapshot."""
    return secrets.token_hex(8)


class SnapshotWriter:
    """Writes the rows of the next snapshot while they are counted.

    1. write the rows to a file, and sync it
    2. store its description in ``counted.json`` (``counts.save_cached``)
    3. commit its number on the ledger: from now on it is valid
    4. remove earlier files

    Args:
        state: held by this driver, with all waves settled.
    """

    def __init__(self, state: State, salt: str) -> None:
        self._state = state
        self.salt = salt
        self._folder = state.root / SNAPSHOTS
        files.make_folder(self._folder)
        self._writer = PartWriter(self._folder, ROWS, epoch=state.epoch)
        self._ended_twice = 0

    def add(self, rows: Columns, left_out: int) -> None:
        """Add rows.

        Args:
            left_out: deliveries that ended twice among those that are not added.
        """
        self._ended_twice += left_out
        if len(rows["h"]):
            self._writer.write(pa.table([pa.array(rows[field.name], field.type) for field in ROWS], schema=ROWS))

    def abandon(self) -> None:
        """Delete the unfinished file, after an error."""
        self._writer.abandon()

    def finish(
        self,
        destinations: Sequence[str],
        logs: Sequence[str],
        ended_twice: int,
        waves: list[WaveCounts],
        ended: list[EndedRow],
    ) -> Snapshot:
        """Finish the file (step 1), and return its description.

        Args:
            ended_twice: such deliveries of the snapshot before.
        """
        state, ledger = self._state, self._state.ledger
        part = self._writer.finish()
        files.fsync_folder(self._folder)
        crash.point("counted.staged")
        return Snapshot(
            secrets.randbits(62),
            state.wave,
            sum(file.rows for file in ledger.files.values()),
            list(ledger.files),
            part.path,
            part.rows,
            self.salt,
            [str(status) for status in Status],
            list(destinations),
            list(logs),
            ended_twice + self._ended_twice,
            waves,
            ended,
        )

    def publish(self, snapshot: Snapshot) -> None:
        """Make the snapshot valid (step 3), and remove earlier ones."""
        self._state.ledger.commit("counted", transactions={SNAPSHOT: snapshot.number}, data_change=False)
        for name in files.list_names(self._folder):
            if name != snapshot.file and epoch_of(name) <= self._state.epoch:
                files.remove(self._folder / name)


# --- rows of a partition of the families ---


def check_families(rows: Columns, documents: Columns, new: Columns) -> None:
    """Check that nothing which was left out of a snapshot matters now.

    Args:
        rows: all rows of the snapshot.
        documents: the documents as they are now, by ascending hash ``h``.
        new: deliveries with events since that have no row.

    Raises:
        SnapshotUnusable: a new delivery may have been left out, for it is of a revision that was outdated; or a family
            is not in ``documents`` any more.
    """
    order = np.lexsort((rows["revision"], rows["o"]))
    families, revisions = rows["o"][order], rows["revision"][order]
    last = np.append(families[1:] != families[:-1], True)[: len(families)]
    families, revisions = families[last], revisions[last]
    at, present = look_up(families, new["o"])
    if (new["revision"][present] < revisions[at[present]]).any():
        raise SnapshotUnusable("an event of an older revision")
    _, present = look_up(documents["h"], rows["o"][order][rows["listed"][order]])
    if not present.all():
        raise SnapshotUnusable("a document is gone")


def marker_rows(families: Any, revisions: Any, deliveries: Any, *, listed: bool) -> Columns:
    """Return rows that are not deliveries, see ``ROWS``."""
    columns = {name: np.zeros(len(families), np.int64) for name in ROWS.names}
    columns |= {"o": families, "h": deliveries, "revision": revisions}
    columns["destination"] = np.full(len(families), NO_EVENT)
    columns["listed"] = np.full(len(families), listed)
    return {field.name: columns[field.name].astype(field.type.to_pandas_dtype()) for field in ROWS}


def concatenate(first: Mapping[str, Any], second: Mapping[str, Any], names: Collection[str]) -> Columns:
    """Return these columns of both."""
    return {name: np.concatenate([first[name], second[name]]) for name in names}
