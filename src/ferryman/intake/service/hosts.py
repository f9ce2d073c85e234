"""Slow hosts: jobs that wait for one go to a few threads of their own, so that other jobs are not delayed.

Nobody knows beforehand that a host is slow. The first job that connects to it finds out, within a bounded time. This
process remembers the host for a while, and hands over other jobs that lead there without a request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ferryman.intake import Batch, Job
from ferryman.intake.service.errors import SlowHost
from ferryman.limits import KIB
from ferryman.net.urls import split

PROMPT_S: Final = 5.0
"""A host that is silent for so long, or needs longer for its headers, is slow; from then on its rate is checked."""

PROMPT_RATE: Final = 32.0 * KIB
"""Bytes a second below which content comes slowly: a job of a megabyte takes half a minute."""

SLOW_FOR_S: Final = 600.0
"""Seconds that a host counts as slow; then it is tried as any other."""

SLOW_HOST_THREADS: Final = 2
"""Threads for slow hosts in each state, in addition to the others."""


class SlowHosts:
    """Slow hosts that this process has met."""

    def __init__(
        self, prompt_s: float = PROMPT_S, rate: float = PROMPT_RATE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.prompt_s, self.rate, self._clock = prompt_s, rate, clock
        self._until: dict[str, float] = {}

    def raise_if_slow(self, url: str) -> None:
        """Raise ``SlowHost`` if the URL leads to a slow host."""
        host = split(url)[1].netloc.rpartition("@")[2]
        if self._until.get(host, 0.0) > self._clock():
            raise SlowHost(host)

    def mark_slow(self, url: str) -> SlowHost:
        """Note that the URL's host is slow. Returns the error to raise."""
        host = split(url)[1].netloc.rpartition("@")[2]
        self._until[host] = self._clock() + SLOW_FOR_S
        return SlowHost(host)


Locked = TypeVar("Locked", Job, Batch)


class SlowHostQueue(Generic[Locked]):
    """Jobs of one state, or batches, each locked, that wait for slow hosts."""

    def __init__(self) -> None:
        self._jobs: deque[Locked] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: Locked) -> None:
        """Hand a job to the threads for slow hosts."""
        with self._changed:
            if not self._closed:
                self._jobs.append(job)
                self._changed.notify()
                return
        job.unlock()

    def take(self) -> Locked | None:
        """Return the job that has waited longest and is still locked; None if there is none."""
        with self._changed:
            while self._jobs:
                job = self._jobs.popleft()
                if job.locked:
                    return job
        return None

    def wait(self, timeout_s: float | None) -> None:
        """Wait until there is a job, at most this long; None: until there is one, or the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs) or self._closed, timeout_s)

    def close(self) -> None:
        """Unlock all waiting jobs, and those that are put in later."""
        with self._changed:
            self._closed = True
            jobs, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for job in jobs:
            job.unlock()
