"""Threads that take jobs of one state, and what becomes of a job by how its work ended.

==================  ====================================================================================
the work            the job
==================  ====================================================================================
returns             moves on; move and lock in one change
PermanentError      fails, with the reason
TransientError      fails too: its work has tried as often as it may
Later               stays, locked, and is tried again; others of its state are looked at meanwhile
SlowHost            is handed over to a thread for slow hosts
Stopping            is given back as it is
LockLost            is not ours any more: nothing was changed, another does it again
NodeInvalid         was removed, or is damaged: it is given back, and passed over for a minute
StateError          was moved by an operator meanwhile: it is given back
any other           fails: a fault that an operator should see; a full disk is Later
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
from ferryman.intake.service.errors import Later, Stopping
from ferryman.intake.service.finisher import Finisher, Pledge
from ferryman.intake.service.hosts import SlowHost, SlowLane
from ferryman.intake.service.isolation import AtWork, Isolation
from ferryman.intake.service.stages import Done, JobStage
from ferryman.intake.states import JOB
from ferryman.intake.store import Watch
from ferryman.storage.files import is_disk_full

POLL_S: Final = 0.5
"""A thread looks so often whether it is to stop, and whether what waits is due; a watch tells it of new jobs."""

QUIET_LOOKS: Final = 4
"""Times ``POLL_S`` until a thread without batches asks for one though no watch has told of any."""

LOST_PAUSE_S: Final = 1.0
"""Between two tries while the queue's server does not answer."""

FULL_AGAIN_S: Final = 10.0
"""Until a job is tried again that met a full disk."""

AFTER: Final = {JobState.PENDING: JobState.ESTIMATING, **JOB.success}
"""The state that follows when the work of one is done."""

Say = Callable[[str], None]


class Loop:
    """A thread that takes turns until it is told to stop.

    Args:
        turn: one turn. False: there was nothing to do.
        wait: called after such a turn with ``POLL_S``. It waits longer where it is told of what comes, and of the end.
        release: called at the end: gives back what is held.
    """

    def __init__(
        self,
        name: str,
        stop: threading.Event,
        turn: Callable[[], bool],
        say: Say,
        *,
        wait: Callable[[float], object] | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._stop, self._turn, self._say, self._release = stop, turn, say, release
        self._wait = wait or stop.wait
        self._thread = threading.Thread(target=self._run, name=f"intake {name}", daemon=True)
        self.idle = threading.Event()
        """Set while there is nothing to do."""
        self._lost = False

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end. Has it ended?"""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        finally:
            with suppress(FerrymanError):
                self._release()

    def _once(self) -> None:
        try:
            if self._turn():
                self.idle.clear()
            else:
                self.idle.set()
                self._wait(POLL_S)
            self._lost = False
        except Stopping:
            return
        except (LockLost, NodeInvalid, StateError) as e:
            self._say(f"{e}")
            self._stop.wait(POLL_S)  # whatever it is, it is not said a thousand times
        except QueueLost as e:
            self.idle.clear()
            if not self._lost:
                self._say(f"{e}")
            self._lost = True
            self._stop.wait(LOST_PAUSE_S)
        except Exception as e:  # a fault of ours: say it, and go on with the rest
            self._say(f"{self._thread.name}: {describe(e)}")
            self._stop.wait(LOST_PAUSE_S)


class Worker:
    """Takes jobs of a station's state, one after the other. Each thread has its own."""

    def __init__(
        self,
        queue: JobQueue,
        station: JobStage,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_work: AtWork,
        isolation: Isolation,
        finisher: Finisher,
        stop: threading.Event,
        desks: Mapping[JobState, Desk],
        carriers: Mapping[JobState, Carrier],
        lane: SlowLane[Job] | None = None,
    ) -> None:
        self._desks, self._carriers = desks, carriers
        self._lane, self._finisher, self._stop = lane, finisher, stop
        self._queue, self._station, self._say, self._clock = queue, station, say, clock
        self._at_work, self._isolation = at_work, isolation
        self._waiting: list[tuple[float, Job]] = []
        """(when to try again, job), each locked."""

    @property
    def state(self) -> JobState:
        """Return the state of the jobs that it works at."""
        return self._station.state

    def turn(self) -> bool:
        """Work at one job. False: there is none, or none that can be worked at now.

        Raises:
            QueueLost.
            Stopping.
        """
        given = self._given()
        if given is not None and not self._station.open():
            given.unlock()
            given = None
        job = given or self._due()
        if job is None and self._station.open():
            job = self._next()
        if job is None:
            return False
        return self._work(job)

    def _given(self) -> Job | None:
        """Return a job handed over by a thread of the state before."""
        return self._desks[self._station.state].take()

    def _next(self) -> Job | None:
        job = self._queue.acquire_job(self._station.state)
        if job is not None:
            self._desks[self._station.state].call()  # there may be more
        return job

    def wait(self, timeout_s: float) -> None:
        """Until a job is handed over or there may be one in the state, or the desk is closed; while jobs wait here, at
        most so long."""
        self._desks[self._station.state].wait(timeout_s if self._waiting else None)

    def release(self) -> None:
        """Give back what waits."""
        self._desks[self._station.state].close()
        for _, job in self._waiting:
            job.unlock()
        self._waiting.clear()

    def _due(self) -> Job | None:
        now = self._clock()
        self._waiting = [(due, job) for due, job in self._waiting if job.locked]
        for at, (due, job) in enumerate(self._waiting):
            if due <= now:
                del self._waiting[at]
                return job
        return None

    def _work(self, job: Job) -> bool:
        """False: the job went from under our hands; a pause does no harm."""

        return self._attempt(job, lambda: self._worked(job, self._outcome(job)), partial(self._later, job))

    def _later(self, job: Job, e: Later) -> None:
        if isinstance(e, SlowHost) and self._lane is not None:
            self._lane.give(job)
        elif job.locked:
            self._waiting.append((self._clock() + e.after_s, job))

    def _worked(self, job: Job, done: Done) -> None:
        """It moves on, at once or when what it has written is durable."""
        if not done.steps:
            self._done(job, done)
            return
        self._finisher.give(Pledge(job, done.steps, partial(self._finishing, job), lambda: self._done(job, done)))

    def _finishing(self, job: Job, do: Callable[[], None]) -> bool:
        """A step of a job that the finisher has. Was it done? Whose time has not come is given back."""
        was_done = False

        def step() -> None:
            nonlocal was_done
            do()
            was_done = True

        return self._attempt(job, step, lambda e: job.unlock()) and was_done

    def _attempt(self, job: Job, do: Callable[[], None], later: Callable[[Later], None]) -> bool:
        """Do something for a job; what it raises decides what becomes of the job. False: it went from under our
        hands."""
        try:
            try:
                do()
            except DeliveryError as e:
                self._fail(job, str(e))
            except OSError as e:
                if is_disk_full(e):
                    raise Later("the disk is full", FULL_AGAIN_S) from None
                self._fail(job, describe(e))
            except (QueueRefused, StateError):
                raise
            except UsageError as e:  # no lock can have such a name
                self._fail(job, str(e))
            except FerrymanError:
                raise
            except Exception as e:  # whatever it is, it is this job's end and no other's
                self._fail(job, describe(e))
        except Later as e:
            later(e)
        except NodeInvalid as e:
            self._queue.pass_over(job.id, f"{job.id}: {e}")
            job.unlock()
            return False
        except (LockLost, StateError) as e:
            self._say(f"{job.id}: {e}")
            job.unlock()
            return False
        except BaseException:
            job.unlock()
            raise
        return True

    def _outcome(self, job: Job) -> Done:
        """Run the stage and return its outcome; in a child process where a process may have died of the job."""
        if not self._station.isolates:
            return self._station.work(job)
        state = self._station.state
        return self._at_work.work(job.id, lambda: self._station.work(job), lambda: self._isolation.work(job, state))

    def _done(self, job: Job, done: Done) -> None:
        """It moves on. This thread goes on with it where the work is quick; else a thread that has nothing to do takes
        it over, lock and all, if there is one."""
        after = AFTER[self._station.state]
        carrier, desk = self._carriers.get(after), self._desks.get(after)
        carries = carrier is not None and done.priority is None and carrier.takes(job, done)
        holds = job.go_on(
            done.message,
            priority=done.priority,
            values=done.values,
            space_needed=done.space_needed,
            holding=carries or (desk is not None and desk.has_idle()),
        )
        if done.leaves is not None:
            done.leaves.unlink(missing_ok=True)
        if carrier is not None and holds and carries:
            carrier.work(job)
        elif desk is not None and not (holds and desk.give(job)):
            job.unlock()
            desk.call()

    def _fail(self, job: Job, why: str) -> None:
        self._say(f"{job.id}: failed in {self._station.state}: {why}")
        job.fail(why, unlock=True)


class SlowWorker(Worker):
    """Takes the jobs that another one met a slow host with. Its station waits for slow hosts."""

    def __init__(self, *given: Any, takes: SlowLane[Job], **named: Any) -> None:
        super().__init__(*given, **named)
        self._takes = takes

    def release(self) -> None:
        super().release()
        self._takes.close()

    def _given(self) -> Job | None:
        return None

    def _next(self) -> Job | None:
        return self._takes.take()

    def wait(self, timeout_s: float) -> None:
        self._takes.wait(timeout_s if self._waiting else None)


class Carrier(Worker):
    """Goes on with a job in its state, in the thread that has moved it there, where that is quick.

    The threads of the state are there beside it: the most urgent job is theirs. What turns out to take longer is theirs
    too.
    """

    def takes(self, job: Job, done: Done) -> bool:
        """Return whether the next work of a job about to enter this state is quick."""
        return not self._stop.is_set() and self._station.is_quick(job, done) and self._station.open()

    def work(self, job: Job) -> None:
        """Go on with a job that is locked, and was moved to this state."""
        self._work(job)

    def _later(self, job: Job, e: Later) -> None:
        job.unlock()
        self._desks[self._station.state].call()


# Where the threads of one state wait, and take over jobs from the threads of the state before, lock and all.
#
# A thread that has nothing to do has just looked: no more urgent job waits in its state. So whoever moves a job into
# that state may give it to this thread, and the lock need not be given back and taken again. Where all threads are
# busy the job is unlocked, and the most urgent one comes first.

LOOK_AGAIN_S: Final = 0.05
"""Between two looks while jobs come and go all the time: the first of them is seen at once, and whoever finds one calls
another thread."""

IDLE_POLL_S: Final = 0.5
"""It looks so often whether it is to stop."""

QUIET_S: Final = 2.0
"""One thread looks for a job so often though no watch has told of any: only a lock that ended with its process is to be
found then."""

EMPTY_LOOKS: Final = 30
"""Times ``QUIET_S`` until it looks into an empty state though its watch has not told of any job."""


class Desk:
    """Hands locked jobs to idle threads of one job state."""

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
        """Return whether a thread is idle, so that a job can be handed to it."""
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
        if not self._desk.is_attended(IDLE_POLL_S):
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
