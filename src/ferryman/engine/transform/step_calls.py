"""Calls of a step's function: for one document or several, with a time limit, not more often than its rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, Final

from ferryman.document import Document
from ferryman.engine.transform.arrow_calls import on_record_batches
from ferryman.engine.transform.rate_limiter import RateLimiter
from ferryman.engine.transform.returned import few, kind_of
from ferryman.engine.transform.time_limit import can_interrupt, limited
from ferryman.errors import PermanentError, unless_interrupt
from ferryman.plan import StepNode
from ferryman.plan.calls import is_async

_LEAST_S: Final = 0.001
"""A timer that is set to no time at all is not set."""


def why_late(step: StepNode) -> str:
    """What is said of a call that takes too long."""
    return f"step {step.name} took longer than timeout={step.limit_s:g} s"


def in_time(step: StepNode) -> AbstractContextManager[None]:
    """Within what a call of it may take, where that can be interrupted."""
    if step.limit_s is None or not can_interrupt():
        return nullcontext()
    return limited(step.limit_s, why_late(step))


def one_by_one(step: StepNode, share: float = 1.0) -> Callable[[Document], Any]:
    """The step's function, to be called for one document after the other in this thread; one that takes batches gets
    batches of one.

    With a time limit the call is interrupted after that many seconds. What a generator makes is made within the call:
    the time counts in which it works, not that in which what it has made goes on. A call that is stuck in C code cannot
    be interrupted: its process is ended a little later, and isolation finds whose call it was. (Interrupting needs the
    worker's main thread.)

    Args:
        share: of the step's rate, for this task.
    """
    if not step.in_batches and not is_async(step.fn) and step.rate is None and step.limit_s is None:
        return step.fn
    call, limiter = _called(step), RateLimiter(step.rate, share)

    def called(doc: Document) -> Any:
        limiter.wait()
        began = time.monotonic()
        with in_time(step):
            out = call(doc)
        if step.limit_s is None or not can_interrupt() or not isinstance(out, Iterator):
            return out
        return _going_on(out, step.limit_s - (time.monotonic() - began), why_late(step))

    return called


def _going_on(out: Iterator[Any], left_s: float, why: str) -> Iterator[Any]:
    """What a call still makes, in what is left of its time."""
    all_ = False
    while not all_:
        began = time.monotonic()
        with limited(max(left_s, _LEAST_S), why):
            found, all_ = few(out)
        left_s -= time.monotonic() - began
        yield from found


def batches(step: StepNode) -> Callable[[list[Document]], list[Any] | Coroutine[Any, Any, list[Any]]]:
    """The step's function, to be called for several documents. It gives an answer for each, in their order, which is an
    exception object where it went wrong for that one alone. Of an ``async def`` it gives a coroutine. The step gets a
    list of its own: it may sort it, or take documents out of it as it goes.

    Raises:
        PermanentError: it returned something else, or another number of answers.
    """
    fn = on_record_batches(step.fn) if step.arrow else step.fn
    if not step.in_batches:
        return _each_alone(fn)

    def called(docs: list[Document]) -> list[Any]:
        return _answers(fn([*docs]), len(docs))

    async def awaited(docs: list[Document]) -> list[Any]:
        return _answers(await fn([*docs]), len(docs))

    return awaited if is_async(step.fn) else called


def _each_alone(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    async def awaited(docs: list[Document]) -> list[Any]:
        return [await fn(docs[0])]

    return awaited if is_async(fn) else lambda docs: [_complete(fn(docs[0]))]


def _called(step: StepNode) -> Callable[[Document], Any]:
    """For one document, in this thread."""
    if not step.in_batches and not is_async(step.fn):
        return step.fn
    several = batches(step)

    def called(doc: Document) -> Any:
        out = several([doc])
        [answer] = _run(out) if isinstance(out, Coroutine) else out
        if isinstance(answer, Exception):
            raise answer
        return answer

    return called


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from ferryman.engine.transform.event_loop import run  # asyncio would make each start slower

    return run(coroutine)


def _answers(out: Any, count: int) -> list[Any]:
    """One for each document."""
    if isinstance(out, (str, bytes, Mapping, Document)) or not hasattr(out, "__iter__"):
        raise PermanentError(
            f"returned {kind_of(out)}, not a list with an answer for each of its documents: return one for each"
        )
    found = list(out)
    if len(found) != count:
        raise PermanentError(
            f"returned {len(found)} answers for a batch of {count}: return one for each document, in their order, and "
            "None for one that is dropped"
        )
    return [_complete(answer) for answer in found]


def _complete(answer: Any) -> Any:
    """An iterator's documents are made within the call, unless they are many."""
    if not isinstance(answer, Iterator):
        return answer
    try:
        first, all_ = few(answer)
    except BaseException as e:
        error = unless_interrupt(e)
        return error if isinstance(error, Exception) else _raising(error)
    return first if all_ else chain(first, answer)


def _raising(error: BaseException) -> Iterator[Any]:
    raise error
    yield
