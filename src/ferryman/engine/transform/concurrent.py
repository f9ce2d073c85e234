"""Concurrent walks: while a document waits for a step's batch or call, other documents are walked."""

from __future__ import annotations

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
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from ferryman import limits
from ferryman.document import Document, current_caller, decode_fields
from ferryman.engine.live import ProgressWriter
from ferryman.engine.results import AWAY, NodeAway, NodeError, StepTimeout, classify_error
from ferryman.engine.runner.child import exit_if_forked
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import (
    CallScope,
    RateLimiter,
    content_size,
    make_batch_call,
    time_limit,
    timeout_message,
)
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.isolation import Recorder, replay
from ferryman.engine.transform.reader import DocumentReader, RowAction, stage_row
from ferryman.engine.transform.remembering import SharedInputs, TaskAnswers, make_remembering_batch_call
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import Raised, Request, StepCall, Walk, Walking, WalkMember, call_step
from ferryman.errors import inspectable, unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async

_ELSEWHERE_S: Final = 0.02
"""Seconds between two looks at inputs for which another task is calling."""
_LOOP_GRACE_S: Final = 5.0
"""Seconds after its cancellation in which a coroutine must end; after that, it counts as blocking the event loop for
all others."""


@dataclass(slots=True, eq=False)
class AwaitedAnswer:
    """A document that waits for a step's answer.

    Attributes:
        on_done: called once with the document as the step got it, and the answer or ``Raised``.
        size: its size for ``batch_bytes``; None: not asked for yet.
    """

    doc: Document
    call_scope: CallScope
    on_done: Callable[[Document, Any], None]
    size: float | None = None

    def succeed(self, answer: Any) -> None:
        """Set the answer."""
        self.on_done(self.doc, answer)

    def fail(self, error: BaseException) -> None:
        """Set an error as the answer, for this document or for the whole call."""
        self.on_done(self.doc, Raised(error, error.__traceback__))  # other documents get the same object


@dataclass(slots=True, eq=False)
class BatchCall:
    """One call of a step's function.

    Attributes:
        copies: copies of its documents from before the call; [] if it is not repeated in halves after an error.
        deadline: monotonic time.
        began: time of ``perf_counter``.
    """

    waiting: list[AwaitedAnswer]
    copies: list[Document]
    deadline: float | None = None
    answers: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    began: float = field(default_factory=time.perf_counter)
    took_s: float = 0.0


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

    def __init__(self, call: BatchCall) -> None:
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
        answers: what the steps of this task remember.
    """

    def __init__(
        self,
        step: StepNode,
        health: NodeHealth,
        share: float,
        ended_calls: SimpleQueue[tuple[StepQueue, BatchCall]],
        answers: TaskAnswers,
    ):
        self.step = step
        self.waiting: deque[AwaitedAnswer] = deque()
        self.running: set[BatchCall] = set()
        self.finished: deque[FinishedCall] = deque()
        """Results of the next calls, if they were made earlier."""
        self._halves: deque[list[AwaitedAnswer]] = deque()
        self._health = health
        self._limiter = RateLimiter(step.rate, share)
        self._ended_calls = ended_calls
        remembered = answers.of(step)
        self._call_batch = make_remembering_batch_call(step, remembered)
        self._inputs = None if remembered is None else SharedInputs(remembered)
        self._elsewhere: deque[AwaitedAnswer] = deque()
        """Documents for whose inputs another task is calling."""
        self._next_look = 0.0
        self._is_async = is_async(step.fn)
        self._in_this_thread = step.concurrency == 1 and not self._is_async
        self._threads = CallThreads(step.name)
        self.took_s = 0.0
        """Seconds spent in calls of the step; those at the same time add up."""

    def add(self, waiting: AwaitedAnswer) -> None:
        """Queue another document, unless its answer is remembered, or on its way."""
        if self._inputs is not None:
            if (admitted := self._inputs.admit(waiting)) is None:
                return
            waiting = AwaitedAnswer(admitted[0], waiting.call_scope, admitted[1])
        self.waiting.append(waiting)

    def launch(self, *, part: bool = False) -> None:
        """Start all calls that can be made now.

        Args:
            part: also start one call whose batch is not full.
        """
        if self._elsewhere and time.monotonic() >= self._next_look:
            self.waiting.extendleft(reversed(self._elsewhere))
            self._elsewhere.clear()
        while len(self.running) < self.step.concurrency and self._limiter.wait_s() == 0:
            if self._halves:
                next_ = self._halves.popleft()
            elif (count := self._next_count(part=part)) > 0:
                next_ = [self.waiting.popleft() for _ in range(count)]
                part = False
            else:
                return
            if self._health.away:
                self._turn_away(next_)
            else:
                self._begin(next_)

    def _next_count(self, *, part: bool) -> int:
        """Return how many documents the next call gets; 0: too few are waiting.

        Args:
            part: a list need not be full.
        """
        most, count = self.step.batch_bytes, min(len(self.waiting), self.step.rows)
        full = count == self.step.rows
        if most is not None:
            size = 0.0
            for n in range(count):
                size += self._size_of(self.waiting[n])
                if size > most:
                    count, full = max(n, 1), True
                    break
        return count if full or part else 0

    def _size_of(self, waiting: AwaitedAnswer) -> float:
        if waiting.size is None:
            try:
                waiting.size = float(
                    content_size(waiting.doc) if self.step.weight is None else self.step.weight(waiting.doc)
                )
            except Exception:  # the function is wrong about this document: it comes alone
                waiting.size = inf
        return waiting.size

    def next_due_s(self) -> float | None:
        """Return the seconds until a call times out or the rate allows another one; None: neither."""
        due = [c.deadline - time.monotonic() for c in self.running if c.deadline is not None]
        if (self._halves or self.waiting) and (wait_s := self._limiter.wait_s()) > 0:
            due.append(wait_s)
        if self._elsewhere:
            due.append(self._next_look - time.monotonic())
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

    def finish(self, call: BatchCall) -> None:
        """Pass a call's answers to its documents; after an error, queue the two halves of its batch instead."""
        if call not in self.running:
            return  # it was given up before
        self.running.discard(call)
        self.took_s += call.took_s
        if call.error is None:
            for each, answer in zip(call.waiting, call.answers, strict=True):
                if isinstance(answer, Exception):
                    each.fail(answer)
                else:
                    each.succeed(answer)
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
        waiting = self._claim(waiting)
        waiting, copies = self._copy_documents(waiting)
        if not waiting:
            return
        call = BatchCall(waiting, copies if len(waiting) > 1 else [])
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

    def _claim(self, waiting: list[AwaitedAnswer]) -> list[AwaitedAnswer]:
        """Return the documents to call for now: not those that another task is calling for, or has called for
        meanwhile."""
        if self._inputs is None:
            return waiting
        now, elsewhere = self._inputs.begin([each.doc for each in waiting])
        if elsewhere:
            self._elsewhere.extend(waiting[n] for n in sorted(elsewhere))
            self._next_look = time.monotonic() + _ELSEWHERE_S
        return [waiting[n] for n in sorted(now)]

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

    def _run_here(self, call: BatchCall) -> None:
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
        call.took_s = time.perf_counter() - call.began
        self._ended_calls.put((self, call))

    def _known_result(self, call: BatchCall) -> FinishedCall | None:
        """Return the result of this call if it was already made ahead of time."""
        finished = self.finished.popleft() if self.finished else None
        if finished is None or [doc.id for doc in finished.docs] == [each.doc.id for each in call.waiting]:
            return finished
        self.finished.clear()
        return None

    def _run_in_thread(self, call: BatchCall) -> None:
        """Make the call in another thread; discard its result if it was given up in the meantime."""
        answers: list[Any] = []
        error: BaseException | None = None
        try:
            answers = self._answers(call)
        except BaseException as e:
            error = inspectable(e)
        if call in self.running:
            call.answers, call.error = answers, error
            call.took_s = time.perf_counter() - call.began
            self._ended_calls.put((self, call))

    def _run_in_loop(self, call: BatchCall) -> None:
        from ferryman.engine.transform.event_loop import start  # asyncio would make each start slower

        def on_end(answers: Any, error: BaseException | None, late: bool) -> None:
            error = StepTimeout(timeout_message(self.step)) if late else error
            call.answers, call.error = answers, error if error is None else inspectable(error)
            call.took_s = time.perf_counter() - call.began
            self._ended_calls.put((self, call))

        out = self._call_batch([each.doc for each in call.waiting])
        assert isinstance(out, Coroutine)
        start(out, self.step.call_timeout_s, on_end)

    def _answers(self, call: BatchCall) -> list[Any]:
        out = self._call_batch([each.doc for each in call.waiting])
        assert isinstance(out, list)
        return out


# Fast path for a step right below the source that takes batches: it is called for a whole block before any of its
# documents is walked further, so no document has to wait.
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
        assert reader.walk.source.next is not None
        self._node = reader.walk.source.next

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
        if block.places or not BlockWalk.suits(block) or first is None or first.health is None or first.health.closed:
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
            began = time.perf_counter()
            try:
                out = context.run(self._call_batch, some)
                assert isinstance(out, list)
                answers = out
            except BaseException as e:
                error = unless_interrupt(e)
            self._node.took_s += time.perf_counter() - began
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
    plain = (
        step.remember is None
        and step.concurrency == 1
        and not is_async(step.fn)
        and step.rate is None
        and step.call_timeout_s is None
    )
    if first is None or first.name != step.name or not plain:
        return None
    return FirstBatches(step, reader, walks, stager, live)


# Concurrent walks: each one is suspended while a step gathers a batch or has a call running, and the others continue.
#
# All walks run in turn in the worker's main thread, so a task's data needs no locks. Only calls of steps with
# ``concurrency`` run in other threads.


class ConcurrentWalk:
    """Walk of a document, or of a member of its family, that runs beside others.

    Attributes:
        walk: collects the failures.
        recorder: sink that records the walk's calls, to be replayed when the document is staged.
        ended: whether the walk has ended.
        answer: answer to the last request.
        parent: walk of the document that this member was made of; None: it was not made by a step.
        members: walks of the members that were made of this document and are not staged yet, in order.
    """

    def __init__(self, walk: Walk, recorder: Recorder, walking: Walking, parent: ConcurrentWalk | None = None) -> None:
        self.walk = walk
        self.recorder = recorder
        self.walking = walking
        self.parent = parent
        self.ended = False
        self.answer: Any = None
        self.members: deque[ConcurrentWalk] = deque()
        self.awaits_all = False
        """Whether it waits for all members; otherwise it waits for one only while too many walks run."""
        self.is_suspended = False
        """Whether it is suspended until another member has ended."""

    def next_request(self) -> Request | None:
        """Continue the walk until its next request; None: it has ended."""
        answer, self.answer = self.answer, None
        try:
            return self.walking.send(answer)
        except StopIteration:
            self.ended = True
            return None

    def stage_members(self) -> None:
        """Append the records of the members that have ended, in order."""
        while self.members and self.members[0].ended:
            member = self.members.popleft()
            self.recorder.append(member.recorder)
            member.recorder.close()
            self.walk.merge(member.walk)


class ConcurrentWalks:
    """Walks of one task that run concurrently.

    Args:
        steps: the plan's steps that take batches or run several calls at a time.
        share: this task's share of the steps' rates.
        answers: what the steps of this task remember.
    """

    def __init__(
        self, steps: Iterable[StepNode], health: Mapping[str, NodeHealth], share: float, answers: TaskAnswers
    ) -> None:
        self._ended_calls: SimpleQueue[tuple[StepQueue, BatchCall]] = SimpleQueue()
        self._queues = {
            step.name: StepQueue(step, health[step.name], share, self._ended_calls, answers) for step in steps
        }
        self._ready: deque[ConcurrentWalk] = deque()
        self._running: set[ConcurrentWalk] = set()
        wanted = sum(queue.step.rows * queue.step.concurrency for queue in self._queues.values())
        self.max_running = min(2 * wanted, limits.IN_FLIGHT)

    @property
    def full(self) -> bool:
        """Return whether so many walks are running that more would not help."""
        return len(self._running) >= self.max_running

    def step_seconds(self) -> dict[str, float]:
        """Return step -> seconds spent in its calls."""
        return {name: queue.took_s for name, queue in self._queues.items()}

    def begin(
        self, walk: Walk, recorder: Recorder, walking: Walking, parent: ConcurrentWalk | None = None
    ) -> ConcurrentWalk:
        """Start a walk; it runs with the next ``run_ready``."""
        started = ConcurrentWalk(walk, recorder, walking, parent)
        self._running.add(started)
        self._ready.append(started)
        return started

    def set_results(self, step: str, finished: Iterable[FinishedCall]) -> None:
        """Store the results of the next calls of this step."""
        self._queues[step].finished.extend(finished)

    def run_ready(self) -> bool:
        """Run all walks until each is waiting; return whether a walk continued or a call ended."""
        moved = False
        while True:
            while self._ready:
                self._run(self._ready.popleft())
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

    def close(self) -> None:
        """End all walks."""
        for walk in self._running:
            walk.walking.close()  # the task failed
            walk.recorder.close()
        self._running.clear()
        for queue in self._queues.values():
            queue.close()

    def _run(self, current: ConcurrentWalk) -> None:
        """Continue a walk until it has to wait, or ends."""
        current_caller.set(current.walk.call_scope)
        if self._waits_for_members(current):
            return
        while (request := current.next_request()) is not None:
            if isinstance(request, StepCall):
                queue = self._queues.get(request.node.name)
                if queue is not None:
                    on_done = partial(self._set_answer, current, request.doc)
                    queue.add(AwaitedAnswer(request.doc, current.walk.call_scope, on_done))
                    return
                current.answer = call_step(request)
                continue
            if isinstance(request, WalkMember):
                recorder = Recorder()
                walk = current.walk.fork(recorder)
                current.members.append(self.begin(walk, recorder, request.begin(walk), current))
            current.awaits_all = not isinstance(request, WalkMember)
            if self._waits_for_members(current):
                return
        self._running.discard(current)
        if (parent := current.parent) is not None and parent.is_suspended:
            parent.is_suspended = False
            self._ready.append(parent)

    def _waits_for_members(self, current: ConcurrentWalk) -> bool:
        """Return whether a walk has to wait until another of its members has ended."""
        while current.members and (current.awaits_all or self.full):
            if not current.members[0].ended:
                current.is_suspended = True
                return True
            current.stage_members()
        return False

    def _set_answer(self, current: ConcurrentWalk, doc: Document, called: Document, answer: Any) -> None:
        """Continue a walk with the answer to its call; ``called``: the document, or a copy that the step got."""
        if called is not doc and (request := called.asked_again) is not None:
            doc.again(request.after_s, why=request.why)
        current.answer = answer
        self._ready.append(current)

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


# Blocks of a task: documents are walked concurrently, and staged in order.


@dataclass(slots=True)
class _ReadRow:
    """A row that was read and is not staged yet.

    Attributes:
        walk: its running or finished walk; None: it is not walked.
        size: bytes of its content; 0 if it is not walked.
    """

    i: int
    action: RowAction
    walk: ConcurrentWalk | None
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
        current_caller.set(walk.call_scope)
        try:
            waits = self._stager.must_wait(i)
            action, walking = (RowAction.SKIP, None) if waits else reader.read_row(block, i, fields, raw)
        finally:
            reader.walk = self._walk
        self._walk.row += 1
        started = None if walking is None else self._walks.begin(walk, recorder, walking)
        fault = reader.fault if action is RowAction.POSTPONE else None
        if fault is not None:
            on_error(block.ids[i], fault)
        size = 0 if started is None else reader.size
        self._bytes += size
        self._rows.append(_ReadRow(i, action, started, fault, size))

    def _stage(self) -> None:
        """Stage the finished walks at the front of the queue."""
        while self._rows and ((walk := self._rows[0].walk) is None or walk.ended):
            row = self._rows.popleft()
            self._bytes -= row.size
            self._live.add(1)
            # an earlier document of its key may have failed in the meantime
            if not self._stager.stage_if_waiting(row.i) and self._stage_row(row):
                self._processed.append(row.i)
            if walk is not None:
                walk.recorder.close()

    def _stage_row(self, row: _ReadRow) -> bool:
        if (ended := row.walk) is None:
            return stage_row(self._stager, row.i, row.action, row.fault, None, None)
        stage_deliveries = partial(replay, ended.recorder.all_calls(), self._stager)
        return stage_row(self._stager, row.i, row.action, None, ended.walk, stage_deliveries)


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
