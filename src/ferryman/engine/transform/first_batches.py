"""Fast path for a step right below the source that takes batches: it is called for a whole block before any of its
documents is walked further, so no document has to wait.

What an Arrow step returns for destinations goes to the outbox by columns, without documents.

This covers blocks without errors. After an error, ``ConcurrentWalks`` receives the results of the calls so far and
walks the block: it halves batches, and stops calling a step in trouble.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from ferryman import limits
from ferryman.document import Document, current_caller, decode_fields
from ferryman.engine.live import ProgressWriter
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import CallScope, DocumentBatch, EncodedRows, make_batch_call
from ferryman.engine.transform.concurrent import ConcurrentWalks, FinishedCall
from ferryman.engine.transform.reader import DocumentReader
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import Walk
from ferryman.errors import unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async


class _BlockKeys:
    """Looks up the idempotency keys of a block's documents."""

    def __init__(self, call_scope: CallScope, block: Block) -> None:
        self._call_scope = call_scope
        self._block = block
        self._rows: dict[str, int] = {}

    def key_of(self, doc: Document) -> str | None:
        """Return the document's idempotency key, see ``StepCaller``."""
        self._rows = self._rows or {id: i for i, id in enumerate(self._block.ids)}
        if (row := self._rows.get(doc.id)) is None:
            return None
        self._call_scope.at(self._block, row)
        return self._call_scope.key_of(doc)


class _ArrowCall(NamedTuple):
    """A call of an Arrow step.

    Attributes:
        out: what it returned.
        rows: what becomes of the documents if they only go to destinations; None: they have to be walked.
    """

    given: DocumentBatch
    out: Any
    rows: EncodedRows | None


class FirstBatches:
    """Calls of the step right below the source, made for a whole block at once."""

    def __init__(
        self, step: StepNode, reader: DocumentReader, walks: ConcurrentWalks, stager: Stager, live: ProgressWriter
    ) -> None:
        self._step = step
        self._call_batch = make_batch_call(step)
        self._reader = reader
        self._walks = walks
        self._stager = stager
        self._live = live
        self._walk: Walk = reader.walk.fork(stager)
        self._walk.call_scope = reader.walk.call_scope
        self._blocks = BlockWalk.create(self._walk, stager, live)
        assert reader.walk.source.next is not None
        self._node = reader.walk.source.next

    def process_block(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        """Walk and stage all documents of the block; return False if none was staged, because the block needs
        ``ConcurrentWalks``."""
        if self._blocks is None or not self._suits(block, contents):
            return False
        fields, raws = contents
        decoded = [decode_fields(each) for each in fields if each is not None]
        calls: list[_ArrowCall | FinishedCall] = []
        if self._step.arrow and self._blocks.delivers_below_first:
            calls = self._call_with_columns(block, decoded, raws)
            encoded = [call.rows for call in calls if isinstance(call, _ArrowCall) and call.rows is not None]
            if len(encoded) == len(calls) and self._stage_columns(block, encoded):
                return True
            finished = list(map(_finished_call, calls))
        else:
            finished = self._call_in_batches(block, list(map(Document.of, block.ids, decoded, raws, block.versions)))
        if finished and finished[-1].failed:
            self._live.add(-sum(len(each.docs) for each in finished))
            self._walks.set_results(self._step.name, finished)
            return False
        self._stager.begin_block(block)
        self._walk.row = self._reader.walk.row
        docs = chain.from_iterable(each.docs for each in finished)
        answers = chain.from_iterable(each.answers for each in finished)
        for i, (doc, answer) in enumerate(zip(docs, answers, strict=True)):
            self._blocks.walk_answered_row(block, i, doc, answer)
        self._reader.walk.row = self._walk.row
        self._stager.end_block()
        return True

    def _suits(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        assert self._blocks is not None
        first = self._blocks.first_node
        if block.places or not BlockWalk.suits(block) or first is None or first.health is None or first.health.closed:
            return False
        fields, raws = contents
        return None not in fields and sum(len(each or b"") for each in chain(fields, raws)) < limits.IN_FLIGHT_BYTES

    def _stage_columns(self, block: Block, encoded: list[EncodedRows]) -> bool:
        """Stage all documents of the block with this content; return False if some are too large for it."""
        assert self._blocks is not None
        fields = list(chain.from_iterable(rows.fields for rows in encoded))
        raws = list(chain.from_iterable(rows.raws for rows in encoded))
        self._stager.begin_block(block)
        if not self._blocks.deliver_answered_rows(block, fields, raws):
            return False
        self._reader.walk.row += len(block)
        self._stager.end_block()
        return True

    def _call_in_batches(self, block: Block, docs: list[Document]) -> list[FinishedCall]:
        """Call the step for these documents, batch by batch, and return the results.

        Stops after the first call that failed as a whole or for some documents, since the step may be in trouble.
        """
        finished: list[FinishedCall] = []

        def call(context: contextvars.Context, at: int, end: int) -> bool:
            some = docs[at:end]
            ids = [doc.id for doc in some]
            answers: list[Any] = []
            error: BaseException | None = None
            try:
                out = context.run(self._call_batch, some)
                assert isinstance(out, list)
                answers = out
            except BaseException as e:
                error = unless_interrupt(e)
            for doc, id in zip(some, ids, strict=True):
                doc.id = id  # its id is the source's, whatever a step does to the object
            finished.append(FinishedCall(some, answers, error))
            return not finished[-1].failed

        self._call_all(block, call)
        return finished

    def _call_with_columns(
        self, block: Block, fields: list[dict[str, Any]], raws: list[bytes | None]
    ) -> list[_ArrowCall | FinishedCall]:
        """Call the Arrow step for a block's documents, which are not made unless they have to be walked.

        Stops after the first call that failed.
        """
        calls: list[_ArrowCall | FinishedCall] = []

        def call(context: contextvars.Context, at: int, end: int) -> bool:
            content = block.ids[at:end], fields[at:end], raws[at:end], block.versions[at:end]
            given: DocumentBatch | None = None
            try:
                given = DocumentBatch(*content)
                out = context.run(self._step.fn, given.batch)
                rows = given.encode(out)
                if rows is None:
                    calls.append(FinishedCall(given.docs, given.match(out), None))
                else:
                    calls.append(_ArrowCall(given, out, rows))
                return True
            except BaseException as e:
                docs = list(map(Document.of, *content)) if given is None else given.docs
                calls.append(FinishedCall(docs, [], unless_interrupt(e)))
                return False

        self._call_all(block, call)
        return calls

    def _call_all(self, block: Block, call: Callable[[contextvars.Context, int, int], bool]) -> None:
        """Call the step for each batch of the block's rows, until ``call`` returns False."""
        context = contextvars.copy_context()
        context.run(current_caller.set, _BlockKeys(self._walk.call_scope, block))
        self._walk.call_scope.step, self._walk.call_scope.route = self._step.name, ""
        for at in range(0, len(block), self._step.rows):
            end = min(len(block), at + self._step.rows)
            began = time.perf_counter()
            succeeded = call(context, at, end)
            self._node.took_s += time.perf_counter() - began
            self._live.add(end - at)
            if not succeeded:
                break
        self._walk.call_scope.step = ""


def _finished_call(call: _ArrowCall | FinishedCall) -> FinishedCall:
    """Return the result of a call, with its documents."""
    return FinishedCall(call.given.docs, call.given.match(call.out), None) if isinstance(call, _ArrowCall) else call


def make_first_batches(
    steps: list[StepNode], reader: DocumentReader, walks: ConcurrentWalks, stager: Stager, live: ProgressWriter
) -> FirstBatches | None:
    """Return the fast path, or None unless exactly one step takes batches, it stands right below the source, and its
    calls have no limits.

    Args:
        steps: the plan's steps that take batches or run several calls at a time.
    """
    if len(steps) != 1 or reader.in_batches:
        return None
    [step] = steps
    first = reader.walk.source.next
    plain = (
        step.remember is None
        and step.batch_bytes is None
        and step.concurrency == 1
        and not is_async(step.fn)
        and step.rate is None
        and step.call_timeout_s is None
    )
    if first is None or first.name != step.name or not plain:
        return None
    return FirstBatches(step, reader, walks, stager, live)
