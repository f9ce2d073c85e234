"""Work on jobs, in all states but Processing. The result of the work determines what happens to the job:

==================  ====================================================================================
the work            the job
==================  ====================================================================================
returns             moves on, and is unlocked in the same change
PermanentError      fails, with the reason
TransientError      fails too: its work has tried as often as it may
TryLater            stays, unlocked, and is tried again; others of its state are worked on meanwhile
SlowHost            waits, unlocked, for the lane for slow hosts
StopRequested       is given back as it is
LockLost            is not ours any more: nothing was changed, another does it again
NodeInvalid         was removed, or is damaged: it is given back, and skipped for a minute
StateError          was moved by an operator meanwhile: it is given back
any other           fails: a fault that an operator should see; a full disk counts as TryLater
==================  ====================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from ferryman.errors import DeliveryError, FerrymanError, UsageError, describe
from ferryman.intake import Job, JobQueue, JobState, LockLost, NodeInvalid, QueueRefused, StateError
from ferryman.intake.nodes import state_path
from ferryman.intake.service.errors import TryLater
from ferryman.intake.service.finisher import Finisher, FinishRequest
from ferryman.intake.service.hosts import SLOW_HOST_THREADS
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.scheduler import ERROR_PAUSE_S, QUIET_POLL_S, LaneWatch, PrintLine, Scheduler, WorkLane
from ferryman.intake.service.stages import JobStage, StageResult
from ferryman.intake.states import JOB
from ferryman.storage.files import is_disk_full

FULL_DISK_RETRY_S: Final = 10.0
"""Seconds until a job is tried again after the disk was full."""

RESERVE_JOBS: Final = 2
"""Jobs a thread that may wait, locked, for the threads of a state: enough that none of them has to poll for its next
job, few enough that other servers get the rest, and that little waits for its lock to end after a kill. Not in
Processing, where at most as many are locked as share a turn."""

NEXT_STATE: Final = {JobState.PENDING: JobState.ESTIMATING, **JOB.success}
"""State -> the next state when its work is done."""


class _Place(NamedTuple):
    """Where a job is worked on: by a stage, in a lane."""

    stage: JobStage
    lane: WorkLane


class JobWorker:
    """Works on the jobs of all states but Processing, in lanes of a scheduler.

    A job that has moved to its next state keeps its lock if possible: the thread that has moved it continues with it if
    the next work is quick; otherwise it waits in the lane of that state. If too many wait there, it is unlocked, and
    whoever has time acquires the most urgent one.
    """

    def __init__(
        self,
        queue: JobQueue,
        scheduler: Scheduler,
        finisher: Finisher,
        at_work: CurrentWork,
        isolation: Isolation,
        print_line: PrintLine,
    ) -> None:
        self._queue, self._scheduler, self._finisher, self._print_line = queue, scheduler, finisher, print_line
        self._at_work, self._isolation = at_work, isolation
        self._places: dict[JobState, _Place] = {}
        self.free_places: Callable[[], int] = _no_places
        """Returns how many jobs in Processing may wait, locked, for the plan; none while another process runs it."""
        self.processing = scheduler.add(
            WorkLane("Processing", 0, lambda _: None, lambda job: None, watch=self._lane_watch(JobState.PROCESSING))
        )

    def take_processing(self, count: int) -> Iterator[Job]:
        """Yield locked jobs in Processing, at most ``count``: those that were moved there here, then others."""
        taken = self._scheduler.take(self.processing, count)
        if taken and self._queue.tree.is_paused():
            for job in taken:
                job.unlock()
            return
        yield from taken
        count -= len(taken)
        if not count or not self._scheduler.begin_poll(self.processing):
            return
        found = 0
        try:
            for job in islice(self._queue.acquire_jobs(JobState.PROCESSING), count):
                found += 1
                yield job
                if self._scheduler.stop.is_set():
                    return
        finally:
            self._scheduler.end_poll(self.processing, QUIET_POLL_S if found < count else 0.0)

    def wait_for_processing(self, timeout_s: float) -> bool:
        """Wait until there may be a job in Processing, or the end; at most ``timeout_s`` seconds. Returns whether one
        waits, locked."""
        self._scheduler.wait(self.processing, timeout_s)
        return bool(self.processing.ready)

    def release_processing(self) -> None:
        """Unlock the jobs that wait for the plan, which this process does not run any more."""
        self.free_places = _no_places
        for job in self._scheduler.take(self.processing, sys.maxsize):
            job.unlock()

    def add_stage(self, stage: JobStage, threads: int, slow: JobStage | None) -> None:
        """Work on the jobs of a state. ``slow``: the same stage, waiting for slow hosts."""

        def is_open() -> bool:
            return not self._queue.tree.is_paused() and stage.is_open()

        slow_lane = None
        if slow is not None:
            slow_lane = WorkLane(
                stage.state, SLOW_HOST_THREADS, None, lambda job: self._work(slow_place, job), is_open=is_open
            )
            slow_place = _Place(slow, self._scheduler.add(slow_lane))
        lane = WorkLane(
            stage.state,
            threads,
            partial(self._queue.acquire_job, stage.state),
            lambda job: self._work(place, job),
            watch=self._lane_watch(stage.state),
            slow=slow_lane,
            is_open=is_open,
        )
        self._places[stage.state] = place = _Place(stage, self._scheduler.add(lane))

    def _lane_watch(self, state: JobState) -> LaneWatch:
        def is_empty() -> bool:
            node = self._queue.tree.find(state_path(state))
            return node is not None and not node.children

        return LaneWatch(partial(self._queue.watch_jobs, state), is_empty)

    def _work(self, place: _Place, job: Job) -> bool:
        """Run a stage for a locked job, and move it on. Returns whether that succeeded."""
        return self._attempt(place, job, lambda: self._finish(place, job, self._run_stage(place.stage, job)))

    def _finish(self, place: _Place, job: Job, result: StageResult) -> None:
        """Move a job on: at once, or when its files are durable."""
        if not result.steps:
            self.advance(job, place.stage.state, result)
            return
        request = FinishRequest(
            job, result.steps, partial(self._attempt, place, job), lambda: self.advance(job, place.stage.state, result)
        )
        self._finisher.submit(request)

    def _attempt(self, place: _Place, job: Job, do: Callable[[], None]) -> bool:
        """Do something for a job, and handle errors. Returns whether it succeeded."""
        try:
            try:
                do()
            except DeliveryError as e:
                self._fail(place, job, str(e))
            except OSError as e:
                if is_disk_full(e):
                    raise TryLater("the disk is full", FULL_DISK_RETRY_S) from None
                self._fail(place, job, describe(e))
            except (QueueRefused, StateError):
                raise
            except UsageError as e:  # no lock can have such a name
                self._fail(place, job, str(e))
            except FerrymanError:
                raise
            except Exception as e:  # catch everything: an error affects this job and no other
                self._fail(place, job, describe(e))
            else:
                return True
        except TryLater as e:
            self._scheduler.try_later(place.lane, job, e)
        except NodeInvalid as e:
            self._queue.pass_over(job.id, f"{job.id}: {e}")
            job.unlock()
        except (LockLost, StateError) as e:
            self._print_line(f"{job.id}: {e}")
            job.unlock()
            self._scheduler.pause(place.lane, ERROR_PAUSE_S)
        return False

    def _run_stage(self, stage: JobStage, job: Job) -> StageResult:
        """Run a stage and return its result; in a child process if a process may have died of this job."""
        if not stage.isolates:
            return stage.work(job)
        return self._at_work.run(job.id, lambda: stage.work(job), lambda: self._isolation.run_stage(job, stage.state))

    def advance(self, job: Job, state: JobState, result: StageResult, *, goes_on: bool = True) -> None:
        """Move a job from a state to the next one. ``goes_on``: this thread may do the next work itself if it is quick.

        Raises as ``Job.set_status``.
        """
        next_state = NEXT_STATE[state]
        place = self._places.get(next_state)
        is_quick = place is not None and place.stage.is_quick(job, result) and result.priority is None
        continues_here = goes_on and place is not None and is_quick and self._is_open(place)
        lane = self.lane_of(next_state)
        keep_lock = continues_here or (lane is not None and self._has_room(lane))
        for moved in (self.lane_of(state), lane):
            if moved is not None:
                moved.has_own_moves = True
        keep_lock = job.advance(
            result.message,
            priority=result.priority,
            values=result.values,
            space_needed=result.space_needed,
            keep_lock=keep_lock,
        )
        if result.obsolete_file is not None:
            result.obsolete_file.unlink(missing_ok=True)
        if place is not None and keep_lock and continues_here:
            self._work(place, job)
        elif lane is not None and not (keep_lock and self._scheduler.put(lane, job)):
            job.unlock()
            self._scheduler.wake(lane, at_once=True)

    def lane_of(self, state: JobState) -> WorkLane | None:
        if state is JobState.PROCESSING:
            return self.processing
        return self._places[state].lane if state in self._places else None

    def _is_open(self, place: _Place) -> bool:
        return not self._scheduler.stop.is_set() and place.stage.is_open()

    def _has_room(self, lane: WorkLane) -> bool:
        waiting = self.free_places() if lane is self.processing else RESERVE_JOBS * lane.threads
        return self._scheduler.has_room(lane, waiting)

    def _fail(self, place: _Place, job: Job, why: str) -> None:
        self._print_line(f"{job.id}: failed in {place.stage.state}: {why}")
        job.fail(why, unlock=True)


def _no_places() -> int:
    return 0
