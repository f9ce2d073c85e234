"""Concurrent walks: while a document waits for a step's batch or call, other documents are walked."""

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
from ferryman.engine.live import ProgressWriter
from ferryman.engine.results import AWAY, NodeAway, NodeError, StepTimeout, classify_error
from ferryman.engine.runner.child import exit_if_forked
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import CallScope, RateLimiter, make_batch_call, time_limit, timeout_message
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.isolation import Recorder, replay
from ferryman.engine.transform.reader import DocumentReader, RowAction, stage_row
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import Walk
from ferryman.errors import Interrupted, inspectable, unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async

_LOOP_GRACE_S: Final = 5.0
"""Seconds after its cancellation in which a coroutine must end; after that, it counts as blocking the event loop for
all others."""


@dataclass(slots=True, eq=False)
class AwaitedAnswer:
    """A document that waits for a step's answer.

    Attributes:
        on_done: called once there is an answer.
    """

    doc: Document
    call_scope: CallScope
    on_done: Callable[[], None]
    answer: Any = None
    error: BaseException | None = None
    trace: TracebackType | None = None

    def fail(self, error: BaseException) -> None:
        """Set an error as the answer, for this document or for the whole call."""
        self.error, self.trace = error, error.__traceback__
        self.on_done()

    def result(self) -> Any:
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error.with_traceback(self.trace)  # other documents raise the same object
        return self.answer


@dataclass(slots=True, eq=False)
class StepCall:
    """One call of a step's function.

    Attributes:
        copies: copies of its documents from before the call; [] if it is not repeated in halves after an error.
        deadline: monotonic time.
    """

    waiting: list[AwaitedAnswer]
    copies: list[Document]
    deadline: float | None = None
    answers: list[Any] = field(default_factory=list)
    error: BaseException | None = None


class FinishedCall(NamedTuple):
    """Result of a call that was made before its documents reached the step's queue.

    Attributes:
        docs: the documents after the call, which may have changed them.
        error: exception that the call raised; None: it returned.
    """

    docs: list[Document]
    answers: list[Any]
    error: BaseException | None

    @property
    def failed(self) -> bool:
        """Return whether the call failed as a whole or for any of its documents."""
        return self.error is not None or any(isinstance(answer, Exception) for answer in self.answers)


class _CallKeys:
    """Looks up the idempotency key of each document of a call."""

    def __init__(self, call: StepCall) -> None:
        self._by_object = {id(w.doc): w.call_scope for w in call.waiting}
        self._by_id = {w.doc.id: w.call_scope for w in call.waiting}

    def key_of(self, doc: Document) -> str | None:
        """Return the document's idempotency key, see ``StepCaller``."""
        call_scope = self._by_object.get(id(doc)) or self._by_id.get(doc.id)
        return call_scope.key_of(doc) if call_scope is not None else None


class StepQueue:
    """Queue of documents waiting for one step in one task; several calls of the step may run at a time.

    Args:
        health: health of the step.
        share: this task's share of the step's rate.
        ended_calls: queue to which finished calls are added.
    """

    def __init__(
        self, step: StepNode, health: NodeHealth, share: float, ended_calls: SimpleQueue[tuple[StepQueue, StepCall]]
    ):
        self.step = step
        self.waiting: deque[AwaitedAnswer] = deque()
        self.running: set[StepCall] = set()
        self.finished: deque[FinishedCall] = deque()
        """Results of the next calls, if they were made earlier."""
        self._halves: deque[list[AwaitedAnswer]] = deque()
        self._health = health
        self._limiter = RateLimiter(step.rate, share)
        self._ended_calls = ended_calls
        self._call_batch = make_batch_call(step)
        self._is_async = is_async(step.fn)
        self._in_this_thread = step.concurrency == 1 and not self._is_async
        self._threads = CallThreads(step.name)

    def add(self, waiting: AwaitedAnswer) -> None:
        """Queue another document."""
        self.waiting.append(waiting)

    def launch(self, *, part: bool = False) -> None:
        """Start all calls that can be made now.

        Args:
            part: also start one call whose batch is not full.
        """
        while len(self.running) < self.step.concurrency and self._limiter.wait_s() == 0:
            if self._halves:
                next_ = self._halves.popleft()
            elif len(self.waiting) >= self.step.rows or (part and self.waiting):
                next_ = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.step.rows))]
                part = False
            else:
                return
            if self._health.away:
                self._turn_away(next_)
            else:
                self._begin(next_)

    def next_due_s(self) -> float | None:
        """Return the seconds until a call times out or the rate allows another one; None: neither."""
        due = [c.deadline - time.monotonic() for c in self.running if c.deadline is not None]
        if (self._halves or self.waiting) and (wait_s := self._limiter.wait_s()) > 0:
            due.append(wait_s)
        return max(0.0, min(due)) if due else None

    def expire(self) -> bool:
        """Give up calls that have exceeded their time limit; return whether there was one."""
        now = time.monotonic()
        late = [c for c in self.running if c.deadline is not None and c.deadline <= now]
        for call in late:
            if self._is_async:  # it was cancelled, and its grace period is over
                exit_process(f"step {self.step.name} blocks the event loop: an async def must await what takes time")
            note_hung_call()
            call.error = StepTimeout(timeout_message(self.step))
            self.finish(call)
        return bool(late)

    def finish(self, call: StepCall) -> None:
        """Pass a call's answers to its documents; after an error, queue the two halves of its batch instead."""
        if call not in self.running:
            return  # it was given up before
        self.running.discard(call)
        if call.error is None:
            for each, answer in zip(call.waiting, call.answers, strict=True):
                if isinstance(answer, Exception):
                    each.fail(answer)
                else:
                    each.answer = answer
                    each.on_done()
        elif call.copies and classify_error(call.error, self.step.name, "").kind not in AWAY:
            # one document may be to blame, so halves are tried; but not if a service is unavailable, since each half
            # would only ask it again
            for each, copy in zip(call.waiting, call.copies, strict=True):
                each.doc = copy  # the call may have changed the document before it failed
            middle = len(call.waiting) // 2
            self._halves += [call.waiting[:middle], call.waiting[middle:]]
        else:
            for each in call.waiting:
                each.fail(call.error)

    def close(self) -> None:
        """End the step's threads; there are no more calls."""
        self._threads.close()

    def _turn_away(self, waiting: list[AwaitedAnswer]) -> None:
        self._health.turn_away()
        for each in waiting:
            each.fail(NodeAway())

    def _begin(self, waiting: list[AwaitedAnswer]) -> None:
        waiting, copies = self._copy_documents(waiting)
        if not waiting:
            return
        call = StepCall(waiting, copies if len(waiting) > 1 else [])
        limit_s = self.step.call_timeout_s
        self._limiter.note_call()
        self.running.add(call)
        context = contextvars.copy_context()
        context.run(current_caller.set, _CallKeys(call))
        if self._in_this_thread:
            context.run(self._run_here, call)
        elif self._is_async:
            if limit_s is not None:
                call.deadline = time.monotonic() + limit_s + _LOOP_GRACE_S
            context.run(self._run_in_loop, call)
        else:
            if limit_s is not None:
                call.deadline = time.monotonic() + limit_s
            self._threads.run(lambda: context.run(self._run_in_thread, call))

    def _copy_documents(self, waiting: list[AwaitedAnswer]) -> tuple[list[AwaitedAnswer], list[Document]]:
        """Copy the documents of a call that may have to be repeated in halves. A document that cannot be copied fails
        on its own. A step that takes one document at a time needs no copies."""
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

    def _run_here(self, call: StepCall) -> None:
        try:
            if (finished := self._known_result(call)) is not None:
                call.answers, call.error = finished.answers, finished.error
                for each, doc in zip(call.waiting, finished.docs, strict=True):
                    each.doc = doc
            else:
                with time_limit(self.step):
                    call.answers = self._answers(call)
        except BaseException as e:
            call.error = unless_interrupt(e)
        self._ended_calls.put((self, call))

    def _known_result(self, call: StepCall) -> FinishedCall | None:
        """Return the result of this call if it was already made ahead of time."""
        finished = self.finished.popleft() if self.finished else None
        if finished is None or [doc.id for doc in finished.docs] == [each.doc.id for each in call.waiting]:
            return finished
        self.finished.clear()
        return None

    def _run_in_thread(self, call: StepCall) -> None:
        """Make the call in another thread; discard its result if it was given up in the meantime."""
        answers: list[Any] = []
        error: BaseException | None = None
        try:
            answers = self._answers(call)
        except BaseException as e:
            error = inspectable(e)
        if call in self.running:
            call.answers, call.error = answers, error
            self._ended_calls.put((self, call))

    def _run_in_loop(self, call: StepCall) -> None:
        from ferryman.engine.transform.event_loop import start  # asyncio would make each start slower

        def on_end(answers: Any, error: BaseException | None, late: bool) -> None:
            error = StepTimeout(timeout_message(self.step)) if late else error
            call.answers, call.error = answers, error if error is None else inspectable(error)
            self._ended_calls.put((self, call))

        out = self._call_batch([each.doc for each in call.waiting])
        assert isinstance(out, Coroutine)
        start(out, self.step.call_timeout_s, on_end)

    def _answers(self, call: StepCall) -> list[Any]:
        out = self._call_batch([each.doc for each in call.waiting])
        assert isinstance(out, list)
        return out


# Fast path for a step right below the source that takes batches: it is called for a whole block before any of its
# documents is walked further. No document has to wait then, so none needs a greenlet.
#
# This covers blocks without errors. After an error, ``ConcurrentWalks`` receives the results of the calls so far and
# walks the block: it halves batches, and stops calling a step in trouble.


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

    def process_block(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        """Walk and stage all documents of the block; return False if none was staged, because the block needs
        ``ConcurrentWalks``."""
        if self._blocks is None or not self._suits(block, contents):
            return False
        fields, raws = contents
        decoded = [decode_fields(each) for each in fields if each is not None]
        docs = list(map(Document.of, block.ids, decoded, raws, block.versions))
        finished = self._call_in_batches(block, docs)
        if finished and finished[-1].failed:
            self._live.add(-sum(len(each.docs) for each in finished))
            self._walks.set_results(self._step.name, finished)
            return False
        self._stager.begin_block(block)
        self._walk.row = self._reader.walk.row
        answers = chain.from_iterable(each.answers for each in finished)
        for i, (doc, answer) in enumerate(zip(docs, answers, strict=True)):
            self._blocks.walk_answered_row(block, i, doc, answer)
        self._reader.walk.row = self._walk.row
        self._stager.end_block()
        return True

    def _suits(self, block: Block, contents: tuple[list[bytes | None], list[bytes | None]]) -> bool:
        assert self._blocks is not None
        first = self._blocks.first_node
        if not BlockWalk.suits(block) or first is None or first.health is None or first.health.closed:
            return False
        fields, raws = contents
        return None not in fields and sum(len(each or b"") for each in chain(fields, raws)) < limits.IN_FLIGHT_BYTES

    def _call_in_batches(self, block: Block, docs: list[Document]) -> list[FinishedCall]:
        """Call the step for these documents, batch by batch, and return the results.

        Stops after the first call that failed as a whole or for some documents, since the step may be in trouble.
        """
        context = contextvars.copy_context()
        context.run(current_caller.set, _BlockKeys(self._walk.call_scope, block))
        self._walk.call_scope.step, self._walk.call_scope.route = self._step.name, ""
        finished = []
        for at in range(0, len(docs), self._step.rows):
            some = docs[at : at + self._step.rows]
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
            self._live.add(len(some))
            if finished[-1].failed:
                break
        self._walk.call_scope.step = ""
        return finished


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
    plain = step.concurrency == 1 and not is_async(step.fn) and step.rate is None and step.call_timeout_s is None
    if first is None or first.name != step.name or not plain:
        return None
    return FirstBatches(step, reader, walks, stager, live)


# Concurrent walks: each one pauses while a step gathers a batch or has a call running, and the others continue.
#
# Each walk is a greenlet, so its code is written for a single document. All greenlets run in turn in the worker's main
# thread, so a task's data needs no locks. Only calls of steps with ``concurrency`` run in other threads.


class WalkGreenlet(greenlet):  # type: ignore[misc]  # it ships no types
    """Greenlet that walks a document or a member of its family.

    Attributes:
        walk: the walk, which collects its failures.
        recorder: sink that records the walk's calls, to be replayed when the document is staged.
    """

    def __init__(self, hub: greenlet, walk: Walk, recorder: Recorder, run_walk: Callable[[Any], None]) -> None:
        super().__init__(parent=hub)
        self.walk = walk
        self.recorder = recorder
        self.parent_members: ConcurrentMembers | None = None
        self._run_walk = run_walk
        self.gr_context = contextvars.copy_context()

    def run(self) -> None:
        current_caller.set(self.walk.call_scope)
        self._run_walk(self.walk)


class ConcurrentWalks:
    """Walks of one task that run concurrently.

    Args:
        steps: the plan's steps that take batches or run several calls at a time.
        share: this task's share of the steps' rates.
    """

    def __init__(self, steps: Iterable[StepNode], health: Mapping[str, NodeHealth], share: float) -> None:
        self._ended_calls: SimpleQueue[tuple[StepQueue, StepCall]] = SimpleQueue()
        self._queues = {step.name: StepQueue(step, health[step.name], share, self._ended_calls) for step in steps}
        self._ready: deque[WalkGreenlet] = deque()
        self._alive: set[WalkGreenlet] = set()
        self._hub = getcurrent()
        wanted = sum(queue.step.rows * queue.step.concurrency for queue in self._queues.values())
        self.max_running = min(2 * wanted, limits.IN_FLIGHT)

    @property
    def full(self) -> bool:
        """Return whether so many walks are running that more would not help."""
        return len(self._alive) >= self.max_running

    def begin(self, walk: Walk, recorder: Recorder, run_walk: Callable[[Any], None]) -> WalkGreenlet:
        """Start a walk; it runs with the next ``run_ready``."""
        walker = WalkGreenlet(self._hub, walk, recorder, run_walk)
        self._alive.add(walker)
        self._ready.append(walker)
        return walker

    def set_results(self, step: str, finished: Iterable[FinishedCall]) -> None:
        """Store the results of the next calls of this step."""
        self._queues[step].finished.extend(finished)

    def call(self, step: str, doc: Document) -> Any:
        """Return the step's answer for the document, pausing its walk meanwhile; raises the step's error, or
        ``NodeAway``."""
        walker = cast(WalkGreenlet, getcurrent())
        waiting = AwaitedAnswer(doc, walker.walk.call_scope, partial(self.mark_ready, walker))
        self._queues[step].add(waiting)
        self.pause()
        if waiting.doc is not doc and (request := waiting.doc.asked_again) is not None:
            doc.again(request.after_s, why=request.why)
        return waiting.result()

    def make_members(self, walk: Walk) -> ConcurrentMembers:
        """Return an object that walks the documents a step made of the current one, see ``MemberWalks``."""
        return ConcurrentMembers(self, walk, cast(WalkGreenlet, getcurrent()))

    def run_ready(self) -> bool:
        """Run all walks until each is waiting; return whether a walk continued or a call ended."""
        moved = False
        while True:
            while self._ready:
                self._resume(self._ready.popleft())
                moved = True
            for queue in self._queues.values():
                queue.launch()
            if not self._finish_calls(0) and not self._ready:
                return moved
            moved = True

    def wait(self) -> None:
        """Wait until another walk has its answer. No new walk is started before that, so a batch may be sent although
        it is not full."""
        if self.run_ready():
            return
        # no call is running and all walks are waiting: only a call with a partial batch can make progress
        if not any(queue.running for queue in self._queues.values()):
            max(self._queues.values(), key=lambda queue: len(queue.waiting)).launch(part=True)
        if not self._ready:  # documents that were turned away are ready already
            due = [next_due_s for queue in self._queues.values() if (next_due_s := queue.next_due_s()) is not None]
            self._finish_calls(min(due, default=None))
        self.run_ready()

    def pause(self) -> None:
        """Pause the current walk until it is marked as ready."""
        self._hub.switch()

    def mark_ready(self, walker: WalkGreenlet) -> None:
        """Mark a paused walk as ready to run."""
        self._ready.append(walker)

    def close(self) -> None:
        """End all walks."""
        for walker in self._alive:
            if walker.gr_frame is not None:  # started but not finished: the task failed
                with contextlib.suppress(Interrupted):
                    walker.throw(Interrupted())
            walker.recorder.close()
        self._alive.clear()
        for queue in self._queues.values():
            queue.close()

    def _resume(self, walker: WalkGreenlet) -> None:
        walker.switch()
        if walker.dead:
            self._alive.discard(walker)
            if walker.parent_members is not None:
                walker.parent_members.finish()

    def _finish_calls(self, wait_s: float | None) -> bool:
        """Process finished calls; return whether there was one. If there is none, wait for one for at most ``wait_s``
        seconds; None: without limit."""
        try:
            queue, call = self._ended_calls.get(timeout=wait_s) if wait_s != 0 else self._ended_calls.get_nowait()
        except Empty:
            return any(queue.expire() for queue in self._queues.values())
        while True:
            queue.finish(call)
            try:
                queue, call = self._ended_calls.get_nowait()
            except Empty:
                return True


class ConcurrentMembers:
    """Walks the documents that a step made of one document, concurrently."""

    def __init__(self, walks: ConcurrentWalks, walk: Walk, walker: WalkGreenlet) -> None:
        self._walks = walks
        self._walk = walk
        self._walker = walker
        self._members: deque[WalkGreenlet] = deque()
        self._paused = False

    def add(self, run_walk: Callable[[Any], None]) -> None:
        """Start the walk of one of the documents, see ``MemberWalks.add``."""
        recorder = Recorder()
        member = self._walks.begin(self._walk.fork(recorder), recorder, run_walk)
        member.parent_members = self
        self._members.append(member)
        while self._members and self._walks.full:
            self._collect()

    def wait(self) -> None:
        """Wait until all have been walked, see ``MemberWalks.wait``."""
        while self._members:
            self._collect()

    def finish(self) -> None:
        """Resume the parent's walk if it is waiting for its members, because one of them has ended."""
        if self._paused:
            self._paused = False
            self._walks.mark_ready(self._walker)

    def _collect(self) -> None:
        """Append the records of finished member walks, in order; if the first one is not finished, wait for a member to
        finish."""
        if not self._members[0].dead:
            self._paused = True
            self._walks.pause()
        while self._members and self._members[0].dead:
            member = self._members.popleft()
            self._walker.recorder.append(member.recorder)
            member.recorder.close()
            self._walk.merge(member.walk)


# Blocks of a task: documents are walked concurrently, and staged in order.


@dataclass(slots=True)
class _ReadRow:
    """A row that was read and is not staged yet.

    Attributes:
        walker: its running or finished walk; None: it is not walked.
        size: bytes of its content; 0 if it is not walked.
    """

    i: int
    action: RowAction
    walker: WalkGreenlet | None
    fault: NodeError | None
    size: int


class ConcurrentReader:
    """Reads, walks and stages a task's documents, many at once; they are staged in order."""

    def __init__(self, reader: DocumentReader, walks: ConcurrentWalks, stager: Stager, live: ProgressWriter) -> None:
        self._reader = reader
        self._walks = walks
        self._stager = stager
        self._live = live
        self._walk = reader.walk
        self._walk.make_members = walks.make_members
        self._rows: deque[_ReadRow] = deque()
        self._bytes = 0
        self._processed: list[int] = []

    def process_block(
        self,
        block: Block,
        contents: tuple[list[bytes | None], list[bytes | None]],
        on_error: Callable[[str, NodeError], None],
    ) -> list[int]:
        """Process all documents of the block; return the rows of those that had changed.

        Args:
            on_error: called with the id of a document that could not be read, and with its error.
        """
        self._stager.begin_block(block)
        self._processed = []
        for i, (fields, raw) in enumerate(zip(*contents, strict=True)):
            while self._walks.full or self._bytes >= limits.IN_FLIGHT_BYTES:
                self._walks.wait()
                self._stage()
            self._read_row(block, i, fields, raw, on_error)
            self._walks.run_ready()
            self._stage()
        while self._rows:
            self._walks.wait()
            self._stage()
        self._stager.end_block()
        return self._processed

    def close(self) -> None:
        """End all walks: there are no more blocks."""
        self._walks.close()

    def _read_row(
        self, block: Block, i: int, fields: bytes | None, raw: bytes | None, on_error: Callable[[str, NodeError], None]
    ) -> None:
        reader, recorder = self._reader, Recorder()
        walk = self._walk.fork(recorder)
        reader.walk = walk
        try:
            waits = self._stager.must_wait(i)
            action, run_walk = (RowAction.SKIP, None) if waits else reader.read_row(block, i, fields, raw)
        finally:
            reader.walk = self._walk
        self._walk.row += 1
        walker = None if run_walk is None else self._walks.begin(walk, recorder, _ignore_walk(run_walk))
        fault = reader.fault if action is RowAction.POSTPONE else None
        if fault is not None:
            on_error(block.ids[i], fault)
        size = 0 if walker is None else reader.size
        self._bytes += size
        self._rows.append(_ReadRow(i, action, walker, fault, size))

    def _stage(self) -> None:
        """Stage the finished walks at the front of the queue."""
        while self._rows and ((walker := self._rows[0].walker) is None or walker.dead):
            row = self._rows.popleft()
            self._bytes -= row.size
            self._live.add(1)
            # an earlier document of its key may have failed in the meantime
            if not self._stager.stage_if_waiting(row.i) and self._stage_row(row):
                self._processed.append(row.i)
            if walker is not None:
                walker.recorder.close()

    def _stage_row(self, row: _ReadRow) -> bool:
        if (walker := row.walker) is None:
            return stage_row(self._stager, row.i, row.action, row.fault, None, None)
        run_walk = partial(replay, walker.recorder.all_calls(), self._stager)
        return stage_row(self._stager, row.i, row.action, None, walker.walk, run_walk)


def _ignore_walk(run_walk: Callable[[], None]) -> Callable[[Walk], None]:
    return lambda _: run_walk()


# Threads for calls of a step. They live as long as the task, so that what a step keeps per thread (a session with its
# connections) is reused.


class CallThreads:
    """Threads for a task's calls: as many as run at once, plus those whose call never returned."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._count = 0
        self._process = os.getpid()

    def run(self, job: Callable[[], None]) -> None:
        """Run the job in an idle thread, or in a new one."""
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
            exit_if_forked(self._process)
            self._free.release()


def note_hung_call() -> None:
    """Count a call that never returned, and whose thread was abandoned.

    After ``limits.HUNG_CALLS`` of them this process ends itself, and isolation mode then finds the documents to blame.
    """
    global _hung  # noqa: PLW0603 - one count a process
    _hung += 1
    if _hung >= limits.HUNG_CALLS:
        exit_process(f"{_hung} calls of steps have not come back")


def exit_process(why: str) -> None:
    """End this process, which is the only way to end a call that hangs."""
    sys.stderr.write(f"ferryman: {why}: this worker ends itself.\n")
    sys.stderr.flush()
    os._exit(1)


_hung = 0
