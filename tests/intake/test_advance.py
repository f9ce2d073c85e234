"""A job that moves through several states under one lock."""

from __future__ import annotations

import pytest

from ferryman.intake import Job, JobQueue, LockLost
from tests.intake.conftest import Opening, layout, started


@pytest.fixture
def job(queue: JobQueue) -> Job:
    """A pending job, locked."""
    started(queue)
    found = queue.acquire_job("Pending")
    assert found is not None
    return found


@pytest.mark.rule("intake.owner")
def test_it_goes_through_all_states(queue: JobQueue, opening: Opening, job: Job) -> None:
    """In each it is where the layout says, with what became known, and nobody else gets it."""
    other = opening()
    assert job.advance("listed", keep_lock=True)
    assert job.advance("large", priority=15, space_needed=7, keep_lock=True)
    assert (job.status, job.space_needed, other.load_job(job.id).space_needed) == ("Provisioning", 7, 7)
    assert (job.priority, other.list_jobs("Provisioning")) == (15, [job.id])
    assert f"/jobs/states/provisioning/15-{job.id}" in layout(other)
    assert job.advance(keep_lock=True)
    assert job.advance("1 file", values={"inventory": {"url": "file:///a"}}, keep_lock=True)
    assert job.inventory == other.load_job(job.id).inventory == {"url": "file:///a"}
    assert not other.load_job(job.id).lock()
    assert job.advance(values={"inventory": {"url": "file:///b"}}, keep_lock=True)
    assert job.inventory == other.load_job(job.id).inventory == {"url": "file:///b"}
    assert job.advance(values={"inventory": {}}, keep_lock=True)
    assert job.inventory == other.load_job(job.id).inventory == {}
    assert job.advance(keep_lock=True)
    assert not job.advance("done")
    told = other.load_job(job.id)
    assert (told.status, told.message, told.last_successful_status, told.priority) == (
        "Completed",
        "done",
        "Notify",
        15,
    )
    assert not [path for path in layout(other) if path.endswith("/lock")]
    assert other.audit() == []


def test_a_paused_queue_ends_it(queue: JobQueue, opening: Opening, job: Job) -> None:
    """It moves, for its work is done, and is given back."""
    opening().locks.lock("ingest")
    assert not job.advance(keep_lock=True)
    assert not job.locked
    assert (queue.list_jobs("Estimating"), queue.acquire_job("Estimating")) == ([job.id], None)
    queue.locks.unlock("ingest")
    assert queue.acquire_job("Estimating") is not None


@pytest.mark.rule("intake.owner")
def test_an_operator_ends_it(opening: Opening, job: Job) -> None:
    """Who takes the lock away between two states has the job; its former holder changes nothing any more."""
    other = opening()
    assert job.advance(keep_lock=True)
    assert other.load_job(job.id).revoke()
    before = layout(other)
    with pytest.raises(LockLost):
        job.advance(values={"inventory": {"x": 1}}, keep_lock=True)
    assert layout(other) == before
    assert not job.locked
    assert other.acquire_job("Estimating") is not None


def test_another_priority_is_known_to_who_goes_on(opening: Opening, job: Job) -> None:
    """Also if the name in its state's list tells only that it is low."""
    assert job.advance(priority=150, keep_lock=True)
    assert job.advance(keep_lock=True)
    other = opening()
    assert [path for path in layout(other) if path.startswith("/jobs/states/")] == [
        f"/jobs/states/provisioning/99-{job.id}"
    ]
    assert other.load_job(job.id).priority == 150


def test_many_are_acquired_in_the_order_of_one_by_one(queue: JobQueue, opening: Opening) -> None:
    """And each only when it is asked for."""
    started(queue, jobs=4)
    other = opening()
    coming = queue.acquire_jobs("Pending")
    first = next(coming)
    taken = other.acquire_job("Pending")
    assert taken is not None
    assert [first.id, taken.id, *(job.id for job in coming)] == queue.list_jobs("Pending")
    assert other.acquire_job("Pending") is None
