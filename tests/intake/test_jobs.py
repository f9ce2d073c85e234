"""Jobs, on every store in the same words."""

from __future__ import annotations

import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue, NodeInvalid, StateError
from ferryman.intake.states import JOB, JobState
from ferryman.intake.store.base import Set
from tests.intake.conftest import Opening, brought, layout, started


def test_a_new_job(queue: JobQueue) -> None:
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
def test_jobs_are_acquired_most_urgent_first_then_oldest(queue: JobQueue, opening: Opening) -> None:
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


def test_what_is_made_now_is_acquired_now(queue: JobQueue) -> None:
    """By the handle that made it, in its order, whatever that handle has listed before."""
    batch = queue.load_batch(started(queue, jobs=3))
    assert queue.acquire_job("Pending") is not None
    urgent = batch.create_job({}, priority=1)
    job = queue.acquire_job("Pending")
    assert job is not None
    assert job.id == urgent.id


@pytest.mark.rule("intake.order")
def test_priorities_above_99_are_last_and_stay_acquirable(queue: JobQueue) -> None:
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
def test_every_move_of_a_job_is_as_the_table_says(queue: JobQueue) -> None:
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


def test_last_successful_status_is_the_state_that_was_left(queue: JobQueue) -> None:
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


def test_the_state_it_has_already_is_no_move(queue: JobQueue) -> None:
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


def test_a_retry_is_counted_as_a_number(queue: JobQueue) -> None:
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


def test_a_final_job_is_removed(queue: JobQueue) -> None:
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


def test_two_objects_of_one_job_see_each_other(queue: JobQueue, opening: Opening) -> None:
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


def test_success_may_give_the_lock_back_in_one(queue: JobQueue) -> None:
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


@pytest.mark.parametrize("is_held", [True, False])
def test_what_a_job_returns_is_the_callers_own(queue: JobQueue, is_held: bool) -> None:
    """Whatever a caller does to it, lists inside included, changes neither the job nor what others read of it."""
    batch = queue.load_batch(started(queue, jobs=0))
    values = {"of": ["a", {"b": ["c"]}]}
    job = batch.create_job(values, identifiers=values, metadata=values)
    if is_held:
        held = queue.acquire_job("Pending")
        assert held is not None
        job = held
    job.set_inventory(values)
    job.set_store(values)
    for name in ("configuration", "identifiers", "metadata", "inventory", "store"):
        for _ in range(2):
            returned = getattr(job, name)
            assert returned == {"of": ["a", {"b": ["c"]}]}, name
            returned["of"][1]["b"].append("d")
            returned["of"].clear()
            returned["more"] = 1


def test_some_jobs_can_be_skipped(queue: JobQueue) -> None:
    """However many: the next one in the order comes instead."""
    batch = queue.load_batch(started(queue, jobs=0))
    ids = [batch.create_job({}).id for _ in range(200)]
    skip = set(ids[:190:2])
    found = [queue.acquire_job("Pending", skip) for _ in range(106)]
    assert [job and job.id for job in found] == [*(id for id in ids if id not in skip), None]


def test_a_job_that_was_released_is_acquired_again(queue: JobQueue, opening: Opening) -> None:
    """By the same object, in the same state: unless somebody has it, has moved it, or nothing is given out."""
    started(queue, jobs=1)
    job, other = queue.acquire_job("Pending"), opening()
    assert job is not None
    assert not queue.acquire_again(job)
    job.unlock()
    assert queue.acquire_again(job)
    assert not other.load_job(job.id).lock()
    job.set_status("Estimating")
    job.unlock()
    other.load_job(job.id).set_priority(1)
    taken = other.acquire_job("Estimating")
    assert taken is not None
    assert not queue.acquire_again(job)
    taken.unlock()
    assert not queue.acquire_again(job)  # of another priority: it has its place among others now
    found = queue.acquire_job("Estimating")
    assert found is not None
    found.unlock()
    queue.locks.lock("ingest")
    assert not queue.acquire_again(found)
    queue.locks.unlock("ingest")
    assert queue.acquire_again(found)
    other.load_job(job.id).fail("given up", revoke=True)
    found.unlock()
    assert not queue.acquire_again(found)
    queue.load_job(job.id).set_status("Deleted")
    queue.load_job(job.id).delete()
    assert not queue.acquire_again(found)


def test_a_batch_that_was_released_is_acquired_again(queue: JobQueue, opening: Opening) -> None:
    """In the same state; who looks meanwhile can skip it."""
    queue.create_batch({"submitter": "test"})
    batch = queue.acquire_pending_batch()
    assert batch is not None
    batch.unlock()
    assert queue.acquire_batch_in_processing({batch.id}) is None
    assert queue.acquire_again(batch)
    batch.set_status("Reporting")
    batch.unlock()
    assert queue.acquire_batch_for_reporting(skip={batch.id}) is None
    assert queue.acquire_again(batch)
    batch.unlock()
    opening().load_batch(batch.id).set_status("Failed")
    assert not queue.acquire_again(batch)
