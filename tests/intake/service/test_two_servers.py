"""What one server leaves to others, and to operators: what waits is not locked for long, and little that is ready."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ferryman.engine.run import Run
from ferryman.errors import TransientError
from ferryman.intake import JobQueue
from ferryman.intake.service import stages
from ferryman.intake.service.batches import BatchConsumer
from ferryman.intake.service.processing import TurnSize
from ferryman.intake.service.reports import BatchReports
from ferryman.intake.service.stages import StageResult
from ferryman.intake.service.workers import RESERVE_JOBS
from tests.intake.service.place import Place, until

THREADS = 2
"""Threads a state; ``Place`` serves with as many."""


def submit_jobs(place: Place, count: int) -> None:
    place.submit(manifest_url=place.manifest([place.row(f"{n}.txt", local_id=f"object {n}") for n in range(count)]))


def count_locked(queue: JobQueue) -> int:
    return sum(path.endswith("/lock") for path, _ in queue.tree.store.walk("/jobs"))


def count_in(place: Place, state: str) -> int:
    return len(place.queue.list_jobs(state))


class Barrier:
    """Makes the threads of a stage wait, of one server or of all, until ``open`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stage: Any, queue: JobQueue | None = None) -> None:
        self.open, self.waiting = threading.Event(), list[str]()
        work = stage.work

        def wait(stage: Any, job: Any) -> StageResult:
            if queue is None or stage._queue is queue:
                self.waiting.append(job.id)
                assert self.open.wait(300)
            result: StageResult = work(stage, job)
            return result

        monkeypatch.setattr(stage, "work", wait)


def test_a_server_leaves_to_others_what_it_cannot_start(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are busy for long: another server does all the rest, but for a small reserve."""
    count, most = 200, THREADS + THREADS * RESERVE_JOBS
    submit_jobs(intake, count)
    barrier = Barrier(monkeypatch, stages.Storing, intake.queue)
    try:
        with intake.served():
            until(lambda: len(barrier.waiting) == THREADS and count_in(intake, "Storing") == count)
            assert count_locked(intake.queue) <= most
            other = Place(intake.folder)
            with other.served():
                until(lambda: count_in(intake, "Completed") >= count - most, 120.0)
                assert len(barrier.waiting) == THREADS
                barrier.open.set()
                until(lambda: count_in(intake, "Completed") == count)
            other.queue.close()
    finally:
        barrier.open.set()
    assert len(intake.rows()) == count
    assert intake.queue.audit() == []


def test_no_more_are_locked_in_processing_than_share_a_turn(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the turn that runs, and those that wait for the next one, together."""
    share, count = 5, 20
    going_on, inner = threading.Event(), Run.turn

    def turn(self: Run, **options: Any) -> bool:
        assert going_on.wait(300)
        return inner(self, **options)

    monkeypatch.setattr(Run, "turn", turn)
    monkeypatch.setattr(TurnSize.__init__, "__defaults__", (share,))
    submit_jobs(intake, count)
    try:
        with intake.served():
            until(lambda: count_in(intake, "Processing") == count)
            assert count_locked(intake.queue) == share
            going_on.set()
            until(lambda: count_in(intake, "Completed") == count)
    finally:
        going_on.set()


def test_a_pause_stops_jobs_that_are_ready(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at work move once; those that wait for a thread are unlocked where they are, and go on after the pause."""
    count = 12
    monkeypatch.setattr(stages, "QUICK_BYTES", 3)  # so that they wait for the threads of Downloading
    submit_jobs(intake, count)
    barrier = Barrier(monkeypatch, stages.Downloading)
    try:
        with intake.served():
            until(lambda: len(barrier.waiting) == THREADS and count_in(intake, "Downloading") == count)
            assert count_locked(intake.queue) > THREADS
            intake.queue.locks.lock("ingest")
            barrier.open.set()
            until(lambda: count_locked(intake.queue) == 0)
            assert (count_in(intake, "Downloading"), count_in(intake, "Processing")) == (count - THREADS, THREADS)
            intake.queue.locks.unlock("ingest")
            until(lambda: count_in(intake, "Completed") == count)
    finally:
        barrier.open.set()


def fail_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, tries: int) -> list[int]:
    """Make the first calls of a method fail as if a server did not answer. Returns the list of calls."""
    calls, inner = list[int](), getattr(owner, name)

    def method(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) <= tries:
            raise TransientError("nobody answers")
        return inner(*arguments)

    monkeypatch.setattr(owner, name, method)
    return calls


WAITS = [(BatchConsumer, "_plan_jobs", "MANIFEST_RETRY_S"), (BatchReports, "send", "REPORT_RETRY_S")]


@pytest.mark.parametrize(("owner", "name", "pause"), WAITS)
def test_a_batch_that_waits_is_locked_by_nobody(
    intake: Place, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, pause: str
) -> None:
    """For its manifest, or for a receiver of its report: an operator, or another server, can have it."""
    calls = fail_first(monkeypatch, owner, name, 10)
    monkeypatch.setattr(f"ferryman.intake.service.batches.{pause}", 3600.0)
    submit_jobs(intake, 1)
    with intake.served(), JobQueue.open(f"sqlite:///{intake.folder / 'queue.db'}") as other:
        batch = other.load_batch(*other.list_batches())
        until(lambda: bool(calls) and batch.lock())
        batch.unlock()
        other.load_batch(batch.id).set_status("Failed", "given up")
        intake.submit(manifest_url=intake.manifest([]), payload_type="nothing")
        until(lambda: len(calls) > 1)  # others are looked for meanwhile, and it was not tried again
        assert batch.message == "given up"


@pytest.mark.parametrize(("owner", "name", "pause"), WAITS)
def test_a_batch_that_waits_is_tried_again(
    intake: Place, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, pause: str
) -> None:
    """When it is time, until it succeeds."""
    calls = fail_first(monkeypatch, owner, name, 3)
    monkeypatch.setattr(f"ferryman.intake.service.batches.{pause}", 0.05)
    submit_jobs(intake, 2)
    intake.serve()
    assert len(calls) == 4
    assert [intake.queue.load_batch(batch).status for batch in intake.queue.list_batches()] == ["Completed"]


def test_a_pending_job_that_waits_becomes_held_with_its_collection(
    intake: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold that came while it waited counts when it is acquired again."""
    going_on, tried = threading.Event(), threading.Event()
    work = stages.Pending.work

    def wait_first(self: stages.Pending, job: Any) -> StageResult:
        if not going_on.is_set():
            tried.set()
            raise stages.TryLater("not now", 0.05)
        return work(self, job)

    monkeypatch.setattr(stages.Pending, "work", wait_first)
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="a", profile_name="maps")
    with intake.served():
        assert tried.wait(300)
        intake.queue.locks.lock("collection", "maps")
        until(lambda: count_in(intake, "Held") == 1)
