"""Jobs that go on without being unlocked: in the thread that has moved them, or in one that has nothing to do."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake import JobState, QueueLost
from ferryman.intake.queue import Acquirer
from ferryman.intake.service import stages
from ferryman.intake.service.errors import SlowHost, TryLater
from ferryman.intake.service.fetch import FetchedFile
from ferryman.intake.service.scheduler import (
    GROUP_ITEMS,
    GROUP_S,
    LONGEST_WAIT_S,
    QUIET_POLL_S,
    GroupWork,
    LaneWatch,
    Scheduler,
    WorkLane,
)
from ferryman.intake.service.stages import StageResult
from ferryman.intake.service.workers import RESERVE_JOBS
from tests.intake.service.place import Place, until


class HeldJob:
    """A job, as far as a scheduler needs one. ``is_taken``: others have it once it was unlocked."""

    def __init__(self, priority: int = 5, id: str = "jid1", is_taken: bool = False) -> None:
        self.id, self.urgency, self.locked, self.is_taken = id, (priority, id), True, is_taken

    def unlock(self) -> None:
        self.locked = False

    def acquire_again(self) -> bool:
        self.locked = not (self.locked or self.is_taken)
        return self.locked


class World:
    """A scheduler whose clock stands still, and what its threads have worked on."""

    def __init__(self) -> None:
        self.now, self.stop, self.done, self.lines = 0.0, threading.Event(), list[Any](), list[str]()
        self.scheduler = Scheduler(self.stop, self.lines.append, HeldJob.acquire_again, lambda: self.now)

    def lane(self, threads: int, work: Callable[[Any], object] | None = None, **options: Any) -> WorkLane:
        return self.scheduler.add(WorkLane("test", threads, None, work or self.done.append, **options))

    def close(self) -> None:
        self.stop.set()
        self.scheduler.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_the_most_urgent_job_that_is_ready_comes_first(world: World) -> None:
    """Of jobs of one priority the oldest; a job whose lock was lost is dropped."""
    lane = world.lane(1)
    jobs = [HeldJob(5, "jid1"), HeldJob(5, "jid2"), HeldJob(1, "jid3"), HeldJob(0, "jid4")]
    jobs[3].locked = False
    for job in (jobs[1], jobs[0], jobs[3], jobs[2]):
        world.scheduler.put(lane, job)
    world.scheduler.start()
    until(lambda: len(world.done) == 3)
    assert world.done == [jobs[2], jobs[0], jobs[1]]


def test_a_more_urgent_job_of_the_queue_is_not_passed_over(world: World) -> None:
    """For one that waits here: a thread looks before it takes one."""
    urgent, waiting = HeldJob(1, "jid9"), HeldJob(5, "jid1")
    lane = world.lane(1)
    there = [urgent]
    lane.acquire, lane.poll_at = lambda skip: there.pop() if there else None, 0.0
    world.scheduler.put(lane, waiting)
    world.scheduler.start()
    until(lambda: len(world.done) == 2)
    assert world.done == [urgent, waiting]


def test_a_lane_has_as_many_threads_as_it_was_given(world: World) -> None:
    """However many items wait there; the threads of other lanes are free."""
    going_on, at_work = threading.Event(), list[Any]()

    def work(item: Any) -> None:
        at_work.append(item)
        assert going_on.wait(300)

    full, other = world.lane(2, work), world.lane(1)
    world.scheduler.start()
    for n in range(5):
        world.scheduler.put(full, HeldJob(5, f"jid{n}"))
    until(lambda: len(at_work) == 2)
    world.scheduler.put(other, HeldJob())
    until(lambda: len(world.done) == 1)
    assert (len(at_work), full.busy, len(full.ready)) == (2, 2, 3)
    assert [world.scheduler.room(full, waiting) for waiting in (2, 3, 4)] == [0, 0, 1]
    going_on.set()
    until(lambda: len(at_work) == 5)


def test_what_cannot_be_done_now_is_tried_again_when_it_is_time(world: World) -> None:
    """Others are worked on meanwhile; an item on a slow host goes to the lane for those. Nobody holds what waits;
    one that others have taken meanwhile is left to them."""
    slow_done, tries = list[Any](), list[Any]()

    def work(item: Any) -> None:
        tries.append(item)
        if item is slow:
            raise SlowHost("host")
        if item in (later, taken) and tries.count(item) == 1:
            raise TryLater("not now", 60.0)
        world.done.append(item)

    slow_lane = world.lane(1, slow_done.append)
    lane = world.lane(1, work, slow=slow_lane)
    later, slow, good = HeldJob(1, "jid1"), HeldJob(2, "jid2"), HeldJob(3, "jid3")
    taken = HeldJob(0, "jid0", is_taken=True)
    for job in (later, taken, slow, good):
        world.scheduler.put(lane, job)
    world.scheduler.start()
    until(lambda: world.done == [good] and slow_done == [slow])
    assert not later.locked
    assert lane.waiting_ids == {"jid0", "jid1"}
    world.now = 60.0
    last = HeldJob(9, "jid4")
    world.scheduler.put(lane, last)
    until(lambda: len(world.done) == 3)
    assert world.done[1:] == [later, last]
    assert later.locked
    assert (lane.waiting_ids, lane.attempts, tries.count(taken)) == (set(), {}, 1)


def test_what_waits_for_a_slow_host_is_locked_by_nobody(world: World) -> None:
    """Looks skip it meanwhile; a thread for slow hosts acquires it when it is free."""
    going_on, at_work, skipped = threading.Event(), list[Any](), list[set[str]]()

    def work_slowly(item: Any) -> None:
        at_work.append(item)
        assert going_on.wait(300)

    def work(item: Any) -> None:
        raise SlowHost("host")

    slow_lane = world.lane(1, work_slowly)
    lane = world.lane(1, work, slow=slow_lane)
    lane.acquire = lambda skip: skipped.append(set(skip))
    jobs = [HeldJob(5, f"jid{n}") for n in range(5)]
    for job in jobs:
        world.scheduler.put(lane, job)
    world.scheduler.start()
    until(lambda: len(slow_lane.waiting) == 4 and len(at_work) == 1)
    assert [job for job in jobs if job.locked] == at_work
    world.scheduler.wake(lane, at_once=True)
    until(lambda: bool(skipped))
    assert skipped == [{job.id for job in jobs} - {at_work[0].id}]
    going_on.set()
    until(lambda: len(at_work) == 5)
    assert (lane.waiting_ids, lane.attempts) == (set(), {})


def test_pauses_between_attempts_double_up_to_a_limit(world: World) -> None:
    """Since each attempt acquires the item anew; the first pause is as long as the error says."""
    lane, job = world.lane(0), HeldJob()
    pauses = []
    for after_s in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 30.0, 0.0):
        world.scheduler.try_later(lane, job, TryLater("not now", after_s))
        pauses.append(lane.waiting.pop()[0])
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_WAIT_S, LONGEST_WAIT_S, 30.0, 0.0]


def test_an_item_of_a_lane_that_was_closed_is_not_started(world: World) -> None:
    """However long it has been ready: it is unlocked, and looked for again when the lane may be open."""
    opened, jobs, looks = [False], [HeldJob(5, f"jid{n}") for n in range(5)], list[float]()
    lane = world.lane(2, is_open=lambda: opened[0])
    lane.acquire = lambda skip: looks.append(world.now)
    for job in jobs:
        world.scheduler.put(lane, job)
    world.scheduler.start()
    until(lambda: not any(job.locked for job in jobs))
    until(lambda: lane.busy == 0)
    assert world.done == []
    opened[0], world.now = True, QUIET_POLL_S
    world.scheduler.put(lane, HeldJob())
    until(lambda: bool(looks) and len(world.done) == 1)


def test_a_call_that_came_during_a_look_is_heard(world: World) -> None:
    """Whoever has looked before the call looks again."""
    looks = list[int]()

    def acquire(skip: object) -> None:
        looks.append(len(looks))
        if len(looks) == 1:
            world.scheduler.wake(lane, at_once=True)

    lane = world.lane(1)
    lane.acquire, lane.poll_at = acquire, 0.0
    world.scheduler.start()
    until(lambda: len(looks) == 2)
    until(lambda: not lane.is_polling and lane.poll_at > 0.0)
    assert len(looks) == 2


def test_at_the_end_jobs_are_given_back(world: World) -> None:
    """Those that nobody has taken, and those that come later; nobody waits any more."""
    lane, jobs = world.lane(0), [HeldJob(), HeldJob()]
    world.scheduler.put(lane, jobs[0])
    world.close()
    world.scheduler.try_later(lane, jobs[1], TryLater("not now"))
    assert [job.locked for job in jobs] == [False, False]
    assert lane.waiting == []
    assert not world.scheduler.put(lane, HeldJob())
    assert world.scheduler.room(lane, 5) == 0
    world.scheduler.wait(lane, 300.0)


def test_an_error_gives_the_item_back_and_pauses_its_lane(world: World) -> None:
    """A lost queue is reported once, however often it is tried; the threads go on."""

    def work(item: Any) -> None:
        raise QueueLost("no server answers") if item.urgency[0] == 5 else KeyError("odd")

    lane, jobs = world.lane(1, work), [HeldJob(5, f"jid{n}") for n in range(3)]
    odd = HeldJob(9)
    world.scheduler.start()
    for job in [*jobs, odd]:
        world.scheduler.put(lane, job)
    until(lambda: not odd.locked)
    assert not any(job.locked for job in jobs)
    until(lambda: len(world.lines) == 2)
    assert world.lines[0] == "no server answers"
    assert "KeyError" in world.lines[1]


def test_nobody_looks_out_while_all_work(world: World) -> None:
    """A watch of a long list is not made for nothing: not by the threads of another lane, which have time, either."""
    going_on, watches = threading.Event(), list[Any]()
    lane = world.lane(1, lambda item: going_on.wait(300), watch=LaneWatch(watches.append))  # type: ignore[arg-type]
    lane.acquire = lambda skip: None
    other = world.lane(1)
    world.scheduler.put(lane, HeldJob())
    world.scheduler.start()
    until(lambda: lane.busy == 1)
    world.scheduler.wake(lane, at_once=True)
    assert lane.next_at() == 0.0
    world.scheduler.put(other, HeldJob())
    until(lambda: len(world.done) == 1 and other.busy == 0)  # whoever was free has looked for the most urgent lane
    assert watches == []
    lane.watching = LaneWatch()
    going_on.set()


def test_groups_grow_while_work_is_quick(world: World) -> None:
    """Doubling up to a limit; after work that was not quick, or took long, they begin with one again."""
    asked, groups, answers = list[int](), list[int](), [True] * 7 + [False, True, True]

    def acquire(skip: object, count: int) -> list[Any]:
        asked.append(count)
        return [HeldJob(5, f"jid{len(asked)}-{n}") for n in range(count)] if answers else []

    def work(items: list[Any]) -> bool:
        groups.append(len(items))
        world.now += GROUP_S + 1 if len(answers) == 2 else 0
        return answers.pop(0)

    lane = world.lane(1)
    lane.group, lane.acquire, lane.poll_at = GroupWork(acquire, work), lambda skip: None, 0.0
    world.scheduler.start()
    until(lambda: not answers and not lane.busy and not lane.ready)
    assert groups == [1, 2, 4, 8, 16, GROUP_ITEMS, GROUP_ITEMS, GROUP_ITEMS, 1, 1]
    assert asked[: len(groups)] == groups


def test_a_group_is_of_the_most_urgent_items(world: World) -> None:
    """That are still locked; what has come meanwhile goes before the rest."""
    groups = list[list[Any]]()

    def work(items: list[Any]) -> bool:
        groups.append([item.id for item in items])
        if len(groups) == 1:
            world.scheduler.put(lane, HeldJob(0, "jid8"))
        return True

    lane = world.lane(1)
    lane.group, lane.group_items = GroupWork(lambda skip, count: [], work), 2
    jobs = [HeldJob(5, f"jid{n}") for n in range(6)]
    jobs[1].locked = False
    world.scheduler.put(lane, *jobs)
    world.scheduler.start()
    until(lambda: sum(map(len, groups)) == 6)
    assert groups[0] == ["jid0"]
    assert groups[1] == ["jid8", "jid2", "jid3", "jid4"]


def test_a_slow_job_holds_up_no_quick_one(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a group is slow: the others move on while it is worked on, and other threads take those like it."""
    submitted(intake, 12)
    going_on, slow = threading.Event(), list[str]()
    is_quick, work = stages.Estimating.is_quick, stages.Estimating.work

    def maybe_quick(self: stages.Estimating, job: Any) -> bool:
        return int(job.id[-1]) % 6 != 3 and is_quick(self, job)

    def wait(self: stages.Estimating, job: Any) -> StageResult:
        if not maybe_quick(self, job):
            slow.append(job.id)
            assert going_on.wait(300)
        return work(self, job)

    monkeypatch.setattr(stages.Estimating, "is_quick", maybe_quick)
    monkeypatch.setattr(stages.Estimating, "work", wait)
    with intake.served():
        until(lambda: len(slow) == 2 and len(intake.queue.list_jobs("Completed")) == 10)
        going_on.set()
        until(lambda: len(intake.queue.list_jobs("Completed")) == 12)
    assert intake.queue.audit() == []


@pytest.fixture
def acquired(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """State -> how many jobs were acquired in it."""
    found: dict[str, int] = defaultdict(int)
    many = Acquirer.acquire_many

    def counted(self: Acquirer, state: JobState, *args: Any) -> list[Any]:
        jobs = many(self, state, *args)
        if jobs:
            found[state.value] += len(jobs)
        return jobs

    monkeypatch.setattr(Acquirer, "acquire_many", counted)
    return found


@pytest.fixture
def intake(place: Path) -> Place:
    return Place(place)


def submitted(intake: Place, count: int, **columns: Any) -> None:
    rows = [intake.row(f"{n}.txt", local_id=f"object {n}", **columns) for n in range(count)]
    intake.submit(manifest_url=intake.manifest(rows))


def test_quick_work_needs_no_other_thread(intake: Place, acquired: dict[str, int]) -> None:
    """A small job of this machine's files is locked once, for its whole way."""
    count = intake.serving.threads * RESERVE_JOBS  # of one turn, all that may wait after it
    stop = threading.Event()
    serving = threading.Thread(target=lambda: intake.serve(stop, once=False))
    serving.start()
    intake.submit(payload_url=intake.put("first.txt", "a").as_uri(), local_id="first")
    until(lambda: list(intake.jobs().values()) == ["Completed"])  # the plan runs: jobs in Processing may wait for it
    acquired.clear()
    submitted(intake, count)
    until(lambda: list(intake.jobs().values()) == ["Completed"] * (count + 1))
    stop.set()
    serving.join()
    assert acquired == {"Pending": count}
    assert len(intake.rows()) == count + 1
    assert intake.queue.audit() == []


def test_what_is_to_be_isolated_is_left_to_its_own_threads(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that cannot be gone on with now is unlocked in its new state, and ends as any other."""
    submitted(intake, 3)
    tries: dict[str, int] = defaultdict(int)
    work = stages.Provisioning.work

    def later_once(self: stages.Provisioning, job: Any) -> StageResult:
        tries[job.id] += 1
        if tries[job.id] == 1:
            raise stages.TryLater("not now", 0.0)
        return work(self, job)

    monkeypatch.setattr(stages.Provisioning, "work", later_once)
    intake.serve()
    assert set(tries.values()) == {2}
    assert set(intake.jobs().values()) == {"Completed"}


def test_a_large_job_is_downloaded_by_the_threads_of_its_state(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads large files keep busy, those of the states before are free."""
    names: set[str] = set()
    work = stages.Downloading.work

    def noted(self: stages.Downloading, job: Any) -> StageResult:
        names.add(threading.current_thread().name)
        return work(self, job)

    monkeypatch.setattr(stages.Downloading, "work", noted)
    monkeypatch.setattr(stages, "QUICK_BYTES", 3)
    submitted(intake, 6)
    intake.serve()
    assert names == {"intake Downloading"}
    assert set(intake.jobs().values()) == {"Completed"}


def test_a_job_whose_files_another_one_published_is_done_again(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator may unlock a job at work: then two threads fetch the same files, and one finds them gone."""
    submitted(intake, 1)
    publish, others = FetchedFile.publish, list[FetchedFile]()

    def by_another_one_first(self: FetchedFile) -> None:
        if not others:
            others.append(self)
            publish(self)
        publish(self)

    monkeypatch.setattr(FetchedFile, "publish", by_another_one_first)
    intake.serve()
    assert list(intake.jobs().values()) == ["Completed"]
    assert len(intake.rows()) == 1


def test_a_pause_ends_it(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was being worked at when the queue was paused moves once, and is unlocked."""
    submitted(intake, 1)
    work: Callable[..., StageResult] = stages.Pending.work

    def paused(self: stages.Pending, job: Any) -> StageResult:
        intake.queue.locks.lock("ingest")
        return work(self, job)

    monkeypatch.setattr(stages.Pending, "work", paused)
    intake.serve()
    assert list(intake.jobs().values()) == ["Estimating"]
    assert not [path for path, _ in intake.queue.tree.store.walk("/jobs") if path.endswith("/lock")]
