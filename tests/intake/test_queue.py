"""What stops a queue, what harms it, and what else it holds: on every store in the same words."""

from __future__ import annotations

import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue, NodeInvalid, StateError
from ferryman.intake.store.base import Create, Delete, Set
from tests.intake.conftest import Opening, layout, started

# --- what stops it ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("intake.pause")
def test_a_paused_queue_gives_out_nothing(queue: JobQueue, opening: Opening) -> None:
    """Anywhere; then it goes on."""
    started(queue)
    queue.create_batch({})
    other = opening()
    assert queue.locks.lock("ingest")
    for one in (queue, other, queue):
        assert one.acquire_job("Pending") is None
        assert one.acquire_pending_batch() is None
        assert one.acquire_batch_for_reporting() is None
    assert not [path for path in layout(queue) if path.endswith("/lock")]
    other.locks.unlock("ingest")
    assert other.acquire_job("Pending") is not None
    assert queue.acquire_pending_batch() is not None


@pytest.mark.rule("intake.hold")
def test_a_collection_on_hold_holds_its_pending_jobs(queue: JobQueue, opening: Opening) -> None:
    """By the profile of the job, or of its batch; releasing the collection releases no job."""
    mine = queue.load_batch(started(queue, jobs=0))
    theirs = queue.load_batch(started(queue, jobs=0, submission={"profile_name": "maps/old"}))
    by_job = mine.create_job({"profile_name": "maps/old"})
    by_batch = theirs.create_job({"n": 1})
    free = mine.create_job({"profile_name": "maps_old"}, priority=9)
    at_work = mine.create_job({"profile_name": "maps/old"})
    at_work.set_status("Estimating")
    assert queue.locks.lock("collection", "maps/old")
    got = opening().acquire_job("Pending")
    assert got is not None
    assert got.id == free.id
    assert queue.list_jobs("Held") == [by_job.id, by_batch.id]
    assert "on hold" in queue.load_job(by_job.id).message
    assert queue.acquire_job("Estimating") is not None
    queue.locks.unlock("collection", "maps/old")
    assert queue.acquire_job("Pending") is None
    queue.load_job(by_job.id).set_status("Pending")
    released = queue.acquire_job("Pending")
    assert released is not None
    assert released.id == by_job.id


# --- damaged nodes ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("intake.damaged")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"status":"Nowhere"}', b'{"status":null}', b"\xff"])
def test_a_damaged_status_is_named_and_passed_over(
    queue: JobQueue, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its path is in the error; others are acquired; it is not left locked."""
    batch_id = started(queue, jobs=2)
    bad, good = queue.list_jobs()
    queue.tree.store.commit([Set(f"/jobs/{bad}/status", data)])
    with pytest.raises(NodeInvalid, match=f"/jobs/{bad}/status"):
        queue.load_job(bad)
    job = queue.acquire_job("Pending")
    assert job is not None
    assert job.id == good
    assert f"/jobs/{bad}/status" in caplog.text
    assert f"/jobs/{bad}/lock" not in layout(queue)
    queue.create_batch({})
    queue.tree.store.commit([Set(f"/batches/{batch_id}/status", data)])
    with pytest.raises(NodeInvalid, match=f"/batches/{batch_id}/status"):
        queue.load_batch(batch_id)
    assert queue.acquire_pending_batch() is not None
    assert queue.list_batches("Processing") == ["bid0000000001"]


@pytest.mark.parametrize(("name", "data"), [("priority", b"high"), ("space_needed", b""), ("configuration", b"[1]")])
def test_a_damaged_node_is_named(queue: JobQueue, name: str, data: bytes) -> None:
    """A job with it cannot be loaded."""
    started(queue)
    (job,) = queue.list_jobs()
    queue.tree.store.commit([Set(f"/jobs/{job}/{name}", data)])
    with pytest.raises(NodeInvalid, match=f"/jobs/{job}/{name}"):
        queue.load_job(job)


def test_what_is_not_there_is_named(queue: JobQueue) -> None:
    """And an id that is a path leads nowhere."""
    with pytest.raises(NodeInvalid, match="/jobs/jid0000000009"):
        queue.load_job("jid0000000009")
    with pytest.raises(NodeInvalid, match="/batches/bid0000000009"):
        queue.load_batch("bid0000000009")
    with pytest.raises(NodeInvalid):
        queue.load_job("states/pending")
    with pytest.raises(UsageError, match="choose one of Pending, Held"):
        queue.acquire_job("Waiting")


def test_a_job_without_its_entry_cannot_be_moved(queue: JobQueue) -> None:
    """It is no entry twice, and no list is left behind: the error names the node that does not fit."""
    started(queue)
    (job,) = queue.list_jobs()
    queue.tree.store.commit([Delete(f"/jobs/states/pending/05-{job}")])
    before = layout(queue)
    with pytest.raises(NodeInvalid, match=f"/jobs/states/pending/05-{job}"):
        queue.load_job(job).set_status("Estimating")
    assert layout(queue) == before


# --- access requests --------------------------------------------------------------------------------------------------


def test_access_requests(queue: JobQueue, opening: Opening) -> None:
    """Two queues; acquired locked and still Pending, oldest first; each can be paused alone."""
    one = queue.create_assembly("small", {"token": "t1", "cloud-content-byte": 10})
    two = queue.create_assembly("small", {"token": "t2"})
    large = queue.create_assembly("large", {"token": "t3"})
    assert (one.id, two.id, large.id) == ("qid0000000000", "qid0000000001", "qid0000000000")
    assert queue.locks.lock("access-small")
    assert queue.acquire_pending_assembly("small") is None
    assert queue.acquire_pending_assembly("large") is not None
    queue.locks.unlock("access-small")
    request = queue.acquire_pending_assembly("small")
    assert request is not None
    assert (request.id, request.status, request.token["token"]) == (one.id, "Pending", "t1")
    other = opening().acquire_pending_assembly("small")
    assert other is not None
    assert other.id == two.id
    assert queue.acquire_pending_assembly("small") is None
    with pytest.raises(StateError, match=r"\(Pending->success\)"):
        request.success()
    request.set_status("Processing")
    request.set_token({"token": "t1", "url": "http://x/1.zip"})
    request.success()
    request.unlock()
    assert request.deletable
    assert request.token["url"] == "http://x/1.zip"
    assert queue.list_assemblies("small") == [one.id, two.id]
    assert queue.list_assemblies("small", "Completed") == [one.id]
    queue.load_assembly("small", one.id).delete()
    assert queue.list_assemblies("small") == [two.id]
    with pytest.raises(StateError):
        two.delete()
    with pytest.raises(UsageError, match="small or large"):
        queue.create_assembly("huge", {})


def test_a_watch_sees_what_comes(queue: JobQueue, opening: Opening) -> None:
    """Also what came between the look and the wait; and it waits no longer than it may."""
    batch = queue.load_batch(started(queue, jobs=0))
    watching = opening()
    assert not watching.watch_jobs("Pending").wait(0.05)
    watch = watching.watch_jobs("Pending")
    batch.create_job({})
    assert watch.wait(300)
    watch.close()
    batches = watching.watch_batches()
    queue.create_batch({})
    assert batches.wait(300)


def test_messages_of_any_kind(queue: JobQueue) -> None:
    """Very long, with odd characters, or no text at all: a job fails with it all the same."""
    started(queue, jobs=3)
    for job, message in zip(queue.list_jobs(), ("x" * 100_000, "\ud800\0é", ValueError("boom")), strict=True):
        queue.load_job(job).fail(message)  # type: ignore[arg-type]
        assert queue.load_job(job).status == "Failed"
    assert len(queue.load_job(queue.list_jobs()[0]).message) == 4000
    assert queue.load_job(queue.list_jobs()[2]).message == "boom"


def test_ids_are_not_given_twice(queue: JobQueue) -> None:
    """Other numbered nodes that a foreign tool has made are respected."""
    queue.create_batch({})
    queue.tree.store.commit([Create("/batches/bid0000000001")])
    assert queue.create_batch({}).id == "bid0000000002"
