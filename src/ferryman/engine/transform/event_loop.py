"""The event loop that runs the coroutines of ``async def`` steps: one a process, in a thread of its own, for as long as
the process lives. So a client that a step keeps (a session with its connections) stays in its loop.

Steps share the loop with each other, and some of them harm it: asyncio ends ``run_forever`` when a task or a callback
raises ``SystemExit`` or ``KeyboardInterrupt``, and a step may stop or close the loop. A loop that was only ended is run
again. One that cannot continue is replaced, and every call that it ran ends with an error.
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
"""Seconds for a loop to show that it is free."""

_START_S: Final = 10.0
"""Seconds for an idle loop to begin a call. If it takes longer, it is dead, or blocked by what a step left behind."""

OnEnd = Callable[[Any, BaseException | None, bool], None]
"""Callback for the end of a call: (what it returned, what it raised, whether its time was over)."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine to its end, and return what it returns.

    An exception in this thread, such as a time limit's, cancels it. If it continues nevertheless, since it never
    awaits, the loop is left to it, and the next one runs in another.
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
    """Start the coroutine in the current context; it is cancelled after so many seconds.

    Args:
        on_end: called once, in the loop's thread, whatever becomes of the coroutine and of the loop.
    """
    _start(_CoroutineCall(coroutine, limit_s, on_end))


class _CoroutineCall:
    """A coroutine, and the callback for its end.

    Attributes:
        loop: where it is to run, or runs.
        has_begun: set once it runs.
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
        """Call the callback, if it was not called yet."""
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
            if self.loop is not loop:  # it took too long to begin, and runs elsewhere
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
            if not self.has_begun.is_set():  # another coroutine has cancelled it before
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
        unfinished: calls that it was given, and that have not ended.
    """

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()
        self.unfinished: set[_CoroutineCall] = set()
        threading.Thread(target=self._work, name="ferryman-async", daemon=True).start()

    def start_call(self, call: _CoroutineCall) -> bool:
        """Start this call. False: the loop cannot, and is not used any more."""
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
        """Let the next calls run in another loop."""
        with _lock:
            if _loops.get(os.getpid()) is self:
                del _loops[os.getpid()]

    def _work(self) -> None:
        why = "a step has closed it"
        while not self.asyncio.is_closed():
            try:
                self.asyncio.run_forever()
            except Exception as e:  # of the loop itself: what its tasks and callbacks raise does not come here
                why = f"{type(e).__name__}: {e}"
                break
            except BaseException:
                continue  # a task's or a callback's sys.exit(): the task has kept it
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
        if (loop := _loops.get(os.getpid())) is None:  # a fork has its parent's, and not the thread that runs it
            loop = _loops[os.getpid()] = _Loop()
        return loop


_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_loops: dict[int, _Loop] = {}
"""By process."""
