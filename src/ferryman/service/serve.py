"""Serving a queue: one consumer a state, and the plan between Downloading and Storing."""

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
from ferryman.intake import Batch, BatchState, Job, JobState, NodeInvalid, Queue, QueueLost
from ferryman.intake.nodes import ACCESS, SIZES
from ferryman.intake.store import Watch
from ferryman.observe.progress import Forwarding, Observer, Silent
from ferryman.plan import Plan
from ferryman.reach import ENVIRONMENT, to_environment
from ferryman.service.at_work import AtWork
from ferryman.service.batches import Batches, SlowBatches, Waits, is_made
from ferryman.service.bundles import Bundles
from ferryman.service.desk import Desk, Lookout
from ferryman.service.errors import Stopping
from ferryman.service.isolation import Isolation
from ferryman.service.minted import Minted
from ferryman.service.processing import Processing, jobs_sources
from ferryman.service.reporting import Reporting, SlowReporting
from ferryman.service.serving import Serving
from ferryman.service.slow import SLOTS, SlowHosts, SlowLane
from ferryman.service.stages import JobStage, Provisioning
from ferryman.service.together import Finisher
from ferryman.service.worker import LOST_PAUSE_S, POLL_S, QUIET_LOOKS, Carrier, Loop, SlowWorker, Worker
from ferryman.service.workspace import Workspace, is_done
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.runner.base import Runner
    from ferryman.state.state import State

log = logging.getLogger("ferryman.intake")

GRACE_S: Final = 30.0
"""After a stop, consumers get so long to finish or give back what they hold. What then still hangs loses its locks with
this process."""

HELD_AGAIN_S: Final = 2.0
"""Between two looks at a plan's state that another process holds: when that ends, this one takes over."""

SWEEP_S: Final = 3600.0
"""What belongs to jobs that were removed is cleared away so often, and bundles that have expired."""

AT_WORK: Final = (
    JobState.PENDING,
    JobState.ESTIMATING,
    JobState.PROVISIONING,
    JobState.DOWNLOADING,
    JobState.PROCESSING,
    JobState.STORING,
    JobState.RECORDING,
    JobState.NOTIFY,
)

OPEN: Final = (BatchState.PENDING, BatchState.PROCESSING, BatchState.REPORTING, BatchState.UPDATE_REPORTING)


Driving = Callable[[], Any]
"""Makes the driver of the plan's state: a context manager of (state, runner)."""


def serve(
    plan: Plan,
    queue: Queue,
    serving: Serving,
    driving: Driving,
    *,
    stop: threading.Event | None = None,
    observer: Observer | None = None,
) -> None:
    """Serve a queue until ``stop`` is set, or with ``once`` until nothing is left to do.

    The plan runs in this thread; another process that serves the same plan does all but that, and takes it over when
    this one ends. After ``stop`` each consumer finishes its step, or gives the job back in the state it was in.

    Raises:
        UsageError: the plan has no source of jobs.
        StateDamaged, EngineError, …: the plan's state or Spark failed; jobs stay where they are.
    """
    jobs_sources(plan)
    Minted(plan, serving.work)
    stop = stop or threading.Event()
    observer = observer or Silent()
    consumers = Consumers(queue, serving, stop, observer.message)
    consumers.start()
    stands_by = False
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = to_environment(serving.reach)  # for the steps of the plan, wherever they run
    try:
        while not _is_over(consumers, None, serving, stop):
            with suppress(StateHeld), driving() as (state, runner):
                _process(plan, queue, state, runner, consumers, serving, stop, observer)
            if not stop.is_set():
                if not stands_by:
                    consumers.say(f"plan {plan.key}: another process runs it; this one does everything else")
                stands_by = True
                stop.wait(HELD_AGAIN_S)
    finally:
        os.environ.pop(ENVIRONMENT, None)
        if before is not None:
            os.environ[ENVIRONMENT] = before
        stop.set()
        consumers.join()


def _process(
    plan: Plan,
    queue: Queue,
    state: State,
    runner: Runner,
    consumers: Consumers,
    serving: Serving,
    stop: threading.Event,
    observer: Observer,
) -> None:
    """Run the plan for jobs in Processing."""
    from ferryman.engine.wave import Run

    run = Run(state, runner, _StopBetweenWaves(observer, stop), wait=0)
    processing = Processing(queue, run, state, consumers.say, stop)
    try:
        run.recover()
        while not stop.is_set():
            try:
                if not processing.turn():
                    run.notify(limits.NOTIFY_EVERY_S)
                    if _is_over(consumers, processing, serving, stop):
                        stop.set()
                        return
                    processing.wait(POLL_S, 1 if serving.once else QUIET_LOOKS)
            except QueueLost as e:
                consumers.say(str(e))
                stop.wait(LOST_PAUSE_S)
    except Stopping:
        return
    finally:
        with suppress(QueueLost):
            processing.release()


def _is_over(consumers: Consumers, processing: Processing | None, serving: Serving, stop: threading.Event) -> bool:
    if stop.is_set():
        return True
    if not serving.once or processing is None or processing.holds:
        return False
    return consumers.is_idle()


class Consumers:
    """The threads of all states but Processing."""

    def __init__(self, queue: Queue, serving: Serving, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._queue, self._stop = queue, stop
        self._saying = threading.Lock()
        self._say = say
        self._work = work = Workspace(serving.work)
        slow = SlowHosts(serving.prompt_s)
        fetcher, callback = serving.fetcher(stop, slow), serving.callback(stop, slow)
        patient, patient_callback = serving.fetcher(stop), serving.callback(stop)
        self._at_work = AtWork(work.at_work, self.say)
        isolation = Isolation(queue, serving, stop)
        self._waits = Waits()
        waits: dict[str, Any] = {"waits": self._waits, "at_work": self._at_work, "isolation": isolation}
        patient_reports = serving.reports(stop)
        reports = patient_reports.by(callback)
        self._batches = [Batches(queue, work, fetcher, reports, self.say, **waits) for _ in range(serving.threads)]
        self._batches += [SlowBatches(queue, work, patient, patient_reports, self.say, **waits) for _ in range(SLOTS)]
        slow_reports = SlowLane[Batch]()
        self._reporting = [Reporting(queue, work, reports, self.say, lane=slow_reports)]
        self._reporting += [
            SlowReporting(queue, work, patient_reports, self.say, takes=slow_reports) for _ in range(SLOTS)
        ]
        self._loops = [
            *(Loop("batches", stop, each.turn, self.say, wait=self._batch_wait(each)) for each in self._batches),
            *(Loop("reports", stop, each.turn, self.say, release=each.release) for each in self._reporting),
            Loop("sweep", stop, self._sweep, self.say, wait=stop.wait),
        ]
        self._swept_at = -SWEEP_S
        lanes = {state: SlowLane[Job]() for state in (JobState.PENDING, JobState.DOWNLOADING, JobState.NOTIFY)}
        finisher = Finisher()
        self.desks = {state: Desk() for state in AT_WORK if state is not JobState.PROCESSING}
        for state, desk in self.desks.items():
            lookout = Lookout(desk, partial(queue.watch_jobs, state), stop)
            self._loops.append(Loop("lookout", stop, lookout.turn, self.say, wait=lambda timeout_s: None))
        self._loops.append(
            Loop("finisher", stop, finisher.turn, self.say, wait=finisher.wait, release=finisher.release)
        )
        how: dict[str, Any] = {"at_work": self._at_work, "isolation": isolation, "finisher": finisher, "stop": stop}
        carriers: dict[JobState, Carrier] = {}
        how |= {"desks": self.desks, "carriers": carriers}
        stations = serving.stages(queue, work, fetcher, callback, stop, self.say)
        carriers.update({station.state: Carrier(queue, station, self.say, **how) for station in stations})
        for station in stations:
            for _ in range(1 if isinstance(station, Provisioning) else serving.threads):
                self._add(station, Worker(queue, station, self.say, lane=lanes.get(station.state), **how))
        for station in serving.stages(queue, work, patient, patient_callback, stop, self.say):
            for _ in range(SLOTS if station.state in lanes else 0):
                self._add(station, SlowWorker(queue, station, self.say, takes=lanes[station.state], **how))
        self._bundles = [Bundles(queue, work, size, self._stopping, self.say) for size in SIZES]
        for bundles, size in zip(self._bundles, SIZES, strict=True):
            wait = self._watching(partial(queue.tree.store.watch, f"{ACCESS}/{size}"), lambda: False)
            self._loops.append(Loop("access", stop, bundles.turn, self.say, wait=wait))

    def _add(self, station: JobStage, worker: Worker) -> None:
        loop = Loop(station.state, self._stop, worker.turn, self.say, wait=worker.wait, release=worker.release)
        self._loops.append(loop)

    def say(self, text: str) -> None:
        """A line for people, from any thread."""
        with self._saying:
            self._say(text)

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    def join(self) -> None:
        """Wait until all have given back what they hold, for a limited time."""
        until = time.monotonic() + GRACE_S
        late = [loop for loop in self._loops if not loop.join(max(0.0, until - time.monotonic()))]
        if late:
            log.warning("%d consumers did not end within %g s; their locks end with this process", len(late), GRACE_S)

    def is_idle(self) -> bool:
        """Is nothing left to do that can be done now? A paused queue has nothing, and held jobs are left alone."""
        if not all(loop.idle.is_set() for loop in self._loops):
            return False
        if any(bundles.is_due() for bundles in self._bundles):
            return False
        if self._queue.locks.check("ingest"):
            return True
        if self._waits or any(each.waiting for each in self._reporting):
            return False
        if any(not self._queue.is_passed_over(job) for state in AT_WORK for job in self._queue.list_jobs(state)):
            return False
        return not any(self._is_due(batch) for state in OPEN for batch in self._queue.list_batches(state))

    def _is_due(self, batch_id: str) -> bool:
        """Is there something to do for this batch? Not while it waits for jobs that are held."""
        if self._queue.is_passed_over(batch_id):
            return False
        try:
            batch = self._queue.load_batch(batch_id)
            if batch.status != BatchState.PROCESSING or not is_made(batch):
                return True
            return not batch.processing_jobs and bool(batch.completed_jobs or batch.failed_jobs or batch.deleted_jobs)
        except NodeInvalid:
            return False  # the audit's business

    def _batch_wait(self, batches: Batches) -> Callable[[float], object]:
        """No watch tells of batches that are handed over."""
        slow = isinstance(batches, SlowBatches)
        return self._stop.wait if slow else self._watching(self._queue.watch_batches, lambda: bool(self._waits))

    def _watching(self, watching: Callable[[], Watch], has_waiting: Callable[[], bool]) -> Callable[[float], object]:
        """Waits until something comes or goes, at most so long; several times as long if nothing waits here: then only
        a lock that ended with its process is to be found."""

        def wait(timeout_s: float) -> None:
            watch = watching()
            try:
                for _ in range(1 if has_waiting() else QUIET_LOOKS):
                    if watch.wait(timeout_s) or self._stop.is_set():
                        return
            finally:
                watch.close()

        return wait

    def _stopping(self) -> None:
        if self._stop.is_set():
            raise Stopping

    def _sweep(self) -> bool:
        now = time.monotonic()
        if now - self._swept_at < SWEEP_S:
            return False
        self._swept_at = now
        self._work.sweep(self._queue)
        self._at_work.sweep(partial(is_done, self._queue))
        for bundles in self._bundles:
            bundles.expire(time.time())
        return True


class _StopBetweenWaves(Forwarding):
    """The same observer, which ends the run between two waves once it is to stop."""

    def __init__(self, observer: Observer, stop: threading.Event) -> None:
        super().__init__(observer)
        self._stop = stop

    def phase(self, wave: int, name: str) -> None:
        if self._stop.is_set() and name in ("scan", "transform"):
            raise Stopping  # what is committed is delivered by the next
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
    """The driver of a plan's state, on a Spark session of its own."""
    from ferryman.engine.driver import drive

    told = {f"spark.executorEnv.{ENVIRONMENT}": os.environ[ENVIRONMENT]} if ENVIRONMENT in os.environ else {}
    settings = {**told, **conf}
    with drive(plan, state, None, master, settings, accept_changes, preflight=preflight, observer=Silent()) as driver:
        yield driver
