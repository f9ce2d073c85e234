"""A task's ``documents`` rows on their way into a file: what is remembered of each document that was processed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ferryman import crash
from ferryman.document import Operation
from ferryman.engine.transform.block import Block, KnownDocument
from ferryman.engine.transform.outbox_buffer import picked
from ferryman.records.events import table_of
from ferryman.records.family import FailedMember, encode_failures, open_deliveries
from ferryman.records.schemas import DOCUMENTS
from ferryman.state.outbox import due_stats
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part, write_part


class DocumentStage:
    """Stages the ``documents`` rows of a task.

    Attributes:
        files: one for each ``flush`` with rows.
        new: rows of documents of which there was none before, at least.
    """

    def __init__(self, root: StatePath, source: str, wave: int, epoch: int) -> None:
        self._folder = root / "documents"
        self._epoch = epoch
        self._shared = {"source": source, "wave": wave}
        self._new: list[int] = []
        self._new_published: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self.files: list[Part] = []
        self.new = 0

    def add_new(self, i: int, published: str) -> None:
        """Row ``i`` of the block is seen for the first time, and nothing failed: most rows are, so they are gathered as
        columns."""
        self._new.append(i)
        self._new_published.append(published)

    def remember(
        self,
        block: Block,
        i: int,
        operation: Operation,
        *,
        given: str,
        due: int | None,
        failures: list[FailedMember],
        held: str | None,
        again: int | None,
    ) -> None:
        """What became of row ``i`` of the block: values of the columns of these names."""
        self.add(
            {
                "document": block.name(i),
                "version": block.versions[i],
                "revision": block.revision(i),
                "fingerprint": block.fingerprints[i],
                "operation": operation,
                "given": given,
                "due": due,
                "owed": 0 if due is None else open_deliveries(failures),
                "failed": encode_failures(failures),
                "held": held,
                "forced": False,
                "again": again,
            }
        )

    def add(self, row: dict[str, Any]) -> None:
        """A row with these columns."""
        self._rows.append(row)

    def drop_last_if_same(self, id: str, known: KnownDocument) -> None:
        """Take back the row that was added last if it says, but for its due time, what is known."""
        last, before = self._rows[-1], same_again(id, known)
        if all(last[name] == before[name] for name in last if name != "due"):
            self._rows.pop()

    def gather(self, block: Block) -> None:
        """What was added of the block's documents, as Arrow columns."""
        if self._new:
            rows = self._new
            self.new += len(rows)
            self._gather(
                len(rows),
                document=picked(block.ids, rows),
                version=picked(block.versions, rows),
                revision=1,
                fingerprint=picked(block.fingerprints, rows),
                operation="upsert",
                given=self._new_published,
                owed=0,
                forced=False,
            )
        if self._rows:
            self._gather(len(self._rows), **{name: [row[name] for row in self._rows] for name in self._rows[0]})
        self._new, self._new_published, self._rows = [], [], []

    def _gather(self, n: int, **columns: Any) -> None:
        self._tables.append(table_of(DOCUMENTS, n, **self._shared, **columns))

    def flush(self) -> None:
        """Write the file."""
        if self._tables:
            documents = pa.concat_tables(self._tables)
            stats = due_stats(documents["due"].to_pylist())
            self.files.append(write_part(self._folder, documents, epoch=self._epoch, stats=stats))
            crash.point("transform.documents")
        self._tables = []


def same_again(id: str, known: KnownDocument) -> dict[str, Any]:
    """A row of ``documents`` that says the same again."""
    return {
        "document": id,
        "version": known.version,
        "revision": known.revision,
        "fingerprint": known.fingerprint,
        "operation": known.operation,
        "given": known.given,
        "due": known.due,
        "owed": 0 if known.due is None else open_deliveries(known.failures),
        "failed": known.failed,
        "held": known.held,
        "forced": False,
        "again": known.again,
    }
