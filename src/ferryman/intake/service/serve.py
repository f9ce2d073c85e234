"""Serving a queue: consumers for every state, and the plan between Downloading and Storing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.errors import StateHeld
from ferryman.intake import Batch, BatchState, JobQueue, JobState, NodeInvalid, QueueLost
from ferryman.intake.nodes import ACCESS, ACCESS_SIZES
from ferryman.intake.service.access import BundleConsumer
from ferryman.intake.service.batches import BatchConsumer, ReportConsumer, has_all_jobs
from ferryman.intake.service.errors import StopRequested, TurnFailed
from ferryman.intake.service.fetch import SLOW_HOST_THREADS, SlowHosts
from ferryman.intake.service.finisher import Finisher
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.payload import MintedIdentifiers
from ferryman.intake.service.processing import ProcessingConsumer, TurnSize, jobs_sources
from ferryman.intake.service.scheduler import NEVER, QUEUE_LOST_RETRY_S, LaneWatch, Scheduler, WorkLane
from ferryman.intake.service.stages import Provisioning, Serving
from ferryman.intake.service.workers import JobWorker
from ferryman.intake.service.workspace import Workspace, is_done
from ferryman.net.allowed_addresses import REACH_VARIABLE, Reach, to_environment
from ferryman.observe import Forwarding, Observer, Silent
from ferryman.plan import Plan
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.runner.base import Runner
    from ferryman.state.state import State

POLL_S: Final = 0.5
"""Seconds between two searches for batches whose report is due, and between two checks whether everything is done."""

IDLE_POLL_S: Final = 2.0
"""Seconds between two polls for pending work of the plan while no job is in Processing."""

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

SLOW_HOST_STATES: Final = (JobState.PENDING, JobState.DOWNLOADING, JobState.NOTIFY)
"""States in which a job may have to wait for a slow host."""

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
    is_standby, turn_size = False, TurnSize()
    with limited_to(serving.reach), consumers:
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
                consumers.jobs.release_processing()  # one may have come since
                stop.wait(STANDBY_POLL_S)


_reaches: Final[dict[object, str | None]] = {}
"""Value of ``REACH_VARIABLE`` before any service began, then that of each service of this process, as they began."""
_reaches_lock: Final = threading.Lock()


@contextmanager
def limited_to(reach: Reach) -> Iterator[None]:
    """Set the limits of URLs for the plan's steps, wherever they run, while a service runs. Of several services in one
    process, which has one environment, those of the last one that began and still runs."""
    service = object()

    def apply_last() -> None:
        value = next(reversed(_reaches.values()))
        if value is None:
            os.environ.pop(REACH_VARIABLE, None)
        else:
            os.environ[REACH_VARIABLE] = value

    with _reaches_lock:
        _reaches.setdefault(None, os.environ.get(REACH_VARIABLE))
        _reaches[service] = to_environment(reach)
        apply_last()
    try:
        yield
    finally:
        with _reaches_lock:
            del _reaches[service]
            apply_last()
            if len(_reaches) == 1:
                _reaches.clear()


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
    jobs = consumers.jobs
    processing = ProcessingConsumer(queue, run, state, consumers.print_line, stop, turn_size=turn_size, jobs=jobs)
    with closing(run):
        try:
            run.recover()
            jobs.free_places = processing.free_places
            while not stop.is_set():
                try:
                    has_worked = processing.turn()
                    run.report(limits.NOTIFY_EVERY_S)
                    if has_worked:
                        continue
                    if _is_over(consumers, processing, serving, stop):
                        run.report()
                        stop.set()
                        break
                    processing.wait(POLL_S if serving.once else IDLE_POLL_S)
                except QueueLost as e:
                    consumers.print_line(str(e))
                    stop.wait(QUEUE_LOST_RETRY_S)
        except StopRequested:
            pass
        finally:
            with suppress(QueueLost):
                jobs.release_processing()
                processing.release()
        run.end_mirrors()


def _is_over(
    consumers: Consumers, processing: ProcessingConsumer | None, serving: Serving, stop: threading.Event
) -> bool:
    if stop.is_set():
        return True
    if not serving.once or processing is None or processing.has_unfinished:
        return False
    return consumers.is_idle()


class Consumers:
    """Everything but the plan, in the lanes of a scheduler."""

    def __init__(
        self, queue: JobQueue, serving: Serving, stop: threading.Event, print_line: Callable[[str], None]
    ) -> None:
        self._queue, self._stop = queue, stop
        self._write_lock = threading.Lock()
        self._print_line = print_line
        self._work = Workspace(serving.work)
        self._at_work = CurrentWork(self._work.at_work, self.print_line)
        self._isolation = Isolation(queue, serving, stop)
        self._scheduler = Scheduler(stop, self.print_line, queue.acquire_again)
        self._finisher = Finisher()
        self.jobs = JobWorker(queue, self._scheduler, self._finisher, self._at_work, self._isolation, self.print_line)
        self._bundles = [
            BundleConsumer(queue, self._work, size, self._raise_if_stopping, self.print_line) for size in ACCESS_SIZES
        ]
        self._add_lanes(serving)

    def _add_lanes(self, serving: Serving) -> None:
        queue, work, stop, scheduler = self._queue, self._work, self._stop, self._scheduler
        slow_hosts = SlowHosts(serving.prompt_s)
        fetcher, callback = serving.fetcher(stop, slow_hosts), serving.callback(stop, slow_hosts)
        slow_fetcher, slow_callback = serving.fetcher(stop), serving.callback(stop)
        slow_reports = serving.reports(stop)
        finishing = scheduler.add(
            WorkLane(
                "finisher", 1, _skip_none(self._finisher.take), self._finisher.finish, watch=LaneWatch(poll_s=NEVER)
            )
        )
        self._finisher.wake = partial(scheduler.wake, finishing, at_once=True)
        scheduler.add(WorkLane("sweep", 1, _skip_none(self._sweep), lambda item: None, watch=LaneWatch(poll_s=SWEEP_S)))
        shared = (self.print_line, self._at_work, self._isolation)

        def is_open() -> bool:
            return not queue.tree.is_paused()

        slow = BatchConsumer(queue, work, slow_fetcher, slow_reports, *shared)
        slow_lane = scheduler.add(WorkLane("batches", SLOW_HOST_THREADS, None, slow.create_jobs, is_open=is_open))
        reports = slow_reports.with_callback(callback)
        prompt = BatchConsumer(queue, work, fetcher, reports, *shared)

        def create_jobs(batch: Batch) -> None:
            prompt.create_jobs(batch)
            if pending := self.jobs.lane_of(JobState.PENDING):
                scheduler.wake(pending, at_once=True)

        lane = partial(WorkLane, slow=slow_lane, is_open=is_open)
        watch = LaneWatch(queue.watch_batches)
        scheduler.add(lane("batches", serving.threads, prompt.acquire, create_jobs, watch=watch))
        reporter = ReportConsumer(queue, work, slow_reports, self.print_line)
        slow_lane = scheduler.add(WorkLane("reports", SLOW_HOST_THREADS, None, reporter.report, is_open=is_open))
        reporter = ReportConsumer(queue, work, reports, self.print_line)
        lane = partial(WorkLane, slow=slow_lane, is_open=is_open)
        scheduler.add(lane("reports", 1, reporter.acquire, reporter.report, watch=LaneWatch(poll_s=POLL_S)))
        stages = serving.stages(queue, work, fetcher, callback, stop, self.print_line)
        slow_stages = serving.stages(queue, work, slow_fetcher, slow_callback, stop, self.print_line)
        for stage, slow_stage in zip(stages, slow_stages, strict=True):
            threads = 1 if isinstance(stage, Provisioning) else serving.threads
            self.jobs.add_stage(stage, threads, slow_stage if stage.state in SLOW_HOST_STATES else None)
        for bundles, size in zip(self._bundles, ACCESS_SIZES, strict=True):
            watch = LaneWatch(partial(queue.tree.store.watch, f"{ACCESS}/{size}"))
            scheduler.add(WorkLane("access", 1, _skip_none(bundles.acquire), bundles.build, watch=watch))

    def print_line(self, text: str) -> None:
        """Print a line for operators; may be called from any thread."""
        with self._write_lock:
            self._print_line(text)

    def __enter__(self) -> None:
        self._scheduler.start()

    def __exit__(self, *_: object) -> None:
        """Set ``stop``, and wait until all threads have released what they hold, but not forever."""
        self._stop.set()
        self._finisher.release()
        self._scheduler.close()
        self._at_work.close()

    def is_idle(self) -> bool:
        """Return whether there is nothing left that can be done now. A paused queue counts as idle, and held jobs are
        ignored."""
        if not self._scheduler.is_idle():
            return False
        if any(bundles.has_work() for bundles in self._bundles):
            return False
        if self._queue.locks.check("ingest"):
            return True
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

    def _raise_if_stopping(self) -> None:
        if self._stop.is_set():
            raise StopRequested

    def _sweep(self) -> None:
        self._work.sweep(self._queue)
        self._at_work.sweep(partial(is_done, self._queue))
        for bundles in self._bundles:
            bundles.expire(time.time())


def _skip_none(acquire: Callable[[], Any]) -> Callable[[AbstractSet[str]], Any]:
    """Return an acquisition for a lane in which no items wait to be tried again."""
    return lambda skip: acquire()


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
    from ferryman.engine.settings import SparkSettings

    worker_environment = (
        {f"spark.executorEnv.{REACH_VARIABLE}": os.environ[REACH_VARIABLE]} if REACH_VARIABLE in os.environ else {}
    )
    spark = SparkSettings(master=master, conf={**worker_environment, **conf})
    with drive(plan, state, spark, accept_changes=accept_changes, preflight=preflight, observer=Silent()) as driver:
        yield driver
