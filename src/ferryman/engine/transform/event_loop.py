"""Where the coroutines of ``async def`` steps run: one event loop a process, in a thread of its own, for as long as the
process lives. So a client that a step keeps (a session with its connections) stays in its loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

_GRACE_S: Final = 2.0
"""For a loop to say that it is free."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it to its end, and return what it returns; an exception in this thread cancels it, such as a time limit's. If
    it goes on nevertheless, for it never awaits, the loop is left to it, and the next one runs in another."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        if future.cancel():
            try:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), _loop()).result(_GRACE_S)
            except TimeoutError:
                _loops.pop(os.getpid(), None)
        raise


def begin(
    coroutine: Coroutine[Any, Any, Any],
    limit_s: float | None,
    through: Callable[[Any, BaseException | None, bool], None],
) -> None:
    """Begin it, in the current context; it is cancelled after so many seconds.

    Args:
        through: told at its end, in the loop's thread: what it returned, what it raised, and was it cancelled?
    """

    async def limited() -> None:
        found, error, limit = None, None, asyncio.timeout(limit_s)
        try:
            async with limit:
                found = await coroutine
        except BaseException as e:
            error = e
        through(found, error, limit.expired())

    asyncio.run_coroutine_threadsafe(limited(), _loop())


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if (loop := _loops.get(os.getpid())) is None:  # a fork has its parent's, and not the thread that runs it
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="ferryman-async", daemon=True).start()
        return loop


_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process."""
