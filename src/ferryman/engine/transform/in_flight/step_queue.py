"""Documents that wait for a step, and its calls that are under way."""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple

from ferryman.document import Document, called_by
from ferryman.engine.transform.calling import Calling
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.in_flight.threads import Threads, end_process, left_behind
from ferryman.engine.transform.node_errors import AWAY, NodeAway, StepTimeout, classify_error
from ferryman.engine.transform.rate_limiter import RateLimiter
from ferryman.engine.transform.step_calls import batches, in_time, why_late
from ferryman.errors import askable, unless_interrupt
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
        """See ``KeyMaker``."""
        calling = self._by_object.get(id(doc)) or self._by_id.get(doc.id)
        return calling.key_of(doc) if calling is not None else None


class StepQueue:
    """Of one step in one task.

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
        """What came of the next calls, where that is known."""
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
        limit_s = self.step.limit_s
        self._limiter.begun()
        self.under_way.add(call)
        context = contextvars.copy_context()
        context.run(called_by.set, _KeysOf(call))
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
        """Those that can be copied, and their copies, for a call that may have to be made again in halves; the others
        fail, however few there are with them. A step that is called for one alone needs no copies."""
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
        """What came of this very call before."""
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
            error = askable(e)
        if call in self.under_way:
            call.answers, call.error = answers, error
            self._ended.put((self, call))

    def _in_the_loop(self, call: Call) -> None:
        from ferryman.engine.transform.event_loop import begin  # asyncio would make each start slower

        def through(answers: Any, error: BaseException | None, late: bool) -> None:
            error = StepTimeout(why_late(self.step)) if late else error
            call.answers, call.error = answers, error if error is None else askable(error)
            self._ended.put((self, call))

        out = self._fn([each.doc for each in call.waiting])
        assert isinstance(out, Coroutine)
        begin(out, self.step.limit_s, through)

    def _answers(self, call: Call) -> list[Any]:
        out = self._fn([each.doc for each in call.waiting])
        assert isinstance(out, list)
        return out
