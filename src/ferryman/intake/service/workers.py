"""Worker threads, each for the jobs of one state. The result of the work determines what happens to the job:

==================  ====================================================================================
the work            the job
==================  ====================================================================================
returns             moves on, and is unlocked in the same change
PermanentError      fails, with the reason
TransientError      fails too: its work has tried as often as it may
TryLater            stays, locked, and is tried again; others of its state are worked at meanwhile
SlowHost            is handed over to a thread for slow hosts
StopRequested       is given back as it is
LockLost            is not ours any more: nothing was changed, another does it again
NodeInvalid         was removed, or is damaged: it is given back, and skipped for a minute
StateError          was moved by an operator meanwhile: it is given back
any other           fails: a fault that an operator should see; a full disk counts as TryLater
==================  ====================================================================================
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ferryman.errors import DeliveryError, FerrymanError, UsageError, describe
from ferryman.intake import Job, JobQueue, JobState, LockLost, NodeInvalid, QueueLost, QueueRefused, StateError
from ferryman.intake.service.errors import SlowHost, StopRequested, TryLater
from ferryman.intake.service.finisher import Finisher, FinishRequest
from ferryman.intake.service.hosts import SlowHostQueue
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.stages import JobStage, StageResult
from ferryman.intake.states import JOB
from ferryman.intake.store import Watch
from ferryman.storage.files import is_disk_full

POLL_S: Final = 0.5
"""Seconds between two checks whether to stop and whether waiting jobs are due; a watch reports new jobs."""

QUIET_POLLS: Final = 4
"""Multiple of ``POLL_S`` after which an idle thread looks for work although its watch has not fired."""

QUEUE_LOST_RETRY_S: Final = 1.0
"""Seconds between two attempts while the queue's server does not answer."""

FULL_DISK_RETRY_S: Final = 10.0
"""Seconds until a job is tried again after the disk was full."""

NEXT_STATE: Final = {JobState.PENDING: JobState.ESTIMATING, **JOB.success}
"""State -> the next state when its work is done."""

PrintLine = Callable[[str], None]


class Loop:
    """Thread that calls ``turn`` again and again until it is to stop.

    Args:
        turn: does one piece of work; returns False if there was nothing to do.
        wait: called with ``POLL_S`` after a turn without work. It may wait longer if new work and the end wake it.
        release: called at the end; releases everything that is held.
    """

    def __init__(
        self,
        name: str,
        stop: threading.Event,
        turn: Callable[[], bool],
        print_line: PrintLine,
        *,
        wait: Callable[[float], object] | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._stop, self._turn, self._print_line, self._release = stop, turn, print_line, release
        self._wait = wait or stop.wait
        self._thread = threading.Thread(target=self._run, name=f"intake {name}", daemon=True)
        self.idle = threading.Event()
        """Set while there is nothing to do."""
        self._queue_lost = False

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._run_once()
        finally:
            with suppress(FerrymanError):
                self._release()

    def _run_once(self) -> None:
        try:
            if self._turn():
                self.idle.clear()
            else:
                self.idle.set()
                self._wait(POLL_S)
            self._queue_lost = False
        except StopRequested:
            return
        except (LockLost, NodeInvalid, StateError) as e:
            self._print_line(f"{e}")
            self._stop.wait(POLL_S)  # do not repeat the same message a thousand times
        except QueueLost as e:
            self.idle.clear()
            if not self._queue_lost:
                self._print_line(f"{e}")
            self._queue_lost = True
            self._stop.wait(QUEUE_LOST_RETRY_S)
        except Exception as e:  # a fault of Ferryman: report it, and continue with other work
            self._print_line(f"{self._thread.name}: {describe(e)}")
            self._stop.wait(QUEUE_LOST_RETRY_S)


class Worker:
    """Works on jobs of a stage's state, one after another. Each thread has its own worker."""

    def __init__(
        self,
        queue: JobQueue,
        stage: JobStage,
        print_line: PrintLine,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_work: CurrentWork,
        isolation: Isolation,
        finisher: Finisher,
        stop: threading.Event,
        hand_offs: Mapping[JobState, HandOff],
        inline_workers: Mapping[JobState, InlineWorker],
        slow_queue: SlowHostQueue[Job] | None = None,
    ) -> None:
        self._hand_offs, self._inline_workers = hand_offs, inline_workers
        self._slow_queue, self._finisher, self._stop = slow_queue, finisher, stop
        self._queue, self._stage, self._print_line, self._clock = queue, stage, print_line, clock
        self._at_work, self._isolation = at_work, isolation
        self._waiting: list[tuple[float, Job]] = []
        """(when to try again, job) of jobs that wait; each is locked."""

    @property
    def state(self) -> JobState:
        """Return the state of the jobs that this worker handles."""
        return self._stage.state

    def turn(self) -> bool:
        """Work on one job. Returns False if there is none that can be worked on now.

        Raises:
            QueueLost.
            StopRequested.
        """
        handed_over = self._take_handed_over()
        if handed_over is not None and not self._stage.is_open():
            handed_over.unlock()
            handed_over = None
        job = handed_over or self._take_due()
        if job is None and self._stage.is_open():
            job = self._acquire()
        if job is None:
            return False
        return self._work_on(job)

    def _take_handed_over(self) -> Job | None:
        """Return a job handed over by a thread of the previous state."""
        return self._hand_offs[self._stage.state].take()

    def _acquire(self) -> Job | None:
        job = self._queue.acquire_job(self._stage.state)
        if job is not None:
            self._hand_offs[self._stage.state].wake_one()  # there may be more
        return job

    def wait(self, timeout_s: float) -> None:
        """Wait until a job is handed over, there may be one in the state, or the end. Waits at most ``timeout_s`` while
        jobs wait here."""
        self._hand_offs[self._stage.state].wait(timeout_s if self._waiting else None)

    def release(self) -> None:
        """Unlock the jobs that wait here."""
        self._hand_offs[self._stage.state].close()
        for _, job in self._waiting:
            job.unlock()
        self._waiting.clear()

    def _take_due(self) -> Job | None:
        """Return a waiting job that is due; drop those whose locks were lost."""
        now = self._clock()
        self._waiting = [(due, job) for due, job in self._waiting if job.locked]
        for at, (due, job) in enumerate(self._waiting):
            if due <= now:
                del self._waiting[at]
                return job
        return None

    def _work_on(self, job: Job) -> bool:
        """Run the stage for a job. Returns False if the job was taken away; the caller then pauses."""

        return self._attempt(job, lambda: self._finish(job, self._run_stage(job)), partial(self._postpone, job))

    def _postpone(self, job: Job, e: TryLater) -> None:
        """Keep a job until it is due again, or hand it to the threads for slow hosts."""
        if isinstance(e, SlowHost) and self._slow_queue is not None:
            self._slow_queue.put(job)
        elif job.locked:
            self._waiting.append((self._clock() + e.after_s, job))

    def _finish(self, job: Job, result: StageResult) -> None:
        """Move a job on: at once, or when its files are durable."""
        if not result.steps:
            self._advance(job, result)
            return
        self._finisher.submit(
            FinishRequest(job, result.steps, partial(self._run_step, job), lambda: self._advance(job, result))
        )

    def _run_step(self, job: Job, do: Callable[[], None]) -> bool:
        """Run a step of a job that the finisher has. Returns whether it succeeded; a job that has to wait is
        unlocked."""
        was_done = False

        def step() -> None:
            nonlocal was_done
            do()
            was_done = True

        return self._attempt(job, step, lambda e: job.unlock()) and was_done

    def _attempt(self, job: Job, do: Callable[[], None], later: Callable[[TryLater], None]) -> bool:
        """Do something for a job, and handle errors. Returns False if the job was taken away."""
        try:
            try:
                do()
            except DeliveryError as e:
                self._fail(job, str(e))
            except OSError as e:
                if is_disk_full(e):
                    raise TryLater("the disk is full", FULL_DISK_RETRY_S) from None
                self._fail(job, describe(e))
            except (QueueRefused, StateError):
                raise
            except UsageError as e:  # no lock can have such a name
                self._fail(job, str(e))
            except FerrymanError:
                raise
            except Exception as e:  # catch everything: an error affects this job and no other
                self._fail(job, describe(e))
        except TryLater as e:
            later(e)
        except NodeInvalid as e:
            self._queue.pass_over(job.id, f"{job.id}: {e}")
            job.unlock()
            return False
        except (LockLost, StateError) as e:
            self._print_line(f"{job.id}: {e}")
            job.unlock()
            return False
        except BaseException:
            job.unlock()
            raise
        return True

    def _run_stage(self, job: Job) -> StageResult:
        """Run the stage and return its result; in a child process if a process may have died of this job."""
        if not self._stage.isolates:
            return self._stage.work(job)
        state = self._stage.state
        return self._at_work.run(job.id, lambda: self._stage.work(job), lambda: self._isolation.run_stage(job, state))

    def _advance(self, job: Job, result: StageResult) -> None:
        """Move a job to its next state. This thread continues with it if the next work is quick; otherwise the job is
        handed, still locked, to an idle thread, or unlocked."""
        next_state = NEXT_STATE[self._stage.state]
        inline_worker, hand_off = self._inline_workers.get(next_state), self._hand_offs.get(next_state)
        continues_here = inline_worker is not None and result.priority is None and inline_worker.accepts(job, result)
        keeps_lock = job.advance(
            result.message,
            priority=result.priority,
            values=result.values,
            space_needed=result.space_needed,
            keep_lock=continues_here or (hand_off is not None and hand_off.has_idle()),
        )
        if result.obsolete_file is not None:
            result.obsolete_file.unlink(missing_ok=True)
        if inline_worker is not None and keeps_lock and continues_here:
            inline_worker.work(job)
        elif hand_off is not None and not (keeps_lock and hand_off.offer(job)):
            job.unlock()
            hand_off.wake_one()

    def _fail(self, job: Job, why: str) -> None:
        self._print_line(f"{job.id}: failed in {self._stage.state}: {why}")
        job.fail(why, unlock=True)


class SlowWorker(Worker):
    """Works on jobs with slow hosts that other workers have put aside; its stage waits for slow hosts."""

    def __init__(self, *args: Any, takes_from: SlowHostQueue[Job], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._takes_from = takes_from

    def release(self) -> None:
        super().release()
        self._takes_from.close()

    def _take_handed_over(self) -> Job | None:
        return None

    def _acquire(self) -> Job | None:
        return self._takes_from.take()

    def wait(self, timeout_s: float) -> None:
        self._takes_from.wait(timeout_s if self._waiting else None)


class InlineWorker(Worker):
    """Continues with a job in its next state, in the thread that moved it there, if the work is quick.

    The state's own threads still handle the most urgent jobs, and any work that turns out to take longer.
    """

    def accepts(self, job: Job, result: StageResult) -> bool:
        """Return whether the next work of a job about to enter this state is quick."""
        return not self._stop.is_set() and self._stage.is_quick(job, result) and self._stage.is_open()

    def work(self, job: Job) -> None:
        """Work on a locked job that has just moved to this state."""
        self._work_on(job)

    def _postpone(self, job: Job, e: TryLater) -> None:
        job.unlock()
        self._hand_offs[self._stage.state].wake_one()


# Hand-off of locked jobs from the threads of one state to idle threads of the next.
#
# An idle thread has just found that no more urgent job waits in its state. So a job that moves into that state may go
# to this thread directly, without releasing and reacquiring its lock. If all threads are busy, the job is unlocked, and
# the threads take the most urgent job first.

WATCH_PAUSE_S: Final = 0.05
"""Seconds between two looks while jobs keep coming and going: the first change is seen at once, and a thread that finds
a job wakes another."""

STOP_POLL_S: Final = 0.5
"""Seconds between two checks whether to stop."""

QUIET_POLL_S: Final = 2.0
"""Seconds between two looks for a job although the watch has not fired, since a lock that ends with its process does
not trigger it."""

EMPTY_POLLS: Final = 30
"""Multiple of ``QUIET_POLL_S`` after which an empty state is checked although its watch has not fired."""


class HandOff:
    """Hands locked jobs to idle threads of one job state."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._changed, self._idle_changed = threading.Condition(lock), threading.Condition(lock)
        self._idle = 0
        self._handed_over: deque[Job] = deque()
        self._wake_requested = False
        """Whether a wake-up was requested that no thread has followed yet."""
        self._closed = False

    def wake_one(self) -> None:
        """Wake one thread, since there may be a job; if it finds one, it wakes the next thread."""
        with self._changed:
            self._wake_requested = True
            self._changed.notify()

    def has_idle(self) -> bool:
        """Return whether a thread is idle, so that a job can be handed to it."""
        return self._idle > len(self._handed_over)

    def offer(self, job: Job) -> bool:
        """Hand a locked job to an idle thread. Returns False if there is none any more."""
        with self._changed:
            if self._closed or not self.has_idle():
                return False
            self._handed_over.append(job)
            self._changed.notify()
            return True

    def take(self) -> Job | None:
        """Return a job that was handed over, if it is still locked. Idle threads call this before they look
        elsewhere."""
        with self._changed:
            while self._handed_over:
                job = self._handed_over.popleft()
                if job.locked:
                    return job
        return None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until a job is handed over or this thread is woken, at most ``timeout_s`` seconds. Returns whether
        either happened."""
        with self._changed:
            self._idle += 1
            self._idle_changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: bool(self._handed_over) or self._wake_requested or self._closed, timeout_s
                )
            finally:
                self._idle -= 1
            if self._handed_over or self._closed:
                self._changed.notify()  # the wake-up was meant for another thread
                return True
            was_called, self._wake_requested = self._wake_requested, False
            return was_called

    def wait_for_idle(self, timeout_s: float) -> bool:
        """Wait until a thread is idle, at most ``timeout_s`` seconds. Returns whether one is."""
        with self._idle_changed:
            return self._idle_changed.wait_for(lambda: self._idle > 0, timeout_s)

    def close(self) -> None:
        """Unlock jobs that no thread has taken, and wake all threads so that they end."""
        with self._changed:
            self._closed = True
            jobs, self._handed_over = list(self._handed_over), deque()
            self._changed.notify_all()
        for job in jobs:
            job.unlock()


class QueueWatcher:
    """Watches a folder of the queue for all threads of a state, and wakes one of them on a change. While all of them
    work, there is no watch.

    ``is_empty``: returns whether the state is empty. It stays empty until the watch fires, so no thread checks it
    before.
    """

    def __init__(
        self, hand_off: HandOff, watch: Callable[[], Watch], is_empty: Callable[[], bool], stop: threading.Event
    ) -> None:
        self._hand_off, self._watch, self._is_empty, self._stop = hand_off, watch, is_empty, stop
        self._watching: Watch | None = None

    def turn(self) -> bool:
        """Watch until something happens. Returns False, since a watcher is never busy."""
        if not self._hand_off.wait_for_idle(STOP_POLL_S):
            return False
        watch = self._watching = self._watch()
        try:
            self._hand_off.wake_one()  # in case something happened before the watch existed
            if not self._stop.wait(WATCH_PAUSE_S):
                for _ in range(EMPTY_POLLS if self._is_empty() else 1):
                    if watch.wait(QUIET_POLL_S) or self._stop.is_set():
                        break
        finally:
            watch.close()
        return False

    def close(self) -> None:
        """End the current turn. ``stop`` is set."""
        if self._watching is not None:
            self._watching.close()
