"""Batches, on every store in the same words."""

from __future__ import annotations

import gc
import weakref

import pytest

from ferryman.intake import BatchExists, JobQueue, StateError
from ferryman.intake.store.base import Set
from tests.intake.conftest import NOW, Opening, brought, layout, started


def test_a_batch_is_handed_in_and_found(queue: JobQueue) -> None:
    """Pending, not locked; by its id and by its uuid."""
    batch = queue.create_batch({"batchID": "b-1", "submitter": "me"})
    assert (batch.id, batch.status, batch.submission) == (
        "bid0000000000",
        "Pending",
        {"batchID": "b-1", "submitter": "me"},
    )
    assert not batch.deletable
    assert queue.load_batch(batch.id).id == batch.id
    found = queue.find_batch_by_uuid("b-1")
    assert found is not None
    assert found.id == batch.id
    assert queue.find_batch_by_uuid("b-2") is None
    assert batch.lock()


@pytest.mark.rule("intake.uuid")
def test_the_same_submission_is_the_same_batch(queue: JobQueue, opening: Opening) -> None:
    """Handed in again, also with its keys in another order; another one with this batchID leaves nothing behind."""
    first = queue.create_batch({"batchID": "b-1", "submitter": "me"})
    before = layout(queue)
    assert opening().create_batch({"submitter": "me", "batchID": "b-1"}).id == first.id
    with pytest.raises(BatchExists, match=f"b-1 belongs to batch {first.id}"):
        queue.create_batch({"batchID": "b-1", "submitter": "you"})
    assert layout(queue) == before
    assert queue.create_batch({"submitter": "me"}).id == "bid0000000001"


def test_pending_batches_are_acquired_oldest_first(queue: JobQueue, opening: Opening) -> None:
    """Locked, and in Processing; held ones are left alone; None when there is none."""
    one, two, three = (queue.create_batch({"n": n}) for n in range(3))
    two.set_status("Held")
    other = opening()
    first, second = queue.acquire_pending_batch(), other.acquire_pending_batch()
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (one.id, three.id)
    assert (first.status, second.status) == ("Processing", "Processing")
    assert not other.load_batch(one.id).lock()
    assert queue.acquire_pending_batch() is None
    two.set_status("Pending")
    third = queue.acquire_pending_batch()
    assert third is not None
    assert third.id == two.id
    assert queue.list_batches() == [one.id, two.id, three.id]
    assert queue.list_batches("processing") == [one.id, two.id, three.id]
    assert queue.list_batches("Held") == []


def test_a_batch_is_reported_when_every_job_is_done(queue: JobQueue) -> None:
    """Completed or Failed; not while one is held, not before the first was made. What was told is kept."""
    empty = started(queue, jobs=0)
    batch_id = started(queue, jobs=3)
    one, two, three = queue.list_jobs()
    brought(queue, one, "Completed")
    queue.load_job(two).fail("its manifest is corrupt")
    queue.load_job(three).set_status("Held")
    assert queue.acquire_batch_for_reporting() is None
    queue.load_job(three).set_status("Deleted")

    assert queue.acquire_batch_for_reporting(ready=lambda batch: False) is None
    assert queue.load_batch(batch_id).status == "Processing"
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    assert (batch.id, batch.status) == (batch_id, "Reporting")
    assert batch.has_failure
    assert (batch.processing_jobs, batch.completed_jobs, batch.failed_jobs, batch.deleted_jobs) == (
        [],
        [one],
        [two],
        [three],
    )
    told = batch.report()
    assert (told.completed, told.failed, dict(told.reasons)) == ((one,), (two,), {two: "its manifest is corrupt"})
    assert batch.kept_report == {"last_modified": NOW, "failed_jobs": [two], "successful_jobs": [one]}
    assert queue.acquire_batch_for_reporting() is None
    batch.fail("1 of 3 failed")
    batch.unlock()
    assert (batch.status, batch.message) == ("Failed", "1 of 3 failed")
    assert queue.load_batch(empty).status == "Processing"


def test_a_reporter_that_died_is_followed_by_another(queue: JobQueue) -> None:
    """A batch that nobody holds in Reporting is given out again, as it is."""
    started(queue)
    brought(queue, *queue.list_jobs(), "Completed")
    first = queue.acquire_batch_for_reporting()
    assert first is not None
    first.unlock()
    again = queue.acquire_batch_for_reporting()
    assert again is not None
    assert (again.id, again.status) == (first.id, "Reporting")


@pytest.mark.rule("intake.report")
def test_a_second_report_says_what_has_changed(queue: JobQueue) -> None:
    """A job that was resumed changes nothing in its batch; UpdateReporting tells the difference to what was told."""
    batch_id = started(queue, jobs=2)
    one, two = queue.list_jobs()
    brought(queue, one, "Completed")
    queue.load_job(two).fail("no")
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    batch.report()
    batch.fail()
    batch.unlock()

    queue.load_job(two).requeue()
    assert (queue.load_job(two).status, queue.load_job(two).retry_count) == ("Estimating", 1)
    assert queue.load_batch(batch_id).status == "Failed"
    assert queue.acquire_batch_for_reporting() is None
    while queue.load_job(two).status != "Completed":
        queue.load_job(two).success()
    queue.load_batch(batch_id).set_status("UpdateReporting")

    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    assert batch.status == "UpdateReporting"
    new = batch.report().since(batch.kept_report)
    assert (new.completed, new.failed) == ((two,), ())
    batch.success()
    assert batch.kept_report == {"last_modified": NOW, "failed_jobs": [], "successful_jobs": [one, two]}
    assert not batch.report().since(batch.kept_report)


@pytest.mark.rule("intake.report")
def test_a_report_is_not_early(queue: JobQueue) -> None:
    """A job that is made at the last moment keeps its batch in Processing."""
    batch_id = started(queue)
    brought(queue, *queue.list_jobs(), "Completed")

    def one_more(batch: object) -> bool:
        queue.load_batch(batch_id).create_job({"late": True})
        return True

    assert queue.acquire_batch_for_reporting(ready=one_more) is None
    assert queue.load_batch(batch_id).status == "Processing"
    assert queue.load_batch(batch_id).lock()


def test_a_batch_that_nobody_finishes_is_found(queue: JobQueue) -> None:
    """Who died while it made jobs has left a batch in Processing without a lock."""
    one, two = started(queue), started(queue)
    first = queue.acquire_batch_in_processing()
    assert first is not None
    assert first.id == one
    second = queue.acquire_batch_in_processing()
    assert second is not None
    assert second.id == two
    second.unlock()
    assert queue.acquire_batch_in_processing(skip={two}) is None
    queue.finish_creating_jobs(second)
    assert queue.acquire_batch_in_processing() is None


def test_a_reported_batch_gets_no_jobs(queue: JobQueue) -> None:
    """It would never be told of them."""
    batch = queue.create_batch({})
    batch.set_status("Processing")
    batch.set_status("Reporting")
    before = layout(queue)
    with pytest.raises(StateError):
        batch.create_job({})
    assert layout(queue) == before


def test_a_final_batch_is_removed_with_all_that_is_its(queue: JobQueue) -> None:
    """Jobs, lists, uuid; in another state it stays. The ids are not given again."""
    batch_id = started(queue, jobs=2, submission={"batchID": "b-1"})
    other = started(queue)
    before = {path: data for path, data in layout(queue).items() if batch_id not in (path, data)}
    batch = queue.load_batch(batch_id)
    with pytest.raises(StateError, match=r"\(Processing->removed\) is not allowed"):
        batch.delete()
    batch.set_status("Reporting")
    batch.success()
    assert queue.delete_completed_batches() == [batch_id]
    left = layout(queue)
    assert not [path for path, data in left.items() if batch_id in path or batch_id == data]
    assert left.items() <= before.items()
    assert queue.list_batches() == [other]
    assert queue.find_batch_by_uuid("b-1") is None
    assert queue.create_batch({"batchID": "b-1"}).id == "bid0000000002"
    assert queue.load_batch(other).create_job({}).id == "jid0000000004"


@pytest.mark.rule("intake.damaged")
def test_cleanup_goes_on_past_what_is_damaged(queue: JobQueue, caplog: pytest.LogCaptureFixture) -> None:
    """It names the node; and a batch that somebody works at stays."""
    damaged, at_work, done = (started(queue) for _ in range(3))
    for batch_id in (damaged, at_work, done):
        batch = queue.load_batch(batch_id)
        batch.set_status("Reporting")
        batch.success()
    bad = queue.load_batch(damaged).processing_jobs[0]
    queue.tree.store.commit([Set(f"/jobs/{bad}/status", b"{")])
    held = queue.load_job(queue.load_batch(at_work).processing_jobs[0])
    assert held.lock()

    result = queue.cleanup()

    assert result.removed == [done]
    assert [batch_id for batch_id, _ in result.passed_over] == [damaged, at_work]
    assert f"/jobs/{bad}/status" in result.passed_over[0][1]
    assert held.id in result.passed_over[1][1]
    assert queue.delete_completed_batches() == []
    assert f"/jobs/{bad}/status" in caplog.text


def test_whether_all_jobs_are_made_does_not_hang_on_words(queue: JobQueue, opening: Opening) -> None:
    """It stays when somebody writes another message, and over every move."""
    batch = queue.load_batch(started(queue, jobs=2))
    assert batch.jobs_made is None
    batch.set_status("Processing", "7 jobs made")
    assert batch.jobs_made is None
    batch.set_jobs_made(2)
    assert (batch.jobs_made, batch.message) == (2, "2 jobs made")
    batch.set_status("Processing", "an operator has looked at it")
    batch.set_status("Reporting")
    assert opening().load_batch(batch.id).jobs_made == 2


def test_what_was_removed_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that serves a queue for years needs no memory for each batch that there ever was."""

    class Name(str):
        """An id of which it can be seen whether somebody has it."""

    seen: list[weakref.ref[Name]] = []
    with JobQueue.open("memory:") as queue:
        children = queue.tree.store.children

        def noted(path: str, prefix: str = "") -> list[str]:
            names = [Name(name) for name in children(path, prefix)]
            seen.extend(map(weakref.ref, names))
            return list(names)

        for _ in range(3):
            batch = queue.create_batch({}, held="for a test")
            batch.set_status("Deleted")
        monkeypatch.setattr(queue.tree.store, "children", noted)
        assert queue.acquire_pending_batch() is None
        assert len(queue.cleanup().removed) == 3
        assert queue.acquire_pending_batch() is None
        gc.collect()
        assert seen
        assert [each() for each in seen if each() is not None] == []
