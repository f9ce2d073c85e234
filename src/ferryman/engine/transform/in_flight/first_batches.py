"""A step right below the source that takes batches: it is called for those of a whole block before any of its documents
goes on. None of them waits then, and none has to be a greenlet.

That is for blocks and calls that meet nothing unusual. Where a document met an error, ``Flights`` is told what has come
of the calls, and the block goes the usual way: there, batches are halved, and a step in trouble is called no more.
"""

from __future__ import annotations

import contextvars
from itertools import chain
from typing import Any

from ferryman import limits
from ferryman.document import Document, called_by, decode_fields
from ferryman.engine.live import Live
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calling import Calling
from ferryman.engine.transform.in_flight.flights import Flights
from ferryman.engine.transform.in_flight.step_queue import MadeCall
from ferryman.engine.transform.reader import DocumentReader
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.step_calls import batches
from ferryman.engine.transform.walk import Walk
from ferryman.errors import unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async


class _KeysOfBlock:
    """Knows the idempotency keys of a block's documents."""

    def __init__(self, calling: Calling, block: Block) -> None:
        self._calling = calling
        self._block = block
        self._rows: dict[str, int] = {}

    def key_of(self, doc: Document) -> str | None:
        """See ``KeyMaker``."""
        self._rows = self._rows or {id: i for i, id in enumerate(self._block.ids)}
        if (row := self._rows.get(doc.id)) is None:
            return None
        self._calling.at(self._block, row)
        return self._calling.key_of(doc)


class FirstBatches:
    """Of one task."""

    def __init__(self, step: StepNode, feed: DocumentReader, flights: Flights, stager: Stager, live: Live) -> None:
        self._step = step
        self._fn = batches(step)
        self._feed = feed
        self._flights = flights
        self._stager = stager
        self._live = live
        self._walk: Walk = feed.walk.beside(stager)
        self._walk.calling = feed.walk.calling
        self._blocks = BlockWalk.of(self._walk, stager, live)

    def take_up(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        """Walk and stage all documents of the block. False: none of them, they have to go the usual way."""
        if self._blocks is None or not self._suits(block, contents):
            return False
        fields, raws = contents
        decoded = [decode_fields(each) for each in fields if each is not None]
        docs = list(map(Document.of, block.ids, decoded, raws, block.versions))
        made = self._called(block, docs)
        if made and made[-1].failed:
            self._live.add(-sum(len(each.docs) for each in made))
            self._flights.know(self._step.name, made)
            return False
        self._stager.begin(block)
        self._walk.row = self._feed.walk.row
        answers = chain.from_iterable(each.answers for each in made)
        for i, (doc, answer) in enumerate(zip(docs, answers, strict=True)):
            self._blocks.take_answer(block, i, doc, answer)
        self._feed.walk.row = self._walk.row
        self._stager.end()
        return True

    def _suits(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        assert self._blocks is not None
        first = self._blocks.first
        if not BlockWalk.suits(block) or first is None or first.pulse is None or first.pulse.closed:
            return False
        fields, raws = contents
        return None not in fields and sum(len(each or b"") for each in chain(fields, raws)) < limits.IN_FLIGHT_BYTES

    def _called(self, block: Block, docs: list[Document]) -> list[MadeCall]:
        """What came of the step's calls. After one that failed, for all or for some, there is none: it may be the
        step's trouble."""
        context = contextvars.copy_context()
        context.run(called_by.set, _KeysOfBlock(self._walk.calling, block))
        self._walk.calling.step, self._walk.calling.route = self._step.name, ""
        made = []
        for at in range(0, len(docs), self._step.rows):
            some = docs[at : at + self._step.rows]
            ids = [doc.id for doc in some]
            answers: list[Any] = []
            error: BaseException | None = None
            try:
                out = context.run(self._fn, some)
                assert isinstance(out, list)
                answers = out
            except BaseException as e:
                error = unless_interrupt(e)
            for doc, id in zip(some, ids, strict=True):
                doc.id = id  # its id is the source's, whatever a step does to the object
            made.append(MadeCall(some, answers, error))
            self._live.add(len(some))
            if made[-1].failed:
                break
        self._walk.calling.step = ""
        return made


def first_batches(
    steps: list[StepNode], feed: DocumentReader, flights: Flights, stager: Stager, live: Live
) -> FirstBatches | None:
    """If it can be: one step has batches, it stands right below the source, and nothing limits its calls.

    Args:
        steps: that documents wait for.
    """
    if len(steps) != 1 or feed.in_batches:
        return None
    [step] = steps
    first = feed.walk.source.next
    plain = step.concurrency == 1 and not is_async(step.fn) and step.rate is None and step.limit_s is None
    if first is None or first.name != step.name or not plain:
        return None
    return FirstBatches(step, feed, flights, stager, live)
