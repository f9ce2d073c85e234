"""What a queue promises, on every store in the same words."""

from __future__ import annotations

import pytest

from ferryman.errors import UsageError
from ferryman.intake import BatchExists, NodeInvalid, Queue, StateError
from ferryman.intake.states import JOB, JobState
from ferryman.intake.store import Create, Delete, Set
from tests.intake.conftest import NOW, Opening, brought, layout, started

# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_handed_in_and_found(queue: Queue) -> None:
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
def test_the_same_submission_is_the_same_batch(queue: Queue, opening: Opening) -> None:
    """Handed in again, also with its keys in another order; another one with this batchID leaves nothing behind."""
    first = queue.create_batch({"batchID": "b-1", "submitter": "me"})
    before = layout(queue)
    assert opening().create_batch({"submitter": "me", "batchID": "b-1"}).id == first.id
    with pytest.raises(BatchExists, match=f"b-1 belongs to batch {first.id}"):
        queue.create_batch({"batchID": "b-1", "submitter": "you"})
    assert layout(queue) == before
    assert queue.create_batch({"submitter": "me"}).id == "bid0000000001"


def test_pending_batches_are_acquired_oldest_first(queue: Queue, opening: Opening) -> None:
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


def test_a_batch_is_reported_when_every_job_is_done(queue: Queue) -> None:
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


def test_a_reporter_that_died_is_followed_by_another(queue: Queue) -> None:
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
def test_a_second_report_says_what_has_changed(queue: Queue) -> None:
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
def test_a_report_is_not_early(queue: Queue) -> None:
    """A job that is made at the last moment keeps its batch in Processing."""
    batch_id = started(queue)
    brought(queue, *queue.list_jobs(), "Completed")

    def one_more(batch: object) -> bool:
        queue.load_batch(batch_id).create_job({"late": True})
        return True

    assert queue.acquire_batch_for_reporting(ready=one_more) is None
    assert queue.load_batch(batch_id).status == "Processing"
    assert queue.load_batch(batch_id).lock()


def test_a_batch_that_nobody_finishes_is_found(queue: Queue) -> None:
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


def test_a_reported_batch_gets_no_jobs(queue: Queue) -> None:
    """It would never be told of them."""
    batch = queue.create_batch({})
    batch.set_status("Processing")
    batch.set_status("Reporting")
    before = layout(queue)
    with pytest.raises(StateError):
        batch.create_job({})
    assert layout(queue) == before


def test_a_final_batch_is_removed_with_all_that_is_its(queue: Queue) -> None:
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
def test_cleanup_goes_on_past_what_is_damaged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
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


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_new_job(queue: Queue) -> None:
    """What it holds, and what it starts with."""
    batch = queue.load_batch(started(queue, jobs=0))
    job = batch.create_job({"a": "b"}, priority=3, identifiers={"local_id": ["x"]}, metadata={"erc_who": "me"})
    for one in (job, queue.load_job(job.id)):
        assert (one.batch_id, one.status, one.priority, one.space_needed, one.retry_count) == (
            batch.id,
            "Pending",
            3,
            0,
            0,
        )
        assert (one.configuration, one.identifiers, one.metadata) == (
            {"a": "b"},
            {"local_id": ["x"]},
            {"erc_who": "me"},
        )
        assert (one.inventory, one.store, one.last_successful_status, one.deletable) == ({}, {}, None, False)
    assert batch.processing_jobs == [job.id]
    job.set_space_needed(1 << 40)
    job.set_inventory({"manifest_url": "http://x", "mode": "add"})
    job.set_store({"node": 1})
    again = queue.load_job(job.id)
    assert (again.space_needed, again.inventory, again.store) == (
        1 << 40,
        {"manifest_url": "http://x", "mode": "add"},
        {"node": 1},
    )
    job.set_store({})
    assert f"/jobs/{job.id}/store" not in layout(queue)
    with pytest.raises(UsageError, match="-1"):
        batch.create_job({}, priority=-1)
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        batch.create_job({"x": object()})


@pytest.mark.rule("intake.order")
def test_jobs_are_acquired_most_urgent_first_then_oldest(queue: Queue, opening: Opening) -> None:
    """Locked: nobody else gets it; what is unlocked is to be had again."""
    batch = queue.load_batch(started(queue, jobs=0))
    low, old, new, urgent = (batch.create_job({"n": p}, priority=p).id for p in (7, 5, 5, 0))
    assert queue.list_jobs("Pending") == [urgent, old, new, low]
    other = opening()
    acquired = [one.acquire_job("Pending") for one in (queue, other, queue, other)]
    assert [job.id for job in acquired if job] == [urgent, old, new, low]
    assert all(job and job.locked and job.status == "Pending" for job in acquired)
    assert queue.acquire_job("Pending") is None
    assert not queue.load_job(old).lock()
    for job in acquired:
        assert job
        job.unlock()
        job.unlock()
    again = queue.acquire_job("Pending")
    assert again is not None
    assert again.id == urgent
    assert queue.acquire_job("Estimating") is None


def test_what_is_made_now_is_acquired_now(queue: Queue) -> None:
    """By the handle that made it, in its order, whatever that handle has listed before."""
    batch = queue.load_batch(started(queue, jobs=3))
    assert queue.acquire_job("Pending") is not None
    urgent = batch.create_job({}, priority=1)
    job = queue.acquire_job("Pending")
    assert job is not None
    assert job.id == urgent.id


@pytest.mark.rule("intake.order")
def test_priorities_above_99_are_last_and_stay_acquirable(queue: Queue) -> None:
    """Exact in the data, 99 in the name; a move does not change them."""
    batch = queue.load_batch(started(queue, jobs=0))
    high = batch.create_job({}, priority=120)
    last = batch.create_job({}, priority=99)
    first = batch.create_job({}, priority=98)
    nodes = layout(queue)
    assert nodes[f"/jobs/{high.id}/priority"] == "120"
    assert f"/jobs/states/pending/99-{high.id}" in nodes
    assert queue.list_jobs() == [first.id, high.id, last.id]
    for expected in (first, high, last):
        job = queue.acquire_job("Pending")
        assert job is not None
        assert job.id == expected.id
        job.set_status("Estimating", priority=job.priority + 1000)
        job.unlock()
    moved = queue.list_jobs("Estimating")
    assert moved == [high.id, last.id, first.id]  # 99 all of them: the oldest first
    assert [queue.load_job(job).priority for job in moved] == [1120, 1099, 1098]
    assert queue.audit() == []


@pytest.mark.rule("intake.moves")
def test_every_move_of_a_job_is_as_the_table_says(queue: Queue) -> None:
    """Each state, to each state: a legal one moves the job, another raises and changes no node."""
    batch = queue.load_batch(started(queue, jobs=0))
    ways = {"Pending": [], "Held": ["Held"], "Failed": ["Failed"], "Deleted": ["Held", "Deleted"]}
    order = ["Estimating", "Provisioning", "Downloading", "Processing", "Storing", "Recording", "Notify", "Completed"]
    ways |= {state: order[: at + 1] for at, state in enumerate(order)}
    for before in JobState:
        job = batch.create_job({"before": before})
        for state in ways[before.value]:
            job.set_status(state)
        for after in JobState:
            if after == before or after in JOB.moves[before]:
                continue
            nodes = layout(queue)
            with pytest.raises(StateError) as caught:
                job.set_status(after.value)
            assert str(caught.value) == f"State change ({before}->{after}) is not allowed"
            assert layout(queue) == nodes
        for after in sorted(JOB.moves[before])[:1]:
            job.set_status(after.value)
            assert queue.load_job(job.id).status == after.value
    assert queue.audit() == []
    with pytest.raises(StateError, match="->Nowhere"):
        job.set_status("Nowhere")


def test_last_successful_status_is_the_state_that_was_left(queue: Queue) -> None:
    """But for moves to or from Failed, and to Deleted."""
    started(queue)
    job = queue.load_job(queue.list_jobs()[0])
    told = [job.last_successful_status]
    for state in ("Held", "Pending", "Estimating", "Provisioning", "Failed", "Downloading", "Failed", "Deleted"):
        job.set_status(state)
        told.append(job.last_successful_status)
    assert told == [
        None,
        "Pending",
        "Held",
        "Pending",
        "Estimating",
        "Estimating",
        "Estimating",
        "Estimating",
        "Estimating",
    ]


def test_the_state_it_has_already_is_no_move(queue: Queue) -> None:
    """Message and priority change, nothing else."""
    started(queue)
    job = queue.load_job(queue.list_jobs()[0])
    before = layout(queue)
    job.set_status("Pending", message="waits", priority=2, retry=True)
    after = layout(queue)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {
        f"/jobs/{job.id}/status",
        f"/jobs/{job.id}/priority",
        f"/jobs/states/pending/05-{job.id}",
        f"/jobs/states/pending/02-{job.id}",
    }
    assert (job.message, job.priority, job.retry_count, job.last_successful_status) == ("waits", 2, 0, None)
    job.set_status("Pending", message="waits still")
    assert layout(queue).keys() == after.keys()


def test_a_retry_is_counted_as_a_number(queue: Queue) -> None:
    """Also beyond 99, and where another tool has written it as text."""
    started(queue)
    job = queue.load_job(queue.list_jobs()[0])
    job.fail("no")
    path = f"/jobs/{job.id}/status"
    for written in (b"99", b'"99"', b"999"):
        node = queue.tree.get(path)
        queue.tree.store.commit(
            [Set(path, node.data.replace(f'"retry_count":{job.retry_count}'.encode(), b'"retry_count":' + written))]
        )
        expected = int(written.strip(b'"')) + 1
        job.requeue()
        assert job.retry_count == expected
        assert f'"retry_count":{expected},' in layout(queue)[path]
        job.fail("again")
    pending = queue.load_batch(job.batch_id).create_job({})
    with pytest.raises(StateError):
        pending.requeue()


def test_a_final_job_is_removed(queue: Queue) -> None:
    """With its entries; in another state it stays. Its batch's folders stay too."""
    batch_id = started(queue)
    job = queue.load_job(queue.list_jobs()[0])
    with pytest.raises(StateError):
        job.delete()
    brought(queue, job.id, "Completed")
    assert job.lock()
    assert job.deletable
    job.delete()
    assert not [path for path in layout(queue) if job.id in path]
    assert f"/batches/{batch_id}/states/batch-completed" in layout(queue)
    with pytest.raises(NodeInvalid, match=job.id):
        queue.load_job(job.id)
    with pytest.raises(NodeInvalid):
        _ = job.status
    assert not queue.audit()


def test_two_objects_of_one_job_see_each_other(queue: Queue, opening: Opening) -> None:
    """What one has moved, the other moves on from, though it had read it before."""
    started(queue)
    one = queue.load_job(queue.list_jobs()[0])
    two = opening().load_job(one.id)
    one.set_status("Held")
    one.set_status("Pending", priority=9)
    assert (two.status, two.priority) == ("Pending", 9)
    two.set_status("Estimating")
    one.success()
    assert two.status == "Provisioning"
    assert queue.audit() == []


def test_success_may_give_the_lock_back_in_one(queue: Queue) -> None:
    """Both or neither: a refused move leaves the lock."""
    started(queue)
    job = queue.acquire_job("Pending")
    assert job is not None
    with pytest.raises(StateError):
        job.success(unlock=True)
    assert job.locked
    job.set_status("Estimating")
    job.success(unlock=True)
    assert not job.locked
    assert (job.status, job.lock()) == ("Provisioning", True)
    job.fail("no", unlock=True)
    assert f"/jobs/{job.id}/lock" not in layout(queue)


# --- what stops it ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("intake.pause")
def test_a_paused_queue_gives_out_nothing(queue: Queue, opening: Opening) -> None:
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
def test_a_collection_on_hold_holds_its_pending_jobs(queue: Queue, opening: Opening) -> None:
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
def test_a_damaged_status_is_named_and_passed_over(queue: Queue, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_damaged_node_is_named(queue: Queue, name: str, data: bytes) -> None:
    """A job with it cannot be loaded."""
    started(queue)
    (job,) = queue.list_jobs()
    queue.tree.store.commit([Set(f"/jobs/{job}/{name}", data)])
    with pytest.raises(NodeInvalid, match=f"/jobs/{job}/{name}"):
        queue.load_job(job)


def test_what_is_not_there_is_named(queue: Queue) -> None:
    """And an id that is a path leads nowhere."""
    with pytest.raises(NodeInvalid, match="/jobs/jid0000000009"):
        queue.load_job("jid0000000009")
    with pytest.raises(NodeInvalid, match="/batches/bid0000000009"):
        queue.load_batch("bid0000000009")
    with pytest.raises(NodeInvalid):
        queue.load_job("states/pending")
    with pytest.raises(UsageError, match="choose one of Pending, Held"):
        queue.acquire_job("Waiting")


def test_a_job_without_its_entry_cannot_be_moved(queue: Queue) -> None:
    """It is no entry twice, and no list is left behind: the error names the node that does not fit."""
    started(queue)
    (job,) = queue.list_jobs()
    queue.tree.store.commit([Delete(f"/jobs/states/pending/05-{job}")])
    before = layout(queue)
    with pytest.raises(NodeInvalid, match=f"/jobs/states/pending/05-{job}"):
        queue.load_job(job).set_status("Estimating")
    assert layout(queue) == before


# --- access requests --------------------------------------------------------------------------------------------------


def test_access_requests(queue: Queue, opening: Opening) -> None:
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
    request.delete()
    assert queue.list_assemblies("small") == [two.id]
    with pytest.raises(StateError):
        two.delete()
    with pytest.raises(UsageError, match="small or large"):
        queue.create_assembly("huge", {})


def test_a_watch_sees_what_comes(queue: Queue, opening: Opening) -> None:
    """Also what came between the look and the wait; and it waits no longer than it may."""
    batch = queue.load_batch(started(queue, jobs=0))
    watching = opening()
    assert not watching.watch_jobs("Pending").wait(0.05)
    watch = watching.watch_jobs("Pending")
    batch.create_job({})
    assert watch.wait(10)
    watch.close()
    batches = watching.watch_batches()
    queue.create_batch({})
    assert batches.wait(10)


def test_messages_of_any_kind(queue: Queue) -> None:
    """Very long, with odd characters, or no text at all: a job fails with it all the same."""
    started(queue, jobs=3)
    for job, message in zip(queue.list_jobs(), ("x" * 100_000, "\ud800\0é", ValueError("boom")), strict=True):
        queue.load_job(job).fail(message)  # type: ignore[arg-type]
        assert queue.load_job(job).status == "Failed"
    assert len(queue.load_job(queue.list_jobs()[0]).message) == 4000
    assert queue.load_job(queue.list_jobs()[2]).message == "boom"


def test_ids_are_not_given_twice(queue: Queue) -> None:
    """Other numbered nodes that a foreign tool has made are respected."""
    queue.create_batch({})
    queue.tree.store.commit([Create("/batches/bid0000000001")])
    assert queue.create_batch({}).id == "bid0000000002"
