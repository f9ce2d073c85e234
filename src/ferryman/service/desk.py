"""Where the threads of one state wait, and take over jobs from the threads of the state before, lock and all.

A thread that has nothing to do has just looked: no more urgent job waits in its state. So whoever moves a job into that
state may give it to this thread, and the lock need not be given back and taken again. Where all threads are busy the
job is unlocked, and the most urgent one comes first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from ferryman.intake import Job
from ferryman.intake.store import Watch

LOOK_AGAIN_S: Final = 0.05
"""Between two looks while jobs come and go all the time: the first of them is seen at once, and whoever finds one calls
another thread."""

POLL_S: Final = 0.5
"""It looks so often whether it is to stop."""

QUIET_S: Final = 2.0
"""One thread looks for a job so often though no watch has told of any: only a lock that ended with its process is to be
found then."""

EMPTY_LOOKS: Final = 30
"""Times ``QUIET_S`` until it looks into an empty state though its watch has not told of any job."""


class Desk:
    """Of one state."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._changed, self._waits = threading.Condition(lock), threading.Condition(lock)
        self._idle = 0
        self._given: deque[Job] = deque()
        self._called = False
        """Somebody is to look who has not begun to."""
        self._closed = False

    def call(self) -> None:
        """There may be a job: one thread shall look, which then calls another one if there was."""
        with self._changed:
            self._called = True
            self._changed.notify()

    def has_idle(self) -> bool:
        """Is there a thread that has nothing to do, so that a job may be given to it?"""
        return self._idle > len(self._given)

    def give(self, job: Job) -> bool:
        """Hand over a job, locked, to a thread that has nothing to do. False: there is none any more."""
        with self._changed:
            if self._closed or not self.has_idle():
                return False
            self._given.append(job)
            self._changed.notify()
            return True

    def take(self) -> Job | None:
        """A job that was handed over, if its lock was not lost meanwhile. Who was idle asks for it before all else."""
        with self._changed:
            while self._given:
                job = self._given.popleft()
                if job.locked:
                    return job
        return None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until a job is handed over or this thread is called, at most so long. Was it? Then it looks for one."""
        with self._changed:
            self._idle += 1
            self._waits.notify_all()
            try:
                self._changed.wait_for(lambda: bool(self._given) or self._called or self._closed, timeout_s)
            finally:
                self._idle -= 1
            if self._given or self._closed:
                self._changed.notify()  # a call is for another one
                return True
            was_called, self._called = self._called, False
            return was_called

    def is_attended(self, timeout_s: float) -> bool:
        """Does a thread wait here, or come to wait within this time?"""
        with self._waits:
            return self._waits.wait_for(lambda: self._idle > 0, timeout_s)

    def close(self) -> None:
        """Give back what nobody has taken."""
        with self._changed:
            self._closed = True
            jobs, self._given = list(self._given), deque()
            self._changed.notify_all()
        for job in jobs:
            job.unlock()


class Lookout:
    """One watch for all threads of a state: calls one of them when jobs come or go. While all of them work there is
    none.

    ``is_empty``: is there nothing in the state? As long as the watch says nothing it stays so, and nobody looks.
    """

    def __init__(
        self, desk: Desk, watch: Callable[[], Watch], is_empty: Callable[[], bool], stop: threading.Event
    ) -> None:
        self._desk, self._watch, self._is_empty, self._stop = desk, watch, is_empty, stop
        self._watching: Watch | None = None

    def turn(self) -> bool:
        """Look out until something happens. False: it is never busy."""
        if not self._desk.is_attended(POLL_S):
            return False
        watch = self._watching = self._watch()
        try:
            self._desk.call()  # for what came before there was a watch
            if not self._stop.wait(LOOK_AGAIN_S):
                for _ in range(EMPTY_LOOKS if self._is_empty() else 1):
                    if watch.wait(QUIET_S) or self._stop.is_set():
                        break
        finally:
            watch.close()
        return False

    def close(self) -> None:
        """End its turn. ``stop`` is set."""
        if self._watching is not None:
            self._watching.close()
