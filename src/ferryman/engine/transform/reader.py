"""Feeds the documents of a task to the walk through the plan: what is new, changed or pending is read and walked."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.document import Document, content_version, current_caller, decode_fields, encode_fields
from ferryman.engine.batches import LogSplit, Reason, TaskSplit, content_path
from ferryman.engine.results import ErrorKind, NodeError, classify_error
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.staging import Stager, Trail
from ferryman.engine.transform.walk import Stage, Walk
from ferryman.errors import BadDocument, unless_interrupt
from ferryman.plan import Plan, StepNode, find_source
from ferryman.sources import Listed, Log, Source
from ferryman.storage.parquet import BatchGroups, column_values

UNREAD: Final = "unread"
"""Version of a document that could not be read: any content that can be read later differs from it."""


class DocumentReader:
    """Reads documents of one source and sends each through the plan.

    Args:
        health: node -> how it is doing in this task.
        guarded: a step's function as it is to be called.
        state: id of the state; "" in a preview.

    Attributes:
        fault: why the last document could not be read.
        size: bytes of the last one that was read.
    """

    def __init__(
        self,
        plan: Plan,
        cut: TaskSplit | LogSplit,
        stage: Stage,
        health: Mapping[str, NodeHealth],
        guarded: Callable[[StepNode], Callable[[Document], Any]],
        state: str = "",
    ) -> None:
        self._name = cut.source
        self._provenance = plan.provenance
        self._source: Source = find_source(plan.nodes, cut.source).source
        self._contents = Contents()
        self._health = health
        self.fault: NodeError
        self.size = 0
        self.walk = Walk(plan, cut.source, stage, task=cut.number, guarded=guarded, health=health)
        self.walk.calling.state = state
        current_caller.set(self.walk.calling)

    @property
    def in_batches(self) -> bool:
        """Do documents belong to batches of the source?"""
        return self._source.in_batches

    def take_over(self, health: Mapping[str, NodeHealth]) -> None:
        """Go on with what is known of the nodes."""
        self._health = health
        self.walk.take_over(health)

    def contents(self, block: Block) -> tuple[list[bytes | None], list[bytes | None]]:
        """Fields and raw bytes of each row that are at hand: staged while listing, or a log's entries."""
        return block.contents() or self._contents.of(block.table)

    def take(
        self, block: Block, i: int, fields: bytes | None, raw: bytes | None
    ) -> tuple[Taken, Callable[[], None] | None]:
        """Read row ``i``; return how it is processed, and its walk if there is one."""
        reason = block.reasons[i]
        if reason == Reason.GONE or block.deletes(i):
            return Taken.GONE, None
        self.walk.calling.at(block, i)
        if self._source.in_batches:
            self.walk.batch = self._source.batch_of(block.table["location"][i].as_py() or "")
        if reason == Reason.RETRY and self._waits(block, i):
            return Taken.KNOWN, None
        if fields is not None:
            doc = Document.of(block.ids[i], decode_fields(fields), raw, block.versions[i])
        else:
            pulse = self._health[self._name]
            if pulse.closed and not pulse.lets(block.ids[i], self.walk.row):
                return self._unread(NodeError(ErrorKind.HELD, self._name, f"waits for source {self._name}"))
            try:
                doc = self._read(block, i)
            except BaseException as e:
                fault = classify_error(
                    unless_interrupt(e), self._name, "reading it", reading=True, traces=self.walk.traces
                )
                again = block.reasons[i] == Reason.RETRY
                pulse.failed(fault, block.ids[i], self.walk.row, self.walk.batch, again=again)
                if fault.kind is ErrorKind.PERMANENT:
                    return self.unread(block, i, fault)
                return self._unread(fault)
            if not pulse.steady:
                pulse.succeeded()
        self.size = len(doc.raw or b"") + len(fields or b"")
        if (why := block.passed_over(i)) is not None:
            return Taken.FIRST, partial(self.walk.passed_over, doc, why)
        if reason == Reason.LOOK and block.is_known_as(i, doc.version):
            return (Taken.TOUCHED if self._source.detect == "fingerprint" else Taken.KNOWN), None
        if reason == Reason.RETRY and (failures := block.to_retry(i)) is not None:
            return Taken.AGAIN, partial(self.walk.again, doc, failures)
        return Taken.FIRST, partial(self.walk.first, doc)

    def unread(self, block: Block, i: int, fault: NodeError) -> tuple[Taken, Callable[[], None] | None]:
        """A document that could not be read, by a fault of its own, unless it is still as unreadable as it was."""
        version = block.versions[i] or version_unread(fault, block.fingerprints[i])
        if block.reasons[i] == Reason.LOOK and block.is_known_as(i, version):
            return Taken.KNOWN, None
        block.versions[i], block.fingerprints[i] = version, ""
        doc = Document.of(block.ids[i], {}, None, version)
        failures = block.to_retry(i)
        taken = Taken.FIRST if failures is None else Taken.AGAIN
        return taken, partial(self.walk.unread, doc, fault, failures)

    def _waits(self, block: Block, i: int) -> bool:
        """Does all that is to be retried wait for nodes that are known to be away? Then it need not be read."""
        health = [self._health.get(key) for key in block.held(i)]
        if not health or not all(pulse is not None and pulse.away for pulse in health):
            return False
        for pulse in health:
            assert pulse is not None
            pulse.turn_away()
        return True

    def _unread(self, fault: NodeError) -> tuple[Taken, None]:
        self.fault = fault
        return Taken.UNREAD, None

    def close(self) -> None:
        self._contents.close()

    def _read(self, block: Block, i: int) -> Document:
        """Ask the source for the content; its version is known from now on."""
        listed = listed_of(self._source, block, i)
        if isinstance(self._source, Log):
            entry = self._source.entry(listed)
            if entry.refused:
                raise BadDocument(entry.refused)
            doc = entry.document
            block.pass_over(i, entry.dropped)
            block.was_read(i, encode_fields(doc.fields), entry.provenance if self._provenance else None)
        else:
            doc = self._source.read(listed)
        doc.version = block.versions[i] = version_of(self._source, doc)
        doc.id = doc.origin_id = block.ids[i]
        return doc


def listed_of(source: Source, block: Block, i: int) -> Listed:
    """Return what the source listed of a document.

    Raises:
        BadDocument: that it is refused.
    """
    if (refused := block.refused[i]) is not None:
        raise BadDocument(refused)
    row = block.table.slice(i, 1)
    size, location = row["size"][0].as_py(), row["location"][0].as_py()
    return Listed(source.own_id(block.ids[i]), size, block.fingerprints[i], location)


def version_of(source: Source, doc: Document) -> str:
    """Return the version of a document that was read: a hash of its fields that count and of its bytes."""
    return content_version(encode_fields(source.counted({**doc.fields})), doc.raw)


def version_unread(fault: NodeError, fingerprint: str) -> str:
    """Return the version of a document that could not be read."""
    unread = f"{UNREAD}:{fault.text if fault.kind is ErrorKind.PERMANENT else fingerprint}"
    return content_version(unread.encode("utf-8", "surrogatepass"), None)


# Content that was staged while listing, on its way back: fields and raw bytes of rows that were processed.

_COLUMNS = ["fields", "raw"]


class Contents:
    """Reads the listing's files back. What is processed comes in their order, so every batch is read once."""

    def __init__(self) -> None:
        self._file: BatchGroups | None = None

    def of(self, compared: pa.Table) -> tuple[list[bytes | None], list[bytes | None]]:
        """Fields and raw bytes of each compared row; None where they were not staged."""
        nothing: list[bytes | None] = [None] * compared.num_rows
        if compared["version"].null_count == compared.num_rows:
            return nothing, nothing
        fields: list[bytes | None] = []
        raws: list[bytes | None] = []
        for run in pc.value_counts(compared["part"]).to_pylist():  # rows of one file lie together
            rows = compared["row"].slice(len(fields), run["counts"])
            if run["values"] is None:
                fields += nothing[: len(rows)]
                raws += nothing[: len(rows)]
                continue
            for content in self._open(run["values"]).rows_at(rows.to_numpy()):
                fields += column_values(content["fields"])
                raws += column_values(content["raw"])
        return fields, raws

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: str) -> BatchGroups:
        if self._file is None or self._file.path != content_path(path):
            self.close()
            self._file = BatchGroups(content_path(path), _COLUMNS)
        return self._file


# What becomes of a row that a task takes up, and the same said to what it stages.


class Taken(enum.Enum):
    """How a row is processed."""

    KNOWN = enum.auto()
    """It is as it was."""
    TOUCHED = enum.auto()
    """It is as it was, but for its fingerprint."""
    GONE = enum.auto()
    FIRST = enum.auto()
    """It goes its whole way."""
    AGAIN = enum.auto()
    """It goes on where it failed."""
    UNREAD = enum.auto()
    """It could not be read; what that means shows when the task is through."""


def stage_row(
    stager: Stager, i: int, taken: Taken, fault: NodeError | None, walk: Trail | None, go: Callable[[], None] | None
) -> bool:
    """Stage what became of row ``i``; was it not as it was?

    Args:
        fault: why it could not be read.
        walk: what it met on its way, once ``go`` has run; None of both: it did not set out.
    """
    if taken is Taken.KNOWN:
        return False
    if fault is not None:
        stager.unread(i, fault)
    elif walk is not None and go is not None:
        stager.walked(i, walk, go, retry=taken is Taken.AGAIN)
    elif taken is Taken.GONE:
        stager.gone(i)
    else:
        stager.touched(i)
    return taken is not Taken.TOUCHED
