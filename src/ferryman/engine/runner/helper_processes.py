"""Helper processes on the driver's machine, which read sources before Spark has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final

from ferryman.engine.runner.base import Answer, Item, Runner, call_now
from ferryman.engine.runner.child import Child
from ferryman.engine.runner.fork_server import ForkServer

MAX_PROCESSES: Final = 8
"""Most helper processes: they only read, and each takes as much memory as a worker."""


class HelperProcesses(Runner):
    """Runs tasks in helper processes, as Spark's workers would. They start at the first task.

    Args:
        count: number of processes, cut at ``MAX_PROCESSES``.
        environment: environment variables of the processes.
        fallback: runs tasks again of which one failed, or ended its process; it reports the error.
    """

    on_one_machine = True

    def __init__(self, count: int, environment: Mapping[str, str], fallback: Runner) -> None:
        self._count = min(count, MAX_PROCESSES)
        self._environment = environment
        self._fallback = fallback
        self._server: ForkServer | None = None
        self._children: list[Child] = []
        self._ended = False

    @property
    def slots(self) -> int:
        return self._count

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run a task that only reads, see ``Runner.submit``."""
        answers = self.run(task, items)
        return self._fallback.submit(task, items) if answers is None else call_now(lambda: answers)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame on Spark, see ``Runner.run_frame``."""
        return self._fallback.run_frame(read, task)

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer] | None:
        """Run ``task(item)`` for every item; returns the answers in the items' order. None: a task failed, or a process
        died."""
        if self._ended or not items:
            return None if items else []
        try:
            server = self._server = self._server or ForkServer(self._environment)
        except OSError:  # too little memory, or no writable folder: Spark reports it if it fails, too
            return None
        self._children = self._children or [Child(_run_task, find_server=lambda: server) for _ in range(self._count)]
        free = SimpleQueue[Child]()
        for each in self._children:
            free.put(each)

        def one(item: Item) -> Answer:
            child = free.get()
            try:
                answer: Answer = child.ask((task, item))
            finally:
                free.put(child)
            return answer

        with ThreadPoolExecutor(self._count, thread_name_prefix="ferryman-beside") as pool:
            futures = [pool.submit(one, item) for item in items]
            try:
                return [each.result() for each in futures]
            except BaseException as e:  # do not wait for the others
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                if isinstance(e, Exception):
                    return None
                raise

    def end(self) -> None:
        """Kill the processes: they only read, whatever they are doing."""
        self._ended = True
        if self._server is not None:
            self._server.end()


def _run_task(request: tuple[Callable[[Any], Any], Any]) -> Any:
    task, item = request
    return task(item)
