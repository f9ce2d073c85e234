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
from ferryman.intake import Batch, BatchState, Job, JobQueue, JobState, NodeInvalid, QueueLost
from ferryman.intake.nodes import ACCESS, SIZES, state_path
from ferryman.intake.service.access import Bundles
from ferryman.intake.service.batches import Batches, Reporting, SlowBatches, SlowReporting, Waits, is_made
from ferryman.intake.service.errors import Stopping, TurnFailed
from ferryman.intake.service.finisher import Finisher
from ferryman.intake.service.hosts import SLOTS, SlowHosts, SlowLane
from ferryman.intake.service.isolation import AtWork, Isolation
from ferryman.intake.service.payload import Minted
from ferryman.intake.service.processing import Processing, Turns, jobs_sources
from ferryman.intake.service.reports import BatchReports
from ferryman.intake.service.settings import Serving
from ferryman.intake.service.stages import JobStage, Provisioning
from ferryman.intake.service.workers import (
    LOST_PAUSE_S,
    POLL_S,
    QUIET_LOOKS,
    Carrier,
    Desk,
    Lookout,
    Loop,
    SlowWorker,
    Worker,
)
from ferryman.intake.service.workspace import Workspace, is_done
from ferryman.intake.store import Watch
from ferryman.net.reach import REACH_VARIABLE, to_environment
from ferryman.observe import Forwarding, Observer, Silent
from ferryman.plan import Plan
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
"""Seconds between sweeps of what removed jobs left and of expired bundles."""

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
    queue: JobQueue,
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
    stands_by, turns = False, Turns()
    before = os.environ.get(REACH_VARIABLE)
    os.environ[REACH_VARIABLE] = to_environment(serving.reach)  # for the steps of the plan, wherever they run
    try:
        while not _is_over(consumers, None, serving, stop):
            try:
                with suppress(StateHeld), driving() as (state, runner):
                    _process(plan, queue, state, runner, consumers, serving, stop, observer, turns)
            except TurnFailed as e:
                consumers.say(str(e))
                continue
            if not stop.is_set():
                if not stands_by:
                    consumers.say(f"plan {plan.key}: another process runs it; this one does everything else")
                stands_by = True
                stop.wait(HELD_AGAIN_S)
    finally:
        os.environ.pop(REACH_VARIABLE, None)
        if before is not None:
            os.environ[REACH_VARIABLE] = before
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
    turns: Turns,
) -> None:
    """Run the plan for jobs in Processing."""
    from ferryman.engine.run import Run

    run = Run(state, runner, _StopBetweenWaves(observer, stop), wait=0)
    processing = Processing(queue, run, state, consumers.say, stop, turns=turns)
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
    """The threads of all states but Processing. One that has nothing to do sleeps until it is told of something."""

    def __init__(self, queue: JobQueue, serving: Serving, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._queue, self._stop = queue, stop
        self._saying = threading.Lock()
        self._say = say
        self._work = work = Workspace(serving.work)
        self._at_work = AtWork(work.at_work, self.say)
        self._isolation = Isolation(queue, serving, stop)
        self._waits = Waits()
        self._swept_at = -SWEEP_S
        self._loops: list[Loop] = []
        self._lookouts: list[Loop] = []
        self._closing: list[Callable[[], None]] = [self._waits.close]
        """Callbacks that wake sleeping threads, at the end."""
        slow = SlowHosts(serving.prompt_s)
        fetcher, callback = serving.fetcher(stop, slow), serving.callback(stop, slow)
        patient, patient_callback = serving.fetcher(stop), serving.callback(stop)
        patient_reports = serving.reports(stop)
        reports = patient_reports.by(callback)
        self._add_loop("sweep", self._sweep, lambda timeout_s: stop.wait(SWEEP_S))
        desk = self._looked_out(Desk(), queue.watch_batches, lambda: False)
        shared: dict[str, Any] = {
            "waits": self._waits,
            "desk": desk,
            "at_work": self._at_work,
            "isolation": self._isolation,
        }
        batches = [Batches(queue, work, fetcher, reports, self.say, **shared) for _ in range(serving.threads)]
        batches += [SlowBatches(queue, work, patient, patient_reports, self.say, **shared) for _ in range(SLOTS)]
        for each in batches:
            self._add_loop("batches", each.turn, each.wait)
        self._reporting = self._reporters(reports, patient_reports)
        self._add_stations(
            serving.stages(queue, work, fetcher, callback, stop, self.say),
            serving.stages(queue, work, patient, patient_callback, stop, self.say),
            serving.threads,
        )
        self._bundles = [Bundles(queue, work, size, self._stopping, self.say) for size in SIZES]
        for bundles, size in zip(self._bundles, SIZES, strict=True):
            self._add_loop("access", bundles.turn, self._watching(f"{ACCESS}/{size}"))

    def _reporters(self, reports: BatchReports, patient: BatchReports) -> list[Reporting]:
        """Who reports batches, and who goes on with the receivers that are slow."""
        lane = SlowLane[Batch]()
        self._closing.append(lane.close)
        prompt = Reporting(self._queue, self._work, reports, self.say, lane=lane)
        self._add_loop("reports", prompt.turn, self._stop.wait, prompt.release)
        others = [SlowReporting(self._queue, self._work, patient, self.say, takes=lane) for _ in range(SLOTS)]
        for each in others:
            self._add_loop("reports", each.turn, each.wait, each.release)
        return [prompt, *others]

    def _add_stations(self, stations: list[JobStage], patient: list[JobStage], threads: int) -> None:
        """The threads of each state but Processing, and those that wait for slow hosts."""
        lanes = {state: SlowLane[Job]() for state in (JobState.PENDING, JobState.DOWNLOADING, JobState.NOTIFY)}
        finisher = Finisher()
        self._closing += [finisher.release, *(lane.close for lane in lanes.values())]
        self._add_loop("finisher", finisher.turn, lambda timeout_s: finisher.wait(), finisher.release)
        self.desks = {station.state: Desk() for station in stations}
        for state, desk in self.desks.items():
            self._looked_out(desk, partial(self._queue.watch_jobs, state), partial(self._is_empty, state_path(state)))
        carriers: dict[JobState, Carrier] = {}
        how: dict[str, Any] = {
            "at_work": self._at_work,
            "isolation": self._isolation,
            "finisher": finisher,
            "stop": self._stop,
            "desks": self.desks,
            "carriers": carriers,
        }
        carriers.update({station.state: Carrier(self._queue, station, self.say, **how) for station in stations})
        workers = [
            Worker(self._queue, station, self.say, lane=lanes.get(station.state), **how)
            for station in stations
            for _ in range(1 if isinstance(station, Provisioning) else threads)
        ]
        workers += [
            SlowWorker(self._queue, station, self.say, takes=lanes[station.state], **how)
            for station in patient
            for _ in range(SLOTS if station.state in lanes else 0)
        ]
        for worker in workers:
            self._add_loop(worker.state, worker.turn, worker.wait, worker.release)

    def _looked_out(self, desk: Desk, watch: Callable[[], Watch], is_empty: Callable[[], bool]) -> Desk:
        """Wake idle threads when the watch fires."""
        lookout = Lookout(desk, watch, is_empty, self._stop)
        self._lookouts.append(Loop("lookout", self._stop, lookout.turn, self.say, wait=lambda timeout_s: None))
        self._closing += [lookout.close, desk.close]
        return desk

    def _is_empty(self, folder: str) -> bool:
        found = self._queue.tree.find(folder)
        return found is not None and not found.children

    def _add_loop(
        self,
        name: str,
        turn: Callable[[], bool],
        wait: Callable[[float], object],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._loops.append(Loop(name, self._stop, turn, self.say, wait=wait, release=release))

    def say(self, text: str) -> None:
        """A line for people, from any thread."""
        with self._saying:
            self._say(text)

    def start(self) -> None:
        for loop in [*self._loops, *self._lookouts]:
            loop.start()

    def join(self) -> None:
        """Wait until all have given back what they hold, for a limited time. ``stop`` is set."""
        for close in self._closing:
            close()
        until = time.monotonic() + GRACE_S
        loops = [*self._loops, *self._lookouts]
        late = [loop for loop in loops if not loop.join(max(0.0, until - time.monotonic()))]
        if late:
            log.warning("%d consumers did not end within %g s; their locks end with this process", len(late), GRACE_S)

    def is_idle(self) -> bool:
        """Return whether nothing is left that can be done now. A paused queue has nothing, and held jobs are left
        alone."""
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
        """Return whether something can be done for this batch; not while it waits for held jobs."""
        if self._queue.is_passed_over(batch_id):
            return False
        try:
            batch = self._queue.load_batch(batch_id)
            if batch.status != BatchState.PROCESSING or not is_made(batch):
                return True
            return not batch.processing_jobs and bool(batch.completed_jobs or batch.failed_jobs or batch.deleted_jobs)
        except NodeInvalid:
            return False  # the audit's business

    def _watching(self, folder: str) -> Callable[[float], object]:
        """Waits until something comes or goes, several times so long: then a lock that ended with its process is to be
        found."""

        def wait(timeout_s: float) -> None:
            watch = self._queue.tree.store.watch(folder)
            try:
                for _ in range(QUIET_LOOKS):
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
    """Observer that ends the run between two waves once it is to stop."""

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

    told = {f"spark.executorEnv.{REACH_VARIABLE}": os.environ[REACH_VARIABLE]} if REACH_VARIABLE in os.environ else {}
    settings = {**told, **conf}
    with drive(plan, state, None, master, settings, accept_changes, preflight=preflight, observer=Silent()) as driver:
        yield driver
