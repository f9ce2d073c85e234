"""Documents that wait for a step, and its calls that are under way."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple, cast

from greenlet import getcurrent, greenlet

from ferryman import limits
from ferryman.document import Document, current_caller, decode_fields
from ferryman.engine.live import Live
from ferryman.engine.results import AWAY, NodeAway, NodeError, StepTimeout, classify_error
from ferryman.engine.runner.child import end_copy_of
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import Calling, RateLimiter, batches, in_time, why_late
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.isolation import Recorder, replay
from ferryman.engine.transform.reader import DocumentReader, Taken, stage_row
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import Onwards, Walk
from ferryman.errors import Interrupted, inspectable, unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async

_LOOP_GRACE_S: Final = 5.0
"""A coroutine that has not ended so long after it was cancelled blocks the loop for all others."""


@dataclass(slots=True, eq=False)
class AwaitedAnswer:
    """A document that waits for a step's answer.

    Attributes:
        done: told once there is one.
    """

    doc: Document
    calling: Calling
    done: Callable[[], None]
    answer: Any = None
    error: BaseException | None = None
    trace: TracebackType | None = None

    def fail(self, error: BaseException) -> None:
        """It went wrong, for this document or for all of the call."""
        self.error, self.trace = error, error.__traceback__
        self.done()

    def result(self) -> Any:
        """The answer; raises what went wrong."""
        if self.error is not None:
            raise self.error.with_traceback(self.trace)  # others raise the same one
        return self.answer


@dataclass(slots=True, eq=False)
class Call:
    """One call of a step's function.

    Attributes:
        copies: of its documents, as they were; [] where it is not tried in halves.
        until: monotonic time.
    """

    waiting: list[AwaitedAnswer]
    copies: list[Document]
    until: float | None = None
    answers: list[Any] = field(default_factory=list)
    error: BaseException | None = None


class MadeCall(NamedTuple):
    """A call that was made before its documents came to the queue.

    Attributes:
        docs: as the call has left them.
        error: that it ended in.
    """

    docs: list[Document]
    answers: list[Any]
    error: BaseException | None

    @property
    def failed(self) -> bool:
        """Did it, or any of its documents?"""
        return self.error is not None or any(isinstance(answer, Exception) for answer in self.answers)


class _KeysOf:
    """Knows of each document of a call by which way it came."""

    def __init__(self, call: Call) -> None:
        self._by_object = {id(w.doc): w.calling for w in call.waiting}
        self._by_id = {w.doc.id: w.calling for w in call.waiting}

    def key_of(self, doc: Document) -> str | None:
        """Return the document's key for a keyed node, see ``StepCaller``."""
        calling = self._by_object.get(id(doc)) or self._by_id.get(doc.id)
        return calling.key_of(doc) if calling is not None else None


class StepQueue:
    """Calls of one step in one task, of which several run at a time.

    Args:
        pulse: how the step is doing.
        share: of the step's rate, for this task.
        ended: calls come here when they are through.
    """

    def __init__(self, step: StepNode, pulse: NodeHealth, share: float, ended: SimpleQueue[tuple[StepQueue, Call]]):
        self.step = step
        self.waiting: deque[AwaitedAnswer] = deque()
        self.under_way: set[Call] = set()
        self.made: deque[MadeCall] = deque()
        """Results of the next calls, where they are known already."""
        self._halves: deque[list[AwaitedAnswer]] = deque()
        self._pulse = pulse
        self._limiter = RateLimiter(step.rate, share)
        self._ended = ended
        self._fn = batches(step)
        self._is_async = is_async(step.fn)
        self._in_this_thread = step.concurrency == 1 and not self._is_async
        self._threads = Threads(step.name)

    def add(self, waiting: AwaitedAnswer) -> None:
        """Another document."""
        self.waiting.append(waiting)

    def launch(self, *, part: bool = False) -> None:
        """Make what calls can be made now.

        Args:
            part: one call with fewer documents than it could have.
        """
        while len(self.under_way) < self.step.concurrency and self._limiter.wait_s() == 0:
            if self._halves:
                next_ = self._halves.popleft()
            elif len(self.waiting) >= self.step.rows or (part and self.waiting):
                next_ = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.step.rows))]
                part = False
            else:
                return
            if self._pulse.away:
                self._turn_away(next_)
            else:
                self._begin(next_)

    def due_s(self) -> float | None:
        """Seconds until something has to be done though no call is through; None: nothing."""
        due = [c.until - time.monotonic() for c in self.under_way if c.until is not None]
        if (self._halves or self.waiting) and (wait_s := self._limiter.wait_s()) > 0:
            due.append(wait_s)
        return max(0.0, min(due)) if due else None

    def expire(self) -> bool:
        """Leave the calls alone that have taken too long; is there one?"""
        now = time.monotonic()
        late = [c for c in self.under_way if c.until is not None and c.until <= now]
        for call in late:
            if self._is_async:  # it was cancelled long ago
                end_process(f"step {self.step.name} blocks the event loop: an async def must await what takes time")
            left_behind()
            call.error = StepTimeout(why_late(self.step))
            self.through(call)
        return bool(late)

    def through(self, call: Call) -> None:
        """A call has come to its end."""
        if call not in self.under_way:
            return  # it was left alone before
        self.under_way.discard(call)
        if call.error is None:
            for each, answer in zip(call.waiting, call.answers, strict=True):
                if isinstance(answer, Exception):
                    each.fail(answer)
                else:
                    each.answer = answer
                    each.done()
        elif call.copies and classify_error(call.error, self.step.name, "").kind not in AWAY:
            # it may be one of them; a service that is away would be asked once more for each half
            for each, copy in zip(call.waiting, call.copies, strict=True):
                each.doc = copy  # the call may have changed the document before it failed
            middle = len(call.waiting) // 2
            self._halves += [call.waiting[:middle], call.waiting[middle:]]
        else:
            for each in call.waiting:
                each.fail(call.error)

    def close(self) -> None:
        """No more calls."""
        self._threads.close()

    def _turn_away(self, waiting: list[AwaitedAnswer]) -> None:
        self._pulse.turn_away()
        for each in waiting:
            each.fail(NodeAway())

    def _begin(self, waiting: list[AwaitedAnswer]) -> None:
        waiting, copies = self._copied(waiting)
        if not waiting:
            return
        call = Call(waiting, copies if len(waiting) > 1 else [])
        limit_s = self.step.call_timeout_s
        self._limiter.begun()
        self.under_way.add(call)
        context = contextvars.copy_context()
        context.run(current_caller.set, _KeysOf(call))
        if self._in_this_thread:
            context.run(self._here, call)
        elif self._is_async:
            if limit_s is not None:
                call.until = time.monotonic() + limit_s + _LOOP_GRACE_S
            context.run(self._in_the_loop, call)
        else:
            if limit_s is not None:
                call.until = time.monotonic() + limit_s
            self._threads.run(lambda: context.run(self._there, call))

    def _copied(self, waiting: list[AwaitedAnswer]) -> tuple[list[AwaitedAnswer], list[Document]]:
        """Copy the documents of a call that may have to be made again in halves. Those that cannot be copied fail,
        however few others there are. A step that takes one document at a time needs no copies."""
        if self.step.rows == 1:
            return waiting, []
        fit, copies = [], []
        for each in waiting:
            try:
                copies.append(each.doc.copy())
                fit.append(each)
            except BaseException as e:
                each.fail(unless_interrupt(e))
        return fit, copies

    def _here(self, call: Call) -> None:
        try:
            if (made := self._known(call)) is not None:
                call.answers, call.error = made.answers, made.error
                for each, doc in zip(call.waiting, made.docs, strict=True):
                    each.doc = doc
            else:
                with in_time(self.step):
                    call.answers = self._answers(call)
        except BaseException as e:
            call.error = unless_interrupt(e)
        self._ended.put((self, call))

    def _known(self, call: Call) -> MadeCall | None:
        """Return the result of this very call if it was made before."""
        made = self.made.popleft() if self.made else None
        if made is None or [doc.id for doc in made.docs] == [each.doc.id for each in call.waiting]:
            return made
        self.made.clear()
        return None

    def _there(self, call: Call) -> None:
        """In another thread; what comes after the call was left alone is nobody's."""
        answers: list[Any] = []
        error: BaseException | None = None
        try:
            answers = self._answers(call)
        except BaseException as e:
            error = inspectable(e)
        if call in self.under_way:
            call.answers, call.error = answers, error
            self._ended.put((self, call))

    def _in_the_loop(self, call: Call) -> None:
        from ferryman.engine.transform.event_loop import begin  # asyncio would make each start slower

        def through(answers: Any, error: BaseException | None, late: bool) -> None:
            error = StepTimeout(why_late(self.step)) if late else error
            call.answers, call.error = answers, error if error is None else inspectable(error)
            self._ended.put((self, call))

        out = self._fn([each.doc for each in call.waiting])
        assert isinstance(out, Coroutine)
        begin(out, self.step.call_timeout_s, through)

    def _answers(self, call: Call) -> list[Any]:
        out = self._fn([each.doc for each in call.waiting])
        assert isinstance(out, list)
        return out


# A step right below the source that takes batches: it is called for those of a whole block before any of its documents
# goes on. None of them waits then, and none has to be a greenlet.
#
# That is for blocks and calls that meet nothing unusual. Where a document met an error, ``Flights`` is told what has
# come of the calls, and the block goes the usual way: there, batches are halved, and a step in trouble is called no
# more.


class _KeysOfBlock:
    """Knows the idempotency keys of a block's documents."""

    def __init__(self, calling: Calling, block: Block) -> None:
        self._calling = calling
        self._block = block
        self._rows: dict[str, int] = {}

    def key_of(self, doc: Document) -> str | None:
        """Return the document's key for a keyed node, see ``StepCaller``."""
        self._rows = self._rows or {id: i for i, id in enumerate(self._block.ids)}
        if (row := self._rows.get(doc.id)) is None:
            return None
        self._calling.at(self._block, row)
        return self._calling.key_of(doc)


class FirstBatches:
    """Calls of the steps right below a source, made for a whole block at once in one task."""

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
        """Call the step for these documents. After a failed call, for all or for some of them, return no results: it
        may be the step's trouble."""
        context = contextvars.copy_context()
        context.run(current_caller.set, _KeysOfBlock(self._walk.calling, block))
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
    plain = step.concurrency == 1 and not is_async(step.fn) and step.rate is None and step.call_timeout_s is None
    if first is None or first.name != step.name or not plain:
        return None
    return FirstBatches(step, feed, flights, stager, live)


# Documents that are walked side by side: each walk waits where a step has to gather a batch, or has a call under way,
# and the others go on meanwhile.
#
# Each walk is a greenlet: it is written as if its document were alone, and all run in the worker's main thread, in
# turns, so that nothing of a task needs a lock. Only calls of steps with ``concurrency`` run in other threads.


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
        current_caller.set(self.walk.calling)
        self._go(self.walk)


class Flights:
    """Walks of one task that run at a time.

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
        """Store the results of the next calls of this step."""
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
        """Process finished calls and return whether there was one. If there is none, wait ``wait_s`` seconds for one;
        None: without limit."""
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
    """Walks the documents that a step made of one document, each at the same time as the others."""

    def __init__(self, flights: Flights, walk: Onwards, flight: Flight) -> None:
        self._flights = flights
        self._walk = walk
        self._flight = flight
        self._members: deque[Flight] = deque()
        self._parked = False

    def add(self, go: Callable[[Any], None]) -> None:
        """Start the walk of one of the documents, see ``Members.add``."""
        recorder = Recorder()
        member = self._flights.begin(self._walk.beside(recorder), recorder, go)
        member.above = self
        self._members.append(member)
        while self._members and self._flights.full:
            self._take()

    def wait(self) -> None:
        """Wait until all have been walked, see ``Members.wait``."""
        while self._members:
            self._take()

    def through(self) -> None:
        """A member has ended."""
        if self._parked:
            self._parked = False
            self._flights.ready(self._flight)

    def _take(self) -> None:
        """Take the records of finished walks in their order; if the first is not finished, wait for one."""
        if not self._members[0].dead:
            self._parked = True
            self._flights.park()
        while self._members and self._members[0].dead:
            member = self._members.popleft()
            self._flight.recorder.absorb(member.recorder)
            member.recorder.close()
            self._walk.join(member.walk)


# Takes up the blocks of one task, many documents at once: they are staged in their order, each when those before it
# are.


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
        """Stage the finished walks at the front of the queue."""
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


# Threads for calls of a step. They last as long as their task, so that what a step keeps for a thread (a session with
# its connections) is used again.


class Threads:
    """Threads for a task's calls: as many as jobs run at once, and those that a call never returned from."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._count = 0
        self._process = os.getpid()

    def run(self, job: Callable[[], None]) -> None:
        """In one that is free, or another one."""
        if not self._free.acquire(blocking=False):
            threading.Thread(target=self._work, name=f"ferryman-{self._name}", daemon=True).start()
            self._count += 1
        self._jobs.put(job)

    def close(self) -> None:
        """End the idle threads now and the others when their call returns."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            end_copy_of(self._process)
            self._free.release()


def left_behind() -> None:
    """A call has not come back: its thread is left alone. Of too many, this process is ended, and isolation finds whose
    calls they are."""
    global _hung  # noqa: PLW0603 - one count a process
    _hung += 1
    if _hung >= limits.HUNG_CALLS:
        end_process(f"{_hung} calls of steps have not come back")


def end_process(why: str) -> None:
    """Nothing else ends what hangs."""
    sys.stderr.write(f"ferryman: {why}: this worker ends itself.\n")
    sys.stderr.flush()
    os._exit(1)


_hung = 0
