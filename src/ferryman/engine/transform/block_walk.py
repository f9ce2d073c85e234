"""The walk of a whole block of new documents, as long as they meet nothing unusual.

Most documents go their way without an error, a child or a wish. What such a one comes to is gathered as it goes, for
the columns of its block. As soon as a document meets anything else, ``Walk`` takes it on from there, with what the node
at which it is has answered: what all of that means is known there, and only there. Both ways come to the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Self

from ferryman import limits
from ferryman.document import Document, decode_fields, encode_fields
from ferryman.engine.live import Live
from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.compiled import CompiledNode
from ferryman.engine.transform.ends import Way
from ferryman.engine.transform.event_stage import Untaken
from ferryman.engine.transform.outbox_buffer import OutboxBuffer
from ferryman.engine.transform.outbox_stage import Content
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import Walk
from ferryman.engine.transform.way_point import WayPoint
from ferryman.records.family import encode_published

_LARGE_BYTES: Final = limits.MIB
"""Content of this size does not wait for the rest of its document."""


class Stop(NamedTuple):
    """Where a document met something unusual.

    Attributes:
        answer: gives what the node answered, or raises what it raised; None: it was not called.
        ahead: copies that go on after this one, the next one last.
    """

    doc: Document
    point: WayPoint
    answer: Callable[[Document], Any] | None
    ahead: list[tuple[Document, WayPoint]]


class BlockWalk:
    """Walks blocks of one task.

    Args:
        walk: takes documents on that meet something unusual.

    Attributes:
        first: the node below the source; None: there is none.
    """

    def __init__(self, walk: Walk, stager: Stager, live: Live) -> None:
        self._walk = walk
        self._stager = stager
        self._live = live
        self.first = WayPoint(walk.source, Way(), walk, stager).next
        self._deliveries: list[Content] = []
        self._untaken: list[Untaken] = []
        self._published: dict[tuple[OutboxBuffer, ...], str] = {}
        self._large = min(_LARGE_BYTES, limits.MAX_CONTENT_BYTES)

    @classmethod
    def of(cls, walk: Walk, stager: Stager, live: Live) -> Self | None:
        """None: documents may come to a node that is more than a step, a router or a destination."""
        return cls(walk, stager, live) if all(map(_is_plain, walk.below_source())) else None

    @staticmethod
    def suits(block: Block) -> bool:
        """Are all of its documents new, and not entries of a log?"""
        return block.first_seen and not block.places and block.reasons.count(Reason.NEW) == len(block)

    def take(self, block: Block, i: int, fields: bytes, raw: bytes | None) -> None:
        """Walk and stage row ``i`` of the block, of which the content is at hand."""
        self._begin(block, i)
        self._live.add(1)
        doc = Document.of(block.ids[i], decode_fields(fields), raw, block.versions[i])
        self._stage(i, doc.id, self._go(doc, self.first))

    def take_answer(self, block: Block, i: int, doc: Document, answer: Any) -> None:
        """Walk and stage row ``i``, for which the first node was called; what it raised is an exception object."""
        self._begin(block, i)
        point = self.first
        assert point is not None
        assert point.pulse is not None
        if answer is not doc or doc.asked_again is not None or doc.refused is not None:
            given = partial(_raise if isinstance(answer, Exception) else _give, answer)
            self._stage(i, block.ids[i], Stop(doc, point, given, []))
            return
        if not point.pulse.steady:
            point.pulse.returned()
        self._stage(i, doc.id, self._go(doc, point.next))

    def _begin(self, block: Block, i: int) -> None:
        self._walk.calling.at(block, i)
        self._walk.row += 1
        self._deliveries, self._untaken = [], []

    def _stage(self, i: int, id: str, stop: Stop | None) -> None:
        """What the document has come to."""
        self._walk.calling.step = ""
        if stop is None:
            buffers = tuple([buffer for buffer, _, _ in self._deliveries])
            if (published := self._published.get(buffers)) is None:
                published = self._published[buffers] = encode_published([buffer.given for buffer in buffers])
            self._stager.went(i, self._deliveries, self._untaken, published)
        else:
            self._stager.walked(i, self._walk, partial(self._go_on, id, stop), retry=False)

    def _go(self, doc: Document, point: WayPoint | None) -> Stop | None:
        """As far as it comes without anything unusual; None: to all its ends."""
        id, calling = doc.id, self._walk.calling
        ahead: list[tuple[Document, WayPoint]] = []
        while True:
            if point is None:
                if not ahead:
                    return None
                doc, point = ahead.pop()
            elif point.pulse is not None and point.pulse.closed:
                return Stop(doc, point, None, ahead)
            elif point.step is not None:
                calling.step, calling.route = point.name, point.route
                try:
                    out = point.step(doc)
                except BaseException as e:  # the walk knows what it means
                    doc.id = id
                    return Stop(doc, point, partial(_raise, e), ahead)
                doc.id = id
                if out is not doc or doc.asked_again is not None or doc.refused is not None:
                    return Stop(doc, point, partial(_give, out), ahead)
                if point.pulse is not None and not point.pulse.steady:
                    point.pulse.returned()
                point = point.next
            elif point.choose is not None:
                if (stop := self._fork(doc, point, ahead)) is not None:
                    return stop
                doc, point = ahead.pop()
            elif doc.id == id and self._deliver(doc, point):
                point = point.next
            else:
                return Stop(doc, point, None, ahead)

    def _fork(self, doc: Document, point: WayPoint, ahead: list[tuple[Document, WayPoint]]) -> Stop | None:
        """Put what a router makes of the document in front of what is ahead."""
        assert point.choose is not None
        self._walk.calling.step = ""
        id = doc.id
        try:
            try:
                answer = point.choose(doc)
            finally:
                doc.id = id
            if point.copies and not isinstance(answer, str):
                answer = tuple(answer)
            chosen = point.chosen(answer)
        except BaseException as e:
            return Stop(doc, point, partial(_raise, e), ahead)
        try:
            copies = [doc.copy() for _ in chosen.points[1:]]
        except BaseException:
            return Stop(doc, point, partial(_give, answer), ahead)
        if doc.refused is not None:
            return Stop(doc, point, partial(_give, answer), ahead)
        if point.pulse is not None and not point.pulse.steady:
            point.pulse.succeeded()
        self._untaken += chosen.untaken
        if copies:
            ahead += reversed(list(zip([*copies, doc], chosen.points, strict=True)))
        else:
            ahead.append((doc, chosen.points[0]))
        return None

    def _deliver(self, doc: Document, point: WayPoint) -> bool:
        """Gather what goes out; False: there is more to say of it."""
        try:
            fields = encode_fields(doc.fields)
        except Exception:
            return False
        raw = doc.raw
        if len(fields) > self._large or (raw is not None and (type(raw) is not bytes or len(raw) > self._large)):
            return False
        self._deliveries.append((point.buffer, fields, raw))
        return True

    def _go_on(self, id: str, stop: Stop) -> None:
        """Say what the document came to so far, and have it go on."""
        for buffer, fields, raw in self._deliveries:
            self._stager.upsert(Document.of(id, {}, raw), buffer.end, buffer.branches, fields, None)
        for end in self._untaken:
            self._stager.dropped(Document.of(id, {}), (end.destination, end.route), end.branches, end.message, 1)
        here = (stop.doc, stop.point.answered(stop.answer), stop.point.way)
        self._walk.first_from(id, [here, *((doc, each.station, each.way) for doc, each in reversed(stop.ahead))])


def _is_plain(station: CompiledNode) -> bool:
    return station.step is not None or station.router is not None or (station.delivers and station.accepts is None)


def _give(answer: Any, _: Document) -> Any:
    return answer


def _raise(error: BaseException, _: Document) -> Any:
    raise error
