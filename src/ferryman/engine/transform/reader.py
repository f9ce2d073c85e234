"""Reader of a task: reads new, changed and pending documents, and decides how each row is processed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.destinations.base import Guarantee
from ferryman.document import Document, content_version, current_caller, decode_fields, encode_fields
from ferryman.engine.results import ErrorKind, NodeError, classify_error
from ferryman.engine.tasks import LogSplit, Reason, TaskSplit, content_path
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.staging import Stager, WalkOutcome
from ferryman.engine.transform.walk import Walk, Walking, WalkSink
from ferryman.errors import BadDocument, unless_interrupt
from ferryman.plan import DestinationNode, Plan, StepNode, destinations_of_sources, find_source, read_once_sources
from ferryman.sources import Fetched, Listed, Log, Source, Unchanged
from ferryman.storage.parquet import BatchGroups, column_values

UNREAD: Final = "unread"
"""Marks the version of a document that could not be read: it differs from that of any content read later."""


class DocumentReader:
    """Reads documents of one source and prepares their walks through the plan.

    Args:
        health: node -> its health in this task.
        prepare_step: returns the function that is called for a step.
        state: id of the state; "" in a preview.

    Attributes:
        fault: error because of which the last document could not be read.
        size: bytes of the last document that was read.
    """

    def __init__(
        self,
        plan: Plan,
        split: TaskSplit | LogSplit,
        sink: WalkSink,
        health: Mapping[str, NodeHealth],
        prepare_step: Callable[[StepNode], Callable[[Document], Any]],
        state: str = "",
    ) -> None:
        self._name = split.source
        self._provenance = plan.provenance
        self._is_repeatable = _is_repeatable(plan, split.source)
        self._source: Source = find_source(plan.nodes, split.source).source
        self._contents = StagedContents()
        self._health = health
        self.fault: NodeError
        self.size = 0
        self.walk = Walk(plan, split.source, sink, task=split.number, prepare_step=prepare_step, health=health)
        self.walk.call_scope.state = state
        current_caller.set(self.walk.call_scope)

    @property
    def in_batches(self) -> bool:
        """Return whether the source's documents belong to batches."""
        return self._source.in_batches

    def set_health(self, health: Mapping[str, NodeHealth]) -> None:
        """Use this health of the nodes from now on."""
        self._health = health
        self.walk.set_health(health)

    def contents(self, block: Block) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return fields and raw bytes of each row where they are known: they were staged while listing, or come with
        the log entry."""
        return block.contents() or self._contents.read(block.table)

    def read_row(
        self, block: Block, i: int, fields: bytes | None, raw: bytes | None
    ) -> tuple[RowAction, Walking | None]:
        """Read row ``i``; return how it is processed, and its walk or None."""
        if block.reasons[i] == Reason.RETRY and self._is_repeatable and self._has_lost_failure(block, i):
            block.reasons[i] = Reason.FORCED
        reason = block.reasons[i]
        if reason == Reason.DELETED or block.deletes(i):
            return RowAction.DELETE, None
        self.walk.call_scope.at(block, i)
        if self._source.in_batches:
            self.walk.batch = self._source.batch_of(block.table["location"][i].as_py() or "")
        if reason == Reason.RETRY and self._waits_for_nodes(block, i):
            return RowAction.SKIP, None
        if fields is not None:
            doc = Document.of(block.ids[i], decode_fields(fields), raw, block.versions[i])
        else:
            node_health = self._health[self._name]
            if node_health.closed and not node_health.allows(block.ids[i], self.walk.row):
                return self._postpone(NodeError(ErrorKind.HELD, self._name, f"waits for source {self._name}"))
            try:
                read = self._read(block, i)
            except BaseException as e:
                fault = classify_error(
                    unless_interrupt(e), self._name, "reading it", reading=True, traces=self.walk.traces
                )
                again = block.reasons[i] == Reason.RETRY
                node_health.note_failure(fault, block.ids[i], self.walk.row, self.walk.batch, again=again)
                if fault.kind is ErrorKind.PERMANENT:
                    return self.walk_unread(block, i, fault)
                return self._postpone(fault)
            if not node_health.steady:
                node_health.note_success()
            if read is None:
                return RowAction.SKIP, None
            doc = read
            if doc.operation == "delete":  # the last entry of a log about it
                block.reasons[i] = Reason.DELETED
                return RowAction.DELETE, None
        self.size = len(doc.raw or b"") + len(fields or b"")
        if (why := block.drop_reason(i)) is not None:
            return RowAction.WALK, self.walk.drop_by_source(doc, why)
        if reason == Reason.LOOK and block.has_version(i, doc.version):
            return (RowAction.UPDATE_FINGERPRINT if self._source.detect == "fingerprint" else RowAction.SKIP), None
        if reason == Reason.RETRY and (failures := block.failures_to_retry(i)) is not None:
            return RowAction.RETRY, self.walk.retry(doc, failures)
        return RowAction.WALK, self.walk.walk_document(doc)

    def walk_unread(self, block: Block, i: int, fault: NodeError) -> tuple[RowAction, Walking | None]:
        """Return how to process a document that could not be read and is itself to blame, and its walk or None.

        It is skipped if the same document was unreadable for the same reason before.
        """
        version = block.versions[i] or unread_version(fault, block.fingerprints[i])
        if block.reasons[i] == Reason.LOOK and block.has_version(i, version):
            return RowAction.SKIP, None
        block.versions[i], block.fingerprints[i] = version, ""
        doc = Document.of(block.ids[i], {}, None, version)
        failures = block.failures_to_retry(i)
        action = RowAction.WALK if failures is None else RowAction.RETRY
        return action, self.walk.walk_unread(doc, fault, failures)

    def _has_lost_failure(self, block: Block, i: int) -> bool:
        """Return whether the plan has changed so that it does not lead to a failure of row ``i`` any more: then the
        document is processed as a new revision, or what is missing of it would be lost."""
        known = block.known(i)
        return known is not None and not all(self.walk.leads_to(f) for f in known.failures if f.open)

    def _waits_for_nodes(self, block: Block, i: int) -> bool:
        """Return whether everything to be retried waits for unavailable nodes, so that the document need not be
        read."""
        health = [self._health.get(key) for key in block.held_by(i)]
        if not health or not all(node_health is not None and node_health.away for node_health in health):
            return False
        for node_health in health:
            assert node_health is not None
            node_health.turn_away()
        return True

    def _postpone(self, fault: NodeError) -> tuple[RowAction, None]:
        self.fault = fault
        return RowAction.POSTPONE, None

    def close(self) -> None:
        self._contents.close()

    def _read(self, block: Block, i: int) -> Document | None:
        """Read the document from its source, and record its version; None: the source says that it is unchanged."""
        listed = listed_document(self._source, block, i)
        if isinstance(self._source, Log):
            entry = self._source.entry(listed)
            if entry.refused:
                raise BadDocument(entry.refused)
            doc = entry.document
            block.set_drop_reason(i, entry.dropped)
            block.set_read(i, encode_fields(doc.fields), entry.provenance if self._provenance else None)
        else:
            found = read_listed(self._source, listed)
            if found is None:
                return None
            doc, fingerprint = found
            if fingerprint is not None:
                block.fingerprints[i] = fingerprint
        doc.version = block.versions[i] = version_of(self._source, doc)
        doc.id = doc.origin_id = block.ids[i]
        return doc


def listed_document(source: Source, block: Block, i: int) -> Listed:
    """Return the source's listing entry of a document.

    Raises:
        BadDocument: the entry is refused.
    """
    if (refused := block.refused[i]) is not None:
        raise BadDocument(refused)
    row = block.table.slice(i, 1)
    size, location = row["size"][0].as_py(), row["location"][0].as_py()
    known = block.known(i)
    unless_known = known is not None and block.reasons[i] == Reason.LOOK and known.operation == "upsert"
    fingerprint = known.fingerprint if known is not None and unless_known else ""
    return Listed(source.own_id(block.ids[i]), size, block.fingerprints[i], location, known=fingerprint)


def read_listed(source: Source, listed: Listed) -> tuple[Document, str | None] | None:
    """Read a document; return it with the fingerprint that came with it, if one did. None: it is unchanged.

    Raises:
        TypeError: the source says that it is unchanged although nobody asked.
    """
    found = source.read(listed)
    if isinstance(found, Unchanged):
        if not listed.known:
            raise TypeError("its source says that it is unchanged, but its content is needed (Listed.known is empty)")
        return None
    return found if isinstance(found, Fetched) else (found, None)


def version_of(source: Source, doc: Document) -> str:
    """Return the version of a document: a hash of its raw bytes and of the fields that count."""
    return content_version(encode_fields(source.counted({**doc.fields})), doc.raw if source.counts_raw else None)


def unread_version(fault: NodeError, fingerprint: str) -> str:
    """Return the version of a document that could not be read."""
    text = f"{UNREAD}:{fault.text if fault.kind is ErrorKind.PERMANENT else fingerprint}"
    return content_version(text.encode("utf-8", "surrogatepass"), None)


# Content that was staged while listing: fields and raw bytes of the rows to process.

_COLUMNS = ["fields", "raw"]


class StagedContents:
    """Reads content that was staged while listing. Rows are processed in its order, so each batch is read only once."""

    def __init__(self) -> None:
        self._file: BatchGroups | None = None

    def read(self, compared: pa.Table) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return fields and raw bytes of each compared row; None where they were not staged."""
        nothing: list[bytes | None] = [None] * compared.num_rows
        if compared["version"].null_count == compared.num_rows:
            return nothing, nothing
        fields: list[bytes | None] = []
        raws: list[bytes | None] = []
        for run in pc.value_counts(compared["part"]).to_pylist():  # rows of one file are adjacent
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


# Ways to process a row, and the staging of its outcome.


class RowAction(enum.Enum):
    """How a row is processed."""

    SKIP = enum.auto()
    """Do nothing, since it is unchanged."""
    UPDATE_FINGERPRINT = enum.auto()
    """Store its new fingerprint, since it is otherwise unchanged."""
    DELETE = enum.auto()
    """Stage deletes, since it was deleted at its source."""
    WALK = enum.auto()
    """Walk it from the source."""
    RETRY = enum.auto()
    """Walk it to and from the nodes at which it failed."""
    POSTPONE = enum.auto()
    """Postpone it: it could not be read, and whether it is to blame is known only at the end of the task."""


def stage_row(
    stager: Stager,
    i: int,
    action: RowAction,
    fault: NodeError | None,
    walk: WalkOutcome | None,
    stage_deliveries: Callable[[], None] | None,
) -> bool:
    """Stage the outcome of row ``i``; return False if the row is unchanged.

    Args:
        fault: error because of which it could not be read.
        walk, stage_deliveries: see ``Stager.stage_walk``; None: the row is not walked.
    """
    if action is RowAction.SKIP:
        return False
    if fault is not None:
        stager.defer_unread(i, fault)
    elif walk is not None and stage_deliveries is not None:
        stager.stage_walk(i, walk, stage_deliveries, retry=action is RowAction.RETRY)
    elif action is RowAction.DELETE:
        stager.stage_deletion(i)
    else:
        stager.stage_fingerprint(i)
    return action is not RowAction.UPDATE_FINGERPRINT


def _is_repeatable(plan: Plan, source: str) -> bool:
    """Return whether a document of a source may be processed again as it is: no keyed node would count it twice, and no
    at-most-once destination get it twice."""
    if source in read_once_sources(plan.nodes):
        return False
    names = destinations_of_sources(plan.nodes).get(source, ())
    guarantees = {n.policy.guarantee for n in plan.nodes if isinstance(n, DestinationNode) and n.name in names}
    return Guarantee.AT_MOST_ONCE not in guarantees
