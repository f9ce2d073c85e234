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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from ferryman import crash
from ferryman.errors import DeliveryError, FerrymanError, UsageError, describe
from ferryman.intake import Job, JobQueue, JobState, LockLost, NodeInvalid, QueueRefused, StateError
from ferryman.intake.job import Advance, advance_all
from ferryman.intake.nodes import state_path
from ferryman.intake.service.errors import TryLater
from ferryman.intake.service.fetch import SLOW_HOST_THREADS
from ferryman.intake.service.finisher import Finisher, FinishRequest
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.scheduler import (
    ERROR_PAUSE_S,
    QUIET_POLL_S,
    GroupWork,
    LaneWatch,
    PrintLine,
    Scheduler,
    WorkLane,
)
from ferryman.intake.service.stages import JobStage, StageResult
from ferryman.intake.states import JOB
from ferryman.storage.files import is_disk_full

FULL_DISK_RETRY_S: Final = 10.0
"""Seconds until a job is tried again after the disk was full."""

RESERVE_JOBS: Final = 2
"""Jobs a thread, or groups of the lane's present size, that may wait, locked, for the threads of a state: enough that
none of them has to poll for its next job, few enough that other servers get the rest, and that little waits for its
lock to end after a kill. Not in Processing, where at most as many are locked as share a turn."""

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
    whoever has time acquires the most urgent one. Jobs whose work is quick go through these states in groups: each move
    of all of them is one change of the queue.
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
        finisher.advance = self._advance_finished
        self.free_places: Callable[[], int] = _no_places
        """Returns how many jobs in Processing may wait, locked, for the plan; none while another process runs it."""
        self.processing = scheduler.add(
            WorkLane("Processing", 0, lambda _: None, lambda job: None, watch=self._lane_watch(JobState.PROCESSING))
        )

    def take_processing(self, count: int) -> Iterator[list[Job]]:
        """Yield locked jobs in Processing, at most ``count``: those that were moved there here, then others."""
        taken = self._scheduler.take(self.processing, count)
        if taken and self._queue.tree.is_paused():
            for job in taken:
                job.unlock()
            return
        if taken:
            yield taken
        count -= len(taken)
        if not count or self._scheduler.stop.is_set() or not self._scheduler.begin_poll(self.processing):
            return
        found: list[Job] = []
        try:
            found = self._queue.acquire_many(JobState.PROCESSING, count)
        finally:
            self._scheduler.end_poll(self.processing, QUIET_POLL_S if len(found) < count else 0.0)
        if found:
            yield found

    def wait_for_processing(self, timeout_s: float) -> None:
        """Wait until there may be a job in Processing, or the end; at most ``timeout_s`` seconds."""
        self._scheduler.wait(self.processing, timeout_s)

    def arrived_at(self) -> float:
        """Return when the last job came to wait for the plan, locked, as monotonic time; 0: none waits, or as many as
        may."""
        return self.processing.put_at if 0 < len(self.processing.ready) < self.free_places() else 0.0

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
        lane.group = GroupWork(
            lambda skip, count: self._queue.acquire_many(stage.state, count, skip),
            lambda jobs: self._work_group(place, jobs),
        )
        self._places[stage.state] = place = _Place(stage, self._scheduler.add(lane))

    def _lane_watch(self, state: JobState) -> LaneWatch:
        def is_empty() -> bool:
            node = self._queue.tree.find(state_path(state))
            return node is not None and not node.children

        return LaneWatch(partial(self._queue.watch_jobs, state), is_empty)

    def _work_group(self, place: _Place, jobs: list[Job]) -> bool:
        """Work on locked jobs whose work is quick together; on another one only alone, and leave the rest of these to
        other threads. Returns whether the work on all of them was quick."""
        quick = [job for job in jobs if self._is_quick(place.stage, job)]
        others = [job for job in jobs if job not in quick]
        rest = others if quick else others[1:]
        if rest and not self._scheduler.put(place.lane, *rest):
            for job in rest:
                job.unlock()
        self._work_all(place, quick or others[:1])
        return not others

    def _work(self, place: _Place, job: Job) -> None:
        """Run a stage for a locked job, and move it on."""
        self._work_all(place, [job])

    def _work_all(self, place: _Place, jobs: Sequence[Job]) -> None:
        """Run a stage for locked jobs, one after another, and move them on: at once, or when their files are
        durable."""
        results: dict[Job, StageResult] = {}
        owned = set(jobs)  # which this thread unlocks if it cannot go on
        try:
            for job in jobs:
                if not self._attempt(place, job, partial(self._run_stage, place.stage, job, results)):
                    owned.discard(job)
            unsynced = [
                FinishRequest(job, result.steps, partial(self._attempt, place, job), place.stage.state, result)
                for job, result in results.items()
                if result.steps
            ]
            owned.difference_update(results)  # handed over, or unlocked by these calls
            if unsynced:
                self._finisher.submit(*unsynced)
            self._advance_or_fail(place, [(job, result) for job, result in results.items() if not result.steps])
        except BaseException:
            for job in owned:
                with suppress(FerrymanError):
                    job.unlock()
            raise

    def _advance_finished(self, requests: Sequence[FinishRequest]) -> None:
        """Move jobs on whose files are durable."""
        by_state: dict[JobState, list[tuple[Job, StageResult]]] = defaultdict(list)
        for request in requests:
            by_state[request.state].append((request.job, request.result))
        for state, moves in by_state.items():  # QueueLost in one of them: the locks of the others are lost, too
            self._advance_or_fail(self._places[state], moves)

    def _advance_or_fail(self, place: _Place, moves: Sequence[tuple[Job, StageResult]]) -> None:
        for (job, _), error in zip(moves, self.advance_all(place.stage.state, moves), strict=True):
            if error is not None:
                self._attempt(place, job, partial(_raise, error))

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

    def _run_stage(self, stage: JobStage, job: Job, results: dict[Job, StageResult]) -> None:
        """Run a stage and add its result; in a child process if a process may have died of this job."""
        results[job] = (
            self._at_work.run(job.id, lambda: stage.work(job), lambda: self._isolation.run_stage(job, stage.state))
            if stage.isolates
            else stage.work(job)
        )

    def advance_all(
        self, state: JobState, moves: Sequence[tuple[Job, StageResult]], *, goes_on: bool = True
    ) -> list[Exception | None]:
        """Move locked jobs from a state to the next one, together. Returns for each the error that ``Job.set_status``
        would raise; such a job stays locked if it was. The others are handed on or unlocked.

        Args:
            goes_on: this thread may do the next work itself if it is quick.

        Raises:
            QueueLost: all of them were unlocked.
        """
        next_state = NEXT_STATE[state]
        place, lane = self._places.get(next_state), self.lane_of(next_state)
        results: list[bool | Exception] = []
        try:
            quick = [
                place is not None and result.priority is None and self._is_quick(place.stage, job)
                for job, result in moves
            ]
            is_open = goes_on and place is not None and any(quick) and self._is_open(place)
            continuing = {job for (job, _), is_quick in zip(moves, quick, strict=True) if is_open and is_quick}
            room = self._room(lane, all_quick=all(quick))
            waiting = {job for job, _ in [move for move in moves if move[0] not in continuing][:room]}
            for moved in (self.lane_of(state), lane):
                if moved is not None:
                    moved.has_own_moves = True
            results += advance_all(
                self._queue.tree,
                [
                    Advance(job, r.message, r.priority, r.values, r.space_needed, job in continuing or job in waiting)
                    for job, r in moves
                ],
            )
        except BaseException:
            for job, _ in moves:
                with suppress(FerrymanError):
                    job.unlock()
            raise
        crash.point("jobs.moved")
        kept = []
        for at, (job, result) in enumerate(moves):
            try:
                if result.obsolete_file is not None and not isinstance(results[at], Exception):
                    result.obsolete_file.unlink(missing_ok=True)
            except OSError as e:
                results[at] = e
            if results[at] is True:
                kept.append(job)
        if lane is not None:
            ready = [job for job in kept if job in waiting]
            is_put = not ready or self._scheduler.put(lane, *ready)
            for job in [] if is_put else ready:
                job.unlock()
            if not is_put or False in results:
                self._scheduler.wake(lane, at_once=True)
        if place is not None and (jobs := [job for job in kept if job in continuing]):
            self._work_all(place, jobs)
        return [each if isinstance(each, Exception) else None for each in results]

    def lane_of(self, state: JobState) -> WorkLane | None:
        if state is JobState.PROCESSING:
            return self.processing
        return self._places[state].lane if state in self._places else None

    def _is_open(self, place: _Place) -> bool:
        return not self._scheduler.stop.is_set() and place.stage.is_open()

    def _is_quick(self, stage: JobStage, job: Job) -> bool:
        """Return whether a stage's work on a job is quick; not if that cannot be found out, which its work will
        report."""
        try:
            return stage.is_quick(job)
        except Exception:
            return False

    def _room(self, lane: WorkLane | None, *, all_quick: bool) -> int:
        """Return how many more jobs may wait in a lane, locked."""
        if lane is None:
            return 0
        reserve = RESERVE_JOBS * lane.threads * (lane.group_items if all_quick else 1)
        return self._scheduler.room(lane, self.free_places() if lane is self.processing else reserve)

    def _fail(self, place: _Place, job: Job, why: str) -> None:
        self._print_line(f"{job.id}: failed in {place.stage.state}: {why}")
        job.fail(why, unlock=True)


def _raise(error: Exception) -> None:
    raise error


def _no_places() -> int:
    return 0
