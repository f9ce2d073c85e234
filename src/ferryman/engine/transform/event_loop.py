"""The event loop that runs the coroutines of ``async def`` steps: one per process, in a thread of its own, as long as
the process lives. So a client that a step keeps (a session with its connections) always runs in the same loop.

All steps share the loop, and a step may break it: asyncio leaves ``run_forever`` when a task or a callback raises
``SystemExit`` or ``KeyboardInterrupt``, and a step may stop or close the loop. A loop that merely stopped is run again.
One that cannot continue is replaced, and every call running in it ends with an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

from ferryman.engine.runner.child import exit_if_forked

_GRACE_S: Final = 2.0
"""Seconds in which a loop must respond to show that it is not blocked."""

_START_S: Final = 10.0
"""Seconds in which an idle loop must begin a call. If it does not, it is dead, or blocked by something a step left
behind."""

OnEnd = Callable[[Any, BaseException | None, bool], None]
"""Callback for the end of a call: (its result, its exception, whether its time limit had passed)."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine to its end, and return its result.

    An exception raised in this thread, such as that of a time limit, cancels the coroutine. If it keeps running because
    it never awaits anything, its loop is abandoned, and later coroutines run in a new one.
    """
    ended: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    call = _CoroutineCall(coroutine, None, lambda returned, error, _: ended.put((returned, error)))
    try:
        _start(call)
        returned, error = ended.get()
    except BaseException:
        call.cancel()
        raise
    if error is not None:
        raise error
    return returned


def start(coroutine: Coroutine[Any, Any, Any], limit_s: float | None, on_end: OnEnd) -> None:
    """Start the coroutine in the current context; cancel it after ``limit_s`` seconds.

    Args:
        on_end: called exactly once, in the loop's thread, even if the coroutine or the loop fails.
    """
    _start(_CoroutineCall(coroutine, limit_s, on_end))


class _CoroutineCall:
    """A coroutine, with the callback for its end.

    Attributes:
        loop: loop in which it runs or will run.
        has_begun: set when it begins to run.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None, on_end: OnEnd) -> None:
        self.loop: _Loop | None = None
        self.has_begun = threading.Event()
        self._process = os.getpid()
        self._coroutine = coroutine
        self._limit_s = limit_s
        self._on_end: OnEnd | None = on_end
        self._future: Future[Any] | None = None

    def submit(self, loop: _Loop) -> None:
        """Submit the coroutine to the loop.

        Raises:
            RuntimeError: the loop is closed.
        """
        self.loop = loop
        awaiting = self._await_coroutine(loop)
        try:
            self._future = asyncio.run_coroutine_threadsafe(awaiting, loop.asyncio)
        except RuntimeError:
            awaiting.close()
            raise
        self._future.add_done_callback(self._ended)

    def end(self, returned: Any, error: BaseException | None, late: bool) -> None:
        """Call the callback, unless it was already called."""
        with _lock:
            on_end, self._on_end = self._on_end, None
            if self.loop is not None:
                self.loop.unfinished.discard(self)
        if on_end is not None:
            on_end(returned, error, late)

    def cancel(self) -> None:
        """Cancel the coroutine, without a callback."""
        with _lock:
            self._on_end = None
            loop = self.loop
        if loop is None or self._future is None or not self._future.cancel():
            return
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop.asyncio).result(_GRACE_S)
        except (TimeoutError, RuntimeError):
            loop.retire()

    async def _await_coroutine(self, loop: _Loop) -> tuple[Any, BaseException | None, bool]:
        with _lock:
            if self.loop is not loop:  # it took too long to begin here, and runs in another loop
                return None, None, False
            self.has_begun.set()
        returned, error, limit = None, None, asyncio.timeout(self._limit_s)
        try:
            async with limit:
                returned = await self._coroutine
        except BaseException as e:
            error = e
        return returned, error, limit.expired()

    def _ended(self, future: Future[Any]) -> None:
        exit_if_forked(self._process)
        if self.loop is None or self._future is not future:
            return
        if future.cancelled():
            if not self.has_begun.is_set():  # another coroutine has already cancelled it
                self._coroutine.close()
            self.end(None, asyncio.CancelledError(), late=False)
        elif (error := future.exception()) is not None:
            self.end(None, error, late=False)
        else:
            self.end(*future.result())


class _Loop:
    """An event loop in a thread of its own.

    Attributes:
        asyncio: the loop itself.
        unfinished: calls submitted to it that have not ended.
    """

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()
        self.unfinished: set[_CoroutineCall] = set()
        threading.Thread(target=self._work, name="ferryman-async", daemon=True).start()

    def start_call(self, call: _CoroutineCall) -> bool:
        """Start this call in the loop; return False if the loop cannot run it and must not be used any more."""
        with _lock:
            if _loops.get(os.getpid()) is not self:
                return False
            idle = not self.unfinished
            try:
                call.submit(self)
            except RuntimeError:
                self.retire()
                return False
            self.unfinished.add(call)
        if not idle or call.has_begun.wait(_START_S):
            return True
        with _lock:
            if not call.has_begun.is_set():
                call.loop = None
                self.unfinished.discard(call)
                self.retire()
        return call.loop is self

    def retire(self) -> None:
        """Make later calls run in another loop."""
        with _lock:
            if _loops.get(os.getpid()) is self:
                del _loops[os.getpid()]

    def _work(self) -> None:
        why = "a step has closed it"
        while not self.asyncio.is_closed():
            try:
                self.asyncio.run_forever()
            except Exception as e:  # an error of the loop itself: those of its tasks and callbacks do not end up here
                why = f"{type(e).__name__}: {e}"
                break
            except BaseException:
                continue  # sys.exit() in a task or a callback; the task has stored it
        with _lock:
            self.retire()
            unfinished = list(self.unfinished)
        for call in unfinished:
            call.end(None, RuntimeError(f"the event loop that it ran in has ended ({why})"), late=False)


def _start(call: _CoroutineCall) -> None:
    while not _loop().start_call(call):
        pass


def _loop() -> _Loop:
    with _lock:
        if (loop := _loops.get(os.getpid())) is None:  # a fork has its parent's loop, but not the thread
            loop = _loops[os.getpid()] = _Loop()
        return loop


_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_loops: dict[int, _Loop] = {}
"""Process id -> its loop."""
