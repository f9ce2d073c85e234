"""Takes up the blocks of one task, many documents at once: they are staged in their order, each when those before it
are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ferryman import limits
from ferryman.engine.live import Live
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.in_flight.flights import Flight, Flights
from ferryman.engine.transform.node_errors import NodeError
from ferryman.engine.transform.onwards import Onwards
from ferryman.engine.transform.reader import DocumentReader
from ferryman.engine.transform.recording import Recorder, replay
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.taken import Taken, stage_row


@dataclass(slots=True)
class _TakenRow:
    """A row that was taken, and is not staged yet.

    Attributes:
        flight: of one that has set out.
        size: bytes.
    """

    i: int
    taken: Taken
    flight: Flight | None
    fault: NodeError | None
    size: int


class ConcurrentReader:
    """Reads, walks and stages the documents of a task."""

    def __init__(self, feed: DocumentReader, flights: Flights, stager: Stager, live: Live) -> None:
        self._feed = feed
        self._flights = flights
        self._stager = stager
        self._live = live
        self._walk = feed.walk
        self._walk.members_of = flights.members_of
        self._rows: deque[_TakenRow] = deque()
        self._bytes = 0
        self._taken_up: list[int] = []

    def take_up(
        self,
        block: Block,
        contents: tuple[list[bytes | None], list[bytes | None]],
        heard: Callable[[str, NodeError], None],
    ) -> list[int]:
        """All documents of the block; which rows were not as they were.

        Args:
            heard: told of documents that could not be read, by id.
        """
        self._stager.begin(block)
        self._taken_up = []
        for i, (fields, raw) in enumerate(zip(*contents, strict=True)):
            while self._flights.full or self._bytes >= limits.IN_FLIGHT_BYTES:
                self._flights.wait()
                self._stage()
            self._take(block, i, fields, raw, heard)
            self._flights.go_on()
            self._stage()
        while self._rows:
            self._flights.wait()
            self._stage()
        self._stager.end()
        return self._taken_up

    def close(self) -> None:
        """No more blocks."""
        self._flights.close()

    def _take(
        self, block: Block, i: int, fields: bytes | None, raw: bytes | None, heard: Callable[[str, NodeError], None]
    ) -> None:
        feed, recorder = self._feed, Recorder()
        walk = self._walk.beside(recorder)
        feed.walk = walk
        try:
            waits = self._stager.will_wait(i)
            taken, go = (Taken.KNOWN, None) if waits else feed.take(block, i, fields, raw)
        finally:
            feed.walk = self._walk
        self._walk.row += 1
        flight = None if go is None else self._flights.begin(walk, recorder, _without(go))
        fault = feed.fault if taken is Taken.UNREAD else None
        if fault is not None:
            heard(block.ids[i], fault)
        size = 0 if flight is None else feed.size
        self._bytes += size
        self._rows.append(_TakenRow(i, taken, flight, fault, size))

    def _stage(self) -> None:
        """Those at the front that are through."""
        while self._rows and ((flight := self._rows[0].flight) is None or flight.dead):
            row = self._rows.popleft()
            self._bytes -= row.size
            self._live.add(1)
            # one before it may have failed meanwhile
            if not self._stager.waits(row.i) and self._stage_row(row):
                self._taken_up.append(row.i)
            if flight is not None:
                flight.recorder.close()

    def _stage_row(self, row: _TakenRow) -> bool:
        if (flight := row.flight) is None:
            return stage_row(self._stager, row.i, row.taken, row.fault, None, None)
        go = partial(replay, flight.recorder.all_calls(), self._stager)
        return stage_row(self._stager, row.i, row.taken, None, flight.walk, go)


def _without(go: Callable[[], None]) -> Callable[[Onwards], None]:
    return lambda _: go()
