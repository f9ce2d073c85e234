"""Helper processes on the driver's machine, which do what little there is to do before Spark has started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue
from typing import Any, Final

from ferryman.engine.runner.base import Answer, Item, Runner, call_now, set_outcome
from ferryman.engine.runner.child import Child
from ferryman.engine.runner.fork_server import ForkServer, give_back, take_server
from ferryman.engine.runner.worker import tune_process
from ferryman.errors import WorkerDied

MAX_PROCESSES: Final = 8
"""Most helper processes: each takes as much memory as a worker."""


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
        self._free = LifoQueue[Child]()
        """Processes without a task. One that has started comes first: it has loaded what tasks need."""
        self._lock = threading.Lock()
        self._at_work = 0
        """Calls of ``process`` whose tasks are running."""
        self._retired = self._ended = False

    @property
    def slots(self) -> int:
        return self._count

    @property
    def retired(self) -> bool:
        """Return whether they take no more tasks: one has failed, or Spark runs them now."""
        return self._retired

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
        """Run ``task(item)``, which only reads, for every item; returns the answers in the items' order. None: a task
        failed, or a process died. The others are then killed."""
        if self._retired or not items:
            return None if items else []
        if not self._are_started():
            return None
        with ThreadPoolExecutor(self._count, thread_name_prefix="ferryman-beside") as pool:
            futures = [pool.submit(self._call, task, item) for item in items]
            try:
                return [each.result() for each in futures]
            except BaseException as e:  # do not wait for the others
                pool.shutdown(wait=False, cancel_futures=True)
                self._kill()
                if isinstance(e, Exception):
                    return None
                raise

    def process(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> Future[list[Answer]]:
        """Run a task that may call steps and destinations, see ``Runner.submit``.

        If one fails, or ends its process, the others are waited for: a send that is killed might be in doubt. Then the
        fallback runs all of them.
        """
        done: Future[list[Answer]] = Future()

        def work() -> list[Answer]:
            answers = self._process(task, items)
            if answers is not None:
                return answers
            if self._ended:
                raise WorkerDied("the run has ended")
            return self._fallback.submit(task, items).result()

        threading.Thread(target=set_outcome, args=(done, work), name="ferryman-tasks", daemon=True).start()
        return done

    def _process(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer] | None:
        with self._lock:
            if self._retired or not self._are_started():
                return None
            self._at_work += 1
        try:
            with ThreadPoolExecutor(self._count, thread_name_prefix="ferryman-beside") as pool:
                futures = [pool.submit(self._call, task, item) for item in items]
                try:
                    return [each.result() for each in futures]
                except Exception:
                    self._retired = True
                    pool.shutdown(cancel_futures=True)
                    return None
        finally:
            with self._lock:
                self._at_work -= 1
            self._end_retired()

    def _are_started(self) -> bool:
        """Start the processes if there are none yet; return whether there are some."""
        if self._server is None:
            try:
                server = self._server = take_server(self._environment)
            except OSError:  # too little memory, or no writable folder: Spark reports it if it fails, too
                self._retired = True
                return False
            for _ in range(self._count):
                self._free.put(Child(_run_task, on_start=tune_process, find_server=lambda: server))
        return True

    def _call(self, task: Callable[[Item], Answer], item: Item) -> Answer:
        child = self._free.get()
        try:
            answer: Answer = child.ask((task, item))
        finally:
            self._free.put(child)
        return answer

    def retire(self) -> None:
        """Take no more tasks, and end the processes when none is at work."""
        self._retired = True
        self._end_retired()

    def _end_retired(self) -> None:
        with self._lock:
            if self._retired and not self._at_work and self._server is not None:
                self._server.end()

    def end(self) -> None:
        """End the processes, whatever they are doing. If they do nothing, the next run's are forked from the same."""
        self._ended = True
        with self._lock:
            is_idle = not self._retired and not self._at_work and self._free.qsize() == self._count
            self._retired = True
        if self._server is None or not is_idle:
            self._kill()
            return
        try:
            while not self._free.empty():
                self._free.get().end()
        except BaseException:  # its next answer might be to what was asked now
            self._kill()
            raise
        give_back(self._server)

    def _kill(self) -> None:
        self._retired = True
        if self._server is not None:
            self._server.end()


def _run_task(request: tuple[Callable[[Any], Any], Any]) -> Any:
    task, item = request
    return task(item)
