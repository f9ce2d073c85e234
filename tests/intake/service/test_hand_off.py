"""Jobs that go on without being unlocked: in the thread that has moved them, or in one that has nothing to do."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake import JobState
from ferryman.intake.queue import Acquirer
from ferryman.intake.service import stages
from ferryman.intake.service.fetch import FetchedFile
from ferryman.intake.service.stages import StageResult
from ferryman.intake.service.workers import HandOff, QueueWatcher
from tests.intake.service.place import Place, until


class HeldJob:
    """A job, as far as a hand-off needs one."""

    def __init__(self) -> None:
        self.locked = True

    def unlock(self) -> None:
        self.locked = False


def waiting(hand_off: HandOff, found: list[Any]) -> threading.Thread:
    """A thread that has nothing to do, until a job is handed over to it."""

    def run() -> None:
        while not hand_off.wait(60.0):
            pass
        found.append(hand_off.take())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_job_is_handed_over_to_who_has_nothing_to_do() -> None:
    """And to nobody else: as many as threads wait."""
    hand_off, found, jobs = HandOff(), list[Any](), [HeldJob() for _ in range(3)]
    given: Any = jobs
    assert not hand_off.offer(given[0])
    threads = [waiting(hand_off, found) for _ in range(2)]
    until(lambda: hand_off._idle == 2)
    assert [hand_off.offer(each) for each in given] == [True, True, False]
    for thread in threads:
        thread.join()
    assert found == jobs[:2] or found == jobs[1::-1]
    assert all(job.locked for job in jobs)


def test_a_call_that_came_before_the_wait_is_heard() -> None:
    """Whoever has looked before the call looks again, and one look answers it."""
    hand_off = HandOff()
    hand_off.wake_one()
    assert hand_off.wait(60.0)
    assert not hand_off.wait(0.0)


def test_at_the_end_jobs_are_given_back() -> None:
    """Those that nobody has taken; nobody waits any more."""
    hand_off, job = HandOff(), HeldJob()
    given: Any = job
    threads = [waiting(hand_off, [])]
    until(lambda: hand_off._idle == 1)
    with hand_off._changed:  # the thread does not come to take it
        hand_off._handed_over.append(given)
    hand_off.close()
    threads[0].join()
    assert not job.locked
    assert not hand_off.offer(given)
    assert hand_off.wait(60.0)


def test_nobody_looks_out_while_all_work() -> None:
    """A watch of a long list is not made for nothing."""
    hand_off, stop = HandOff(), threading.Event()

    def watch() -> Any:
        raise AssertionError("a watch was made")

    stop.set()
    assert not QueueWatcher(hand_off, watch, lambda: False, stop).turn()


@pytest.fixture
def acquired(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """State -> how many jobs were acquired in it."""
    found: dict[str, int] = defaultdict(int)
    jobs = Acquirer.acquire_jobs

    def counted(self: Acquirer, state: JobState) -> Iterator[Any]:
        for job in jobs(self, state):
            found[state.value] += 1
            yield job

    monkeypatch.setattr(Acquirer, "acquire_jobs", counted)
    return found


@pytest.fixture
def intake(place: Path) -> Place:
    return Place(place)


def submitted(intake: Place, count: int, **columns: Any) -> None:
    rows = [intake.row(f"{n}.txt", local_id=f"object {n}", **columns) for n in range(count)]
    intake.submit(manifest_url=intake.manifest(rows))


def test_quick_work_needs_no_other_thread(intake: Place, acquired: dict[str, int]) -> None:
    """A small job of this machine's files is locked three times: before the plan, for it, and after it."""
    submitted(intake, 12)
    intake.serve()
    assert set(intake.jobs().values()) == {"Completed"}
    assert acquired == {"Pending": 12, "Processing": 12, "Storing": 12}
    assert len(intake.rows()) == 12
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
