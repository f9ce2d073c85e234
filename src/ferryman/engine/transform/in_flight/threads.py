"""Threads for calls of a step. They last as long as their task, so that what a step keeps for a thread (a session with
its connections) is used again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ferryman import limits
from ferryman.engine.runner.child import end_copy_of


class Threads:
    """As many as there are jobs at once, and those that a call has never come back from."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._count = 0
        self._process = os.getpid()

    def run(self, job: Callable[[], None]) -> None:
        """In one that is free, or another one."""
        if not self._free.acquire(blocking=False):
            threading.Thread(target=self._work, name=f"ferryman-{self._name}", daemon=True).start()
            self._count += 1
        self._jobs.put(job)

    def close(self) -> None:
        """Those that are free end; the others when their call does."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            end_copy_of(self._process)
            self._free.release()


def left_behind() -> None:
    """A call has not come back: its thread is left alone. Of too many, this process is ended, and isolation finds whose
    calls they are."""
    global _hung  # noqa: PLW0603 - one count a process
    _hung += 1
    if _hung >= limits.HUNG_CALLS:
        end_process(f"{_hung} calls of steps have not come back")


def end_process(why: str) -> None:
    """Nothing else ends what hangs."""
    sys.stderr.write(f"ferryman: {why}: this worker ends itself.\n")
    sys.stderr.flush()
    os._exit(1)


_hung = 0
