"""Serving a queue: consumers for every state, and the plan between Downloading and Storing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.errors import StateHeld
from ferryman.intake import Batch, BatchState, Job, JobQueue, JobState, NodeInvalid, QueueLost
from ferryman.intake.nodes import ACCESS, ACCESS_SIZES, state_path
from ferryman.intake.service.access import BundleConsumer
from ferryman.intake.service.batches import (
    BatchConsumer,
    DelayedBatches,
    ReportConsumer,
    SlowBatchConsumer,
    SlowReportConsumer,
    has_all_jobs,
)
from ferryman.intake.service.errors import StopRequested, TurnFailed
from ferryman.intake.service.finisher import Finisher
from ferryman.intake.service.hosts import SLOW_HOST_THREADS, SlowHostQueue, SlowHosts
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.payload import MintedIdentifiers
from ferryman.intake.service.processing import ProcessingConsumer, TurnSize, jobs_sources
from ferryman.intake.service.reports import BatchReports
from ferryman.intake.service.settings import Serving
from ferryman.intake.service.stages import JobStage, Provisioning
from ferryman.intake.service.workers import (
    POLL_S,
    QUEUE_LOST_RETRY_S,
    QUIET_POLLS,
    HandOff,
    InlineWorker,
    Loop,
    QueueWatcher,
    SlowWorker,
    Worker,
)
from ferryman.intake.service.workspace import Workspace, is_done
from ferryman.intake.store import Watch
from ferryman.net.allowed_addresses import REACH_VARIABLE, to_environment
from ferryman.observe import Forwarding, Observer, Silent
from ferryman.plan import Plan
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.runner.base import Runner
    from ferryman.state.state import State

log = logging.getLogger("ferryman.intake")

GRACE_S: Final = 30.0
"""Seconds after a stop in which consumers have to finish or release their items. Locks of those that still hang end
with this process."""

STANDBY_POLL_S: Final = 2.0
"""Seconds between two attempts to open a plan's state that another process holds; this process takes over when that one
ends."""

SWEEP_S: Final = 3600.0
"""Seconds between sweeps of files of removed jobs and of expired bundles."""

WORK_STATES: Final = (
    JobState.PENDING,
    JobState.ESTIMATING,
    JobState.PROVISIONING,
    JobState.DOWNLOADING,
    JobState.PROCESSING,
    JobState.STORING,
    JobState.RECORDING,
    JobState.NOTIFY,
)

OPEN_BATCH_STATES: Final = (
    BatchState.PENDING,
    BatchState.PROCESSING,
    BatchState.REPORTING,
    BatchState.UPDATE_REPORTING,
)


OpenDriver = Callable[[], Any]
"""Opens the driver of the plan's state; returns a context manager of (state, runner)."""


def serve(
    plan: Plan,
    queue: JobQueue,
    serving: Serving,
    driving: OpenDriver,
    *,
    stop: threading.Event | None = None,
    observer: Observer | None = None,
) -> None:
    """Serve a queue until ``stop`` is set; with ``once``, until there is nothing left to do.

    The plan runs in this thread. Another process that serves the same plan does all other work, and takes over the plan
    when this process ends. After ``stop``, each consumer finishes its current step, or releases its job in the state it
    was in.

    Raises:
        UsageError: the plan has no source of jobs.
        StateDamaged, EngineError, …: the plan's state or Spark failed; jobs stay in their states.
    """
    jobs_sources(plan)
    MintedIdentifiers(plan, serving.work)
    stop = stop or threading.Event()
    observer = observer or Silent()
    consumers = Consumers(queue, serving, stop, observer.message)
    consumers.start()
    is_standby, turn_size = False, TurnSize()
    environment_before = os.environ.get(REACH_VARIABLE)
    os.environ[REACH_VARIABLE] = to_environment(serving.reach)  # for the plan's steps, wherever they run
    try:
        while not _is_over(consumers, None, serving, stop):
            try:
                with suppress(StateHeld), driving() as (state, runner):
                    _process(plan, queue, state, runner, consumers, serving, stop, observer, turn_size)
            except TurnFailed as e:
                consumers.print_line(str(e))
                continue
            if not stop.is_set():
                if not is_standby:
                    consumers.print_line(f"plan {plan.key}: another process runs it; this one does everything else")
                is_standby = True
                stop.wait(STANDBY_POLL_S)
    finally:
        os.environ.pop(REACH_VARIABLE, None)
        if environment_before is not None:
            os.environ[REACH_VARIABLE] = environment_before
        stop.set()
        consumers.join()


def _process(
    plan: Plan,
    queue: JobQueue,
    state: State,
    runner: Runner,
    consumers: Consumers,
    serving: Serving,
    stop: threading.Event,
    observer: Observer,
    turn_size: TurnSize,
) -> None:
    """Run the plan for jobs in Processing."""
    from ferryman.engine.run import Run
    from ferryman.engine.settings import RunSettings

    run = Run(state, runner, _StopBetweenWaves(observer, stop), RunSettings(wait=0))
    processing = ProcessingConsumer(queue, run, state, consumers.print_line, stop, turn_size=turn_size)
    try:
        run.recover()
        while not stop.is_set():
            try:
                if not processing.turn():
                    run.notify(limits.NOTIFY_EVERY_S)
                    if _is_over(consumers, processing, serving, stop):
                        stop.set()
                        return
                    processing.wait(POLL_S, 1 if serving.once else QUIET_POLLS)
            except QueueLost as e:
                consumers.print_line(str(e))
                stop.wait(QUEUE_LOST_RETRY_S)
    except StopRequested:
        return
    finally:
        with suppress(QueueLost):
            processing.release()


def _is_over(
    consumers: Consumers, processing: ProcessingConsumer | None, serving: Serving, stop: threading.Event
) -> bool:
    if stop.is_set():
        return True
    if not serving.once or processing is None or processing.has_unfinished:
        return False
    return consumers.is_idle()


class Consumers:
    """Threads for all states except Processing. A thread without work sleeps until it is woken."""

    def __init__(
        self, queue: JobQueue, serving: Serving, stop: threading.Event, print_line: Callable[[str], None]
    ) -> None:
        self._queue, self._stop = queue, stop
        self._write_lock = threading.Lock()
        self._print_line = print_line
        self._work = work = Workspace(serving.work)
        self._at_work = CurrentWork(work.at_work, self.print_line)
        self._isolation = Isolation(queue, serving, stop)
        self._delayed = DelayedBatches()
        self._last_sweep_s = -SWEEP_S
        self._loops: list[Loop] = []
        self._watchers: list[Loop] = []
        self._close_callbacks: list[Callable[[], None]] = [self._delayed.close]
        """Functions that wake sleeping threads at the end."""
        slow = SlowHosts(serving.prompt_s)
        fetcher, callback = serving.fetcher(stop, slow), serving.callback(stop, slow)
        slow_fetcher, slow_callback = serving.fetcher(stop), serving.callback(stop)
        slow_reports = serving.reports(stop)
        reports = slow_reports.with_callback(callback)
        self._add_loop("sweep", self._sweep, lambda timeout_s: stop.wait(SWEEP_S))
        hand_off = self._add_watcher(HandOff(), queue.watch_batches, lambda: False)
        shared: dict[str, Any] = {
            "delayed": self._delayed,
            "hand_off": hand_off,
            "at_work": self._at_work,
            "isolation": self._isolation,
        }
        batches = [
            BatchConsumer(queue, work, fetcher, reports, self.print_line, **shared) for _ in range(serving.threads)
        ]
        batches += [
            SlowBatchConsumer(queue, work, slow_fetcher, slow_reports, self.print_line, **shared)
            for _ in range(SLOW_HOST_THREADS)
        ]
        for consumer in batches:
            self._add_loop("batches", consumer.turn, consumer.wait)
        self._reporting = self._reporters(reports, slow_reports)
        self._add_stage_workers(
            serving.stages(queue, work, fetcher, callback, stop, self.print_line),
            serving.stages(queue, work, slow_fetcher, slow_callback, stop, self.print_line),
            serving.threads,
        )
        self._bundles = [
            BundleConsumer(queue, work, size, self._raise_if_stopping, self.print_line) for size in ACCESS_SIZES
        ]
        for bundles, size in zip(self._bundles, ACCESS_SIZES, strict=True):
            self._add_loop("access", bundles.turn, self._wait_for_change(f"{ACCESS}/{size}"))

    def _reporters(self, reports: BatchReports, slow_reports: BatchReports) -> list[ReportConsumer]:
        """Create the consumers that report batches, including those for slow receivers."""
        slow_queue = SlowHostQueue[Batch]()
        self._close_callbacks.append(slow_queue.close)
        prompt = ReportConsumer(self._queue, self._work, reports, self.print_line, slow_queue=slow_queue)
        self._add_loop("reports", prompt.turn, self._stop.wait, prompt.release)
        slow = [
            SlowReportConsumer(self._queue, self._work, slow_reports, self.print_line, takes_from=slow_queue)
            for _ in range(SLOW_HOST_THREADS)
        ]
        for consumer in slow:
            self._add_loop("reports", consumer.turn, consumer.wait, consumer.release)
        return [prompt, *slow]

    def _add_stage_workers(self, stages: list[JobStage], slow_host_stages: list[JobStage], threads: int) -> None:
        """Add the threads of each state except Processing, and those for slow hosts."""
        slow_queues = {
            state: SlowHostQueue[Job]() for state in (JobState.PENDING, JobState.DOWNLOADING, JobState.NOTIFY)
        }
        finisher = Finisher()
        self._close_callbacks += [finisher.release, *(each.close for each in slow_queues.values())]
        self._add_loop("finisher", finisher.turn, lambda timeout_s: finisher.wait(), finisher.release)
        self.hand_offs = {stage.state: HandOff() for stage in stages}
        for state, hand_off in self.hand_offs.items():
            self._add_watcher(
                hand_off, partial(self._queue.watch_jobs, state), partial(self._is_empty, state_path(state))
            )
        inline_workers: dict[JobState, InlineWorker] = {}
        shared: dict[str, Any] = {
            "at_work": self._at_work,
            "isolation": self._isolation,
            "finisher": finisher,
            "stop": self._stop,
            "hand_offs": self.hand_offs,
            "inline_workers": inline_workers,
        }
        inline_workers.update(
            {stage.state: InlineWorker(self._queue, stage, self.print_line, **shared) for stage in stages}
        )
        workers = [
            Worker(self._queue, stage, self.print_line, slow_queue=slow_queues.get(stage.state), **shared)
            for stage in stages
            for _ in range(1 if isinstance(stage, Provisioning) else threads)
        ]
        workers += [
            SlowWorker(self._queue, stage, self.print_line, takes_from=slow_queues[stage.state], **shared)
            for stage in slow_host_stages
            for _ in range(SLOW_HOST_THREADS if stage.state in slow_queues else 0)
        ]
        for worker in workers:
            self._add_loop(worker.state, worker.turn, worker.wait, worker.release)

    def _add_watcher(self, hand_off: HandOff, watch: Callable[[], Watch], is_empty: Callable[[], bool]) -> HandOff:
        """Add a thread that wakes idle threads of a hand-off when its watch fires. Returns the hand-off."""
        watcher = QueueWatcher(hand_off, watch, is_empty, self._stop)
        self._watchers.append(Loop("watcher", self._stop, watcher.turn, self.print_line, wait=lambda timeout_s: None))
        self._close_callbacks += [watcher.close, hand_off.close]
        return hand_off

    def _is_empty(self, folder: str) -> bool:
        node = self._queue.tree.find(folder)
        return node is not None and not node.children

    def _add_loop(
        self,
        name: str,
        turn: Callable[[], bool],
        wait: Callable[[float], object],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._loops.append(Loop(name, self._stop, turn, self.print_line, wait=wait, release=release))

    def print_line(self, text: str) -> None:
        """Print a line for operators; may be called from any thread."""
        with self._write_lock:
            self._print_line(text)

    def start(self) -> None:
        for loop in [*self._loops, *self._watchers]:
            loop.start()

    def join(self) -> None:
        """Wait until all threads have released what they hold, at most ``GRACE_S`` seconds. Set ``stop`` before."""
        for close in self._close_callbacks:
            close()
        deadline = time.monotonic() + GRACE_S
        loops = [*self._loops, *self._watchers]
        hanging = [loop for loop in loops if not loop.join(max(0.0, deadline - time.monotonic()))]
        if hanging:
            log.warning(
                "%d consumers did not end within %g s; their locks end with this process", len(hanging), GRACE_S
            )

    def is_idle(self) -> bool:
        """Return whether there is nothing left that can be done now. A paused queue counts as idle, and held jobs are
        ignored."""
        if not all(loop.idle.is_set() for loop in self._loops):
            return False
        if any(bundles.has_work() for bundles in self._bundles):
            return False
        if self._queue.locks.check("ingest"):
            return True
        if self._delayed or any(each.has_unsent for each in self._reporting):
            return False
        if any(not self._queue.is_passed_over(job) for state in WORK_STATES for job in self._queue.list_jobs(state)):
            return False
        return not any(
            self._has_work(batch) for state in OPEN_BATCH_STATES for batch in self._queue.list_batches(state)
        )

    def _has_work(self, batch_id: str) -> bool:
        """Return whether something can be done for this batch; not while it only waits for held jobs."""
        if self._queue.is_passed_over(batch_id):
            return False
        try:
            batch = self._queue.load_batch(batch_id)
            if batch.status != BatchState.PROCESSING or not has_all_jobs(batch):
                return True
            return not batch.processing_jobs and bool(batch.completed_jobs or batch.failed_jobs or batch.deleted_jobs)
        except NodeInvalid:
            return False  # for the audit to report

    def _wait_for_change(self, folder: str) -> Callable[[float], object]:
        """Return a function that waits for a change of a folder, at most ``QUIET_POLLS`` times the given time, since a
        lock that ends with its process does not trigger the watch."""

        def wait(timeout_s: float) -> None:
            watch = self._queue.tree.store.watch(folder)
            try:
                for _ in range(QUIET_POLLS):
                    if watch.wait(timeout_s) or self._stop.is_set():
                        return
            finally:
                watch.close()

        return wait

    def _raise_if_stopping(self) -> None:
        if self._stop.is_set():
            raise StopRequested

    def _sweep(self) -> bool:
        now = time.monotonic()
        if now - self._last_sweep_s < SWEEP_S:
            return False
        self._last_sweep_s = now
        self._work.sweep(self._queue)
        self._at_work.sweep(partial(is_done, self._queue))
        for bundles in self._bundles:
            bundles.expire(time.time())
        return True


class _StopBetweenWaves(Forwarding):
    """Observer that ends the run between two waves once ``stop`` is set."""

    def __init__(self, observer: Observer, stop: threading.Event) -> None:
        super().__init__(observer)
        self._stop = stop

    def phase(self, wave: int, name: str) -> None:
        if self._stop.is_set() and name in ("scan", "transform"):
            raise StopRequested  # the next run delivers what is committed
        super().phase(wave, name)


@contextmanager
def on_spark(
    plan: Plan,
    state: StatePath | None,
    master: str,
    conf: Mapping[str, str],
    accept_changes: bool = False,
    *,
    preflight: bool = True,
) -> Iterator[tuple[State, Runner]]:
    """Open a plan's state with a driver on a Spark session of its own."""
    from ferryman.engine.driver import drive

    worker_environment = (
        {f"spark.executorEnv.{REACH_VARIABLE}": os.environ[REACH_VARIABLE]} if REACH_VARIABLE in os.environ else {}
    )
    settings = {**worker_environment, **conf}
    with drive(plan, state, None, master, settings, accept_changes, preflight=preflight, observer=Silent()) as driver:
        yield driver
