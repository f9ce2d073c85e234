"""The walk of a whole block of new documents, as long as they meet nothing unusual.

Most documents go their way without an error, a child or a wish. What such a one comes to is gathered as it goes, for
the columns of its block. As soon as a document meets anything else, ``Walk`` takes it on from there, with what the node
at which it is has answered: what all of that means is known there, and only there. Both ways come to the same files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Self

from ferryman import limits
from ferryman.document import Document, decode_fields, encode_fields
from ferryman.engine.batches import Reason
from ferryman.engine.live import Live
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.rows import Content, OutboxBuffer, Untaken
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import CompiledNode, Walk, Way, untaken, why_untaken
from ferryman.records.families import encode_published
from ferryman.routers import Router

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
        """Stage the outcome of the document's walk."""
        self._walk.calling.step = ""
        if stop is None:
            buffers = tuple([buffer for buffer, _, _ in self._deliveries])
            if (published := self._published.get(buffers)) is None:
                published = self._published[buffers] = encode_published([buffer.given for buffer in buffers])
            self._stager.went(i, self._deliveries, self._untaken, published)
        else:
            self._stager.walked(i, self._walk, partial(self._go_on, id, stop), retry=False)

    def _go(self, doc: Document, point: WayPoint | None) -> Stop | None:
        """Walk until a step needs the general path; None if every delivery was staged."""
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


# The nodes of a plan as documents come to them by one way: what a block's walk asks of a node is found once.


class Chosen(NamedTuple):
    """Where documents go on that a router sends to these branches.

    Attributes:
        points: of a router that copies, each gets a copy; the last one the document itself.
        untaken: deliveries that they do not come to.
    """

    points: list[WayPoint]
    untaken: list[Untaken]


class WayPoint:
    """A node that documents come to by one way, for the first time.

    Attributes:
        step: is called for a document; None: it is not a step.
        choose: is asked for the branches; None: it is not a router.
        pulse: how the node is doing; None: it is not called.
    """

    def __init__(self, station: CompiledNode, way: Way, walk: Walk, stager: Stager) -> None:
        self.station = station
        self.way = way
        self.name, self.route = station.name, way.route
        self.step = station.step
        self.choose = None if station.router is None else station.router.choose
        self.copies = station.router is not None and station.router.copies
        self.pulse = station.pulse
        self._walk = walk
        self._stager = stager
        self._next: WayPoint | None = None
        self._buffer: OutboxBuffer | None = None
        self._chosen: dict[Any, Chosen] = {}

    @property
    def next(self) -> WayPoint | None:
        """Where documents go on from here that no router sends elsewhere; None: nowhere."""
        if self._next is None and self.station.next is not None:
            self._next = self._at(self.station.next, self.way)
        return self._next

    @property
    def buffer(self) -> OutboxBuffer:
        """Return the buffer of a destination, which collects its rows."""
        if self._buffer is None:
            self._buffer = self._stager.buffer((self.name, self.route), self.way.branches)
        return self._buffer

    def chosen(self, answer: Any) -> Chosen:
        """Where documents go on for which a router gave this answer.

        Raises:
            PermanentError: the answer is wrong.
        """
        found = self._chosen.get(answer)
        if found is None:
            names = self._walk.branches_of(self.station, answer)
            branches, way = self.station.branches, self.way
            ways = [way.copied(name) if self.copies else way.chosen(self.name, name) for name in names]
            points = [self._at(branches[name], onwards) for name, onwards in zip(names, ways, strict=True)]
            why = why_untaken(self.station, names)
            ends = [self._stager.untaken(end, way.branches, why) for end in untaken(self.station, names, way)]
            found = self._chosen[answer] = Chosen(points, ends)
        return found

    def answered(self, answer: Callable[[Document], Any] | None) -> CompiledNode:
        """The node once it was called for a document: it is not called for it again.

        Args:
            answer: gives what it returned, or raises what it raised; None: it was not called.
        """
        if answer is None:
            return self.station
        station = copy.copy(self.station)
        station.answered = True
        if self.choose is None:
            station.step = answer
        else:
            station.router = _Answered(answer, copies=self.copies)
        return station

    def _at(self, station: CompiledNode, way: Way) -> Self:
        return type(self)(station, way, self._walk, self._stager)


class _Answered(Router):
    """A router that has been asked for a document."""

    def __init__(self, answer: Callable[[Document], Any], *, copies: bool) -> None:
        self._answer = answer
        self.copies = copies  # type: ignore[misc]  # of the one that was asked

    def choose(self, document: Document) -> Any:
        return self._answer(document)
