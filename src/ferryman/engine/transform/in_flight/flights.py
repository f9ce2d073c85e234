"""Documents that are walked side by side: each walk waits where a step has to gather a batch, or has a call under way,
and the others go on meanwhile.

Each walk is a greenlet: it is written as if its document were alone, and all run in the worker's main thread, in turns,
so that nothing of a task needs a lock. Only calls of steps with ``concurrency`` run in other threads.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, cast

from greenlet import getcurrent, greenlet

from ferryman import limits
from ferryman.document import Document, called_by
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.in_flight.step_queue import AwaitedAnswer, Call, MadeCall, StepQueue
from ferryman.engine.transform.onwards import Onwards
from ferryman.engine.transform.recording import Recorder
from ferryman.errors import Interrupted
from ferryman.plan import StepNode


class Flight(greenlet):  # type: ignore[misc]  # it ships no types
    """A document on its way, or a member of its family.

    Attributes:
        walk: what it has met stands there.
        recorder: what was said of it.
    """

    def __init__(self, hub: greenlet, walk: Onwards, recorder: Recorder, go: Callable[[Any], None]) -> None:
        super().__init__(parent=hub)
        self.walk = walk
        self.recorder = recorder
        self.above: SideBySide | None = None
        self._go = go
        self.gr_context = contextvars.copy_context()

    def run(self) -> None:
        called_by.set(self.walk.calling)
        self._go(self.walk)


class Flights:
    """Of one task.

    Args:
        steps: that take batches, or have several calls under way.
        share: of their rates, for this task.
    """

    def __init__(self, steps: Iterable[StepNode], health: Mapping[str, NodeHealth], share: float) -> None:
        self._ended: SimpleQueue[tuple[StepQueue, Call]] = SimpleQueue()
        self._queues = {step.name: StepQueue(step, health[step.name], share, self._ended) for step in steps}
        self._ready: deque[Flight] = deque()
        self._alive: set[Flight] = set()
        self._hub = getcurrent()
        wanted = sum(queue.step.rows * queue.step.concurrency for queue in self._queues.values())
        self.most = min(2 * wanted, limits.IN_FLIGHT)

    @property
    def full(self) -> bool:
        """Are as many on their way as it makes sense to have?"""
        return len(self._alive) >= self.most

    def begin(self, walk: Onwards, recorder: Recorder, go: Callable[[Any], None]) -> Flight:
        """A document sets out: with the next ``go_on``."""
        flight = Flight(self._hub, walk, recorder, go)
        self._alive.add(flight)
        self._ready.append(flight)
        return flight

    def know(self, step: str, made: Iterable[MadeCall]) -> None:
        """What came of the next calls of this step is known."""
        self._queues[step].made.extend(made)

    def call(self, step: str, doc: Document) -> Any:
        """In a flight: what the step returns for the document; raises what it raises, and ``NodeAway``."""
        flight = cast(Flight, getcurrent())
        waiting = AwaitedAnswer(doc, flight.walk.calling, partial(self.ready, flight))
        self._queues[step].add(waiting)
        self.park()
        if waiting.doc is not doc and (wish := waiting.doc.asked_again) is not None:
            doc.again(wish.after_s, why=wish.why)
        return waiting.result()

    def members_of(self, walk: Onwards) -> SideBySide:
        """In a flight: what a step has made of its document."""
        return SideBySide(self, walk, cast(Flight, getcurrent()))

    def go_on(self) -> bool:
        """All go as far as they come without waiting. Did one go on, or a call end?"""
        moved = False
        while True:
            while self._ready:
                self._resume(self._ready.popleft())
                moved = True
            for queue in self._queues.values():
                queue.launch()
            if not self._hear(0) and not self._ready:
                return moved
            moved = True

    def wait(self) -> None:
        """Until one more has got an answer. No other document sets out before, so a batch need not be full."""
        if self.go_on():
            return
        if not any(queue.under_way for queue in self._queues.values()):
            max(self._queues.values(), key=lambda queue: len(queue.waiting)).launch(part=True)
        if not self._ready:  # those that were turned away are
            due = [due_s for queue in self._queues.values() if (due_s := queue.due_s()) is not None]
            self._hear(min(due, default=None))
        self.go_on()

    def park(self) -> None:
        """In a flight: until somebody says that it is ready."""
        self._hub.switch()

    def ready(self, flight: Flight) -> None:
        """It need not wait any longer."""
        self._ready.append(flight)

    def close(self) -> None:
        """Nobody is on the way any more."""
        for flight in self._alive:
            if flight.gr_frame is not None:  # it has begun, and is not through: the task failed
                with contextlib.suppress(Interrupted):
                    flight.throw(Interrupted())
            flight.recorder.close()
        self._alive.clear()
        for queue in self._queues.values():
            queue.close()

    def _resume(self, flight: Flight) -> None:
        flight.switch()
        if flight.dead:
            self._alive.discard(flight)
            if flight.above is not None:
                flight.above.through()

    def _hear(self, wait_s: float | None) -> bool:
        """Is a call through? If none is, wait so long for one. None: as long as it takes."""
        try:
            queue, call = self._ended.get(timeout=wait_s) if wait_s != 0 else self._ended.get_nowait()
        except Empty:
            return any(queue.expire() for queue in self._queues.values())
        while True:
            queue.through(call)
            try:
                queue, call = self._ended.get_nowait()
            except Empty:
                return True


class SideBySide:
    """What a step has made of one document goes on: each in a flight of its own."""

    def __init__(self, flights: Flights, walk: Onwards, flight: Flight) -> None:
        self._flights = flights
        self._walk = walk
        self._flight = flight
        self._members: deque[Flight] = deque()
        self._parked = False

    def add(self, go: Callable[[Any], None]) -> None:
        """See ``Members.add``."""
        recorder = Recorder()
        member = self._flights.begin(self._walk.beside(recorder), recorder, go)
        member.above = self
        self._members.append(member)
        while self._members and self._flights.full:
            self._take()

    def wait(self) -> None:
        """See ``Members.wait``."""
        while self._members:
            self._take()

    def through(self) -> None:
        """A member has ended."""
        if self._parked:
            self._parked = False
            self._flights.ready(self._flight)

    def _take(self) -> None:
        """What was said of those that are through, in their order; if the first is not, wait for one."""
        if not self._members[0].dead:
            self._parked = True
            self._flights.park()
        while self._members and self._members[0].dead:
            member = self._members.popleft()
            self._flight.recorder.absorb(member.recorder)
            member.recorder.close()
            self._walk.join(member.walk)
