"""Where the coroutines of ``async def`` steps run: one event loop a process, in a thread of its own, for as long as the
process lives. So a client that a step keeps (a session with its connections) stays in its loop.

Steps share the loop with each other, and some of them harm it: asyncio ends ``run_forever`` when a task or a callback
raises ``SystemExit`` or ``KeyboardInterrupt``, and a step may stop or close the loop. A loop that was only ended is run
again. One that cannot go on is replaced, and every call that it was at hears of it.
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
"""For a loop to say that it is free."""

_START_S: Final = 10.0
"""For a loop that is at no call to begin one. If it takes longer, it is dead, or what a step left behind blocks it."""

Through = Callable[[Any, BaseException | None, bool], None]
"""Told of the end of a call: what it returned, what it raised, and was its time over?"""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it to its end, and return what it returns; an exception in this thread cancels it, such as a time limit's. If
    it goes on nevertheless, for it never awaits, the loop is left to it, and the next one runs in another."""
    ended: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    call = _Call(coroutine, None, lambda found, error, _: ended.put((found, error)))
    try:
        _begin(call)
        found, error = ended.get()
    except BaseException:
        call.cancel()
        raise
    if error is not None:
        raise error
    return found


def begin(coroutine: Coroutine[Any, Any, Any], limit_s: float | None, through: Through) -> None:
    """Begin it, in the current context; it is cancelled after so many seconds.

    Args:
        through: told once, in the loop's thread, whatever becomes of the coroutine and of the loop.
    """
    _begin(_Call(coroutine, limit_s, through))


class _Call:
    """A coroutine, and who is told of its end.

    Attributes:
        loop: where it is to run, or runs.
        begun: does it run?
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None, through: Through) -> None:
        self.loop: _Loop | None = None
        self.begun = threading.Event()
        self._process = os.getpid()
        self._coroutine = coroutine
        self._limit_s = limit_s
        self._through: Through | None = through
        self._future: Future[Any] | None = None

    def submit(self, loop: _Loop) -> None:
        """
        Raises:
            RuntimeError: the loop is closed.
        """
        self.loop = loop
        going = self._go(loop)
        try:
            self._future = asyncio.run_coroutine_threadsafe(going, loop.asyncio)
        except RuntimeError:
            going.close()
            raise
        self._future.add_done_callback(self._ended)

    def answer(self, found: Any, error: BaseException | None, late: bool) -> None:
        """Tell of its end, if nobody has."""
        with _lock:
            through, self._through = self._through, None
            if self.loop is not None:
                self.loop.owed.discard(self)
        if through is not None:
            through(found, error, late)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        with _lock:
            self._through = None
            loop = self.loop
        if loop is None or self._future is None or not self._future.cancel():
            return
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop.asyncio).result(_GRACE_S)
        except (TimeoutError, RuntimeError):
            loop.leave()

    async def _go(self, loop: _Loop) -> tuple[Any, BaseException | None, bool]:
        with _lock:
            if self.loop is not loop:  # it took too long to begin, and runs elsewhere
                return None, None, False
            self.begun.set()
        found, error, limit = None, None, asyncio.timeout(self._limit_s)
        try:
            async with limit:
                found = await self._coroutine
        except BaseException as e:
            error = e
        return found, error, limit.expired()

    def _ended(self, future: Future[Any]) -> None:
        exit_if_forked(self._process)
        if self.loop is None or self._future is not future:
            return
        if future.cancelled():
            if not self.begun.is_set():  # another coroutine has cancelled it before
                self._coroutine.close()
            self.answer(None, asyncio.CancelledError(), late=False)
        elif (error := future.exception()) is not None:
            self.answer(None, error, late=False)
        else:
            self.answer(*future.result())


class _Loop:
    """An event loop in a thread of its own.

    Attributes:
        asyncio: the loop itself.
        owed: calls that it has been given, and that have not ended.
    """

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()
        self.owed: set[_Call] = set()
        threading.Thread(target=self._work, name="ferryman-async", daemon=True).start()

    def take(self, call: _Call) -> bool:
        """Begin this call. False: the loop cannot, and is used no more."""
        with _lock:
            if _loops.get(os.getpid()) is not self:
                return False
            idle = not self.owed
            try:
                call.submit(self)
            except RuntimeError:
                self.leave()
                return False
            self.owed.add(call)
        if not idle or call.begun.wait(_START_S):
            return True
        with _lock:
            if not call.begun.is_set():
                call.loop = None
                self.owed.discard(call)
                self.leave()
        return call.loop is self

    def leave(self) -> None:
        """The next calls run in another loop."""
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
            self.leave()
            owed = list(self.owed)
        for call in owed:
            call.answer(None, RuntimeError(f"the event loop that it ran in has ended ({why})"), late=False)


def _begin(call: _Call) -> None:
    while not _loop().take(call):
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
