"""The nodes of a plan as documents come to them by one way: what a block's walk asks of a node is found once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from ferryman.document import Document
from ferryman.engine.transform.compiled import CompiledNode
from ferryman.engine.transform.ends import Way, untaken, why_untaken
from ferryman.engine.transform.event_stage import Untaken
from ferryman.engine.transform.onwards import Onwards
from ferryman.engine.transform.outbox_buffer import OutboxBuffer
from ferryman.engine.transform.staging import Stager
from ferryman.routers import Router


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

    def __init__(self, station: CompiledNode, way: Way, walk: Onwards, stager: Stager) -> None:
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
        """Of a destination: where what it gets is gathered."""
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
