"""A lock has one owner, an object: not a process, and not whoever asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferryman.intake import Batch, ItemLocked, Job, JobQueue, LockLost, StateError
from ferryman.intake.store.base import Check, Conflict, Create, Delete, Set
from tests.intake.conftest import Opening, brought, layout, started

CHANGES: dict[str, Callable[[Job], object]] = {
    "set_status": lambda job: job.set_status("Recording"),
    "message": lambda job: job.set_status(job.status, "a word"),
    "success": lambda job: job.success(),
    "go_on": lambda job: job.advance(keep_lock=True),
    "fail": lambda job: job.fail("x"),
    "set_space_needed": lambda job: job.set_space_needed(5),
    "set_inventory": lambda job: job.set_inventory({"x": 1}),
    "set_store": lambda job: job.set_store({"x": 1}),
    "delete": lambda job: job.delete(),
}


@pytest.fixture
def job_id(queue: JobQueue) -> str:
    """A job in Storing that nobody holds."""
    batch = queue.load_batch(started(queue))
    (job_id,) = batch.processing_jobs
    brought(queue, job_id, "Storing")
    return job_id


def acquired(queue: JobQueue, state: str = "Storing") -> Job:
    job = queue.acquire_job(state)
    assert job is not None
    return job


@pytest.mark.rule("intake.owner")
def test_one_job_is_not_moved_by_two_handles(queue: JobQueue, opening: Opening, job_id: str) -> None:
    """Who gave the lock back with the move does not take the next owner's away, and does not move the job again."""
    first = acquired(queue)
    first.success(unlock=True)
    second = acquired(queue, "Recording")
    first.unlock()
    assert acquired_by_nobody_else(queue, opening, job_id)
    with pytest.raises(LockLost):
        first.success()
    assert second.status == "Recording"
    second.success(unlock=True)
    assert second.status == "Notify"
    assert not [path for path in layout(queue) if path.endswith("/lock")]


def acquired_by_nobody_else(queue: JobQueue, opening: Opening, job_id: str) -> bool:
    return not queue.load_job(job_id).lock() and not opening().load_job(job_id).lock()


@pytest.mark.rule("intake.owner")
@pytest.mark.parametrize("name", CHANGES)
def test_who_never_held_it_changes_nothing_of_anothers(
    queue: JobQueue, opening: Opening, job_id: str, name: str
) -> None:
    """Neither in the same process nor in another; nor does it unlock."""
    held = acquired(queue)
    before = layout(queue)
    for other in (queue.load_job(job_id), opening().load_job(job_id)):
        with pytest.raises(StateError):
            CHANGES[name](other)
        other.unlock()
    assert layout(queue) == before
    held.success()


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "delete"])
def test_who_never_held_it_changes_what_nobody_holds(queue: JobQueue, job_id: str, name: str) -> None:
    """And leaves no lock behind."""
    CHANGES[name](queue.load_job(job_id))
    assert f"/jobs/{job_id}/lock" not in layout(queue)
    assert queue.audit() == []


@pytest.mark.rule("intake.owner")
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("lost", ["given back", "given back with a move", "taken away", "taken away, and taken again"])
def test_who_held_it_changes_nothing_until_it_acquires_again(
    queue: JobQueue, opening: Opening, job_id: str, name: str, lost: str
) -> None:
    """However the lock went, and whoever has it now."""
    job = acquired(queue)
    if lost == "given back":
        job.unlock()
    elif lost == "given back with a move":
        job.set_status(job.status, "a word")
        job.success(unlock=True)
    else:
        assert opening().load_job(job_id).revoke()
    again = queue.load_job(job_id)
    assert again.lock() or "again" not in lost
    if "again" not in lost:
        again.unlock()
    before = layout(queue)
    with pytest.raises(LockLost, match=f"/jobs/{job_id}/lock"):
        CHANGES[name](job)
    with pytest.raises(LockLost):
        CHANGES[name](job)
    job.unlock()
    assert layout(queue) == before
    assert not job.locked


def test_who_lost_it_can_acquire_it_again(queue: JobQueue, job_id: str) -> None:
    """With the same object."""
    job = acquired(queue)
    job.unlock()
    assert job.lock()
    job.success(unlock=True)
    assert job.status == "Recording"


@pytest.mark.rule("intake.owner")
def test_a_lock_that_another_tool_made_again_is_not_ours(queue: JobQueue, job_id: str) -> None:
    """It has the same name, and the same session may have made it: it is another node."""
    job = acquired(queue)
    store = queue.tree.store
    store.commit([Delete(f"/jobs/{job_id}/lock")])
    store.commit([Create(f"/jobs/{job_id}/lock", ephemeral=True)], session=store.session())
    before = layout(queue)
    with pytest.raises(LockLost):
        job.success()
    job.unlock()
    assert layout(queue) == before


@pytest.mark.rule("intake.owner")
def test_a_job_that_was_moved_without_its_lock_is_not_moved_by_its_holder(queue: JobQueue, job_id: str) -> None:
    """A move starts from the state that was acquired: a tool that heeds no lock is not followed blindly."""
    job = acquired(queue)
    path = f"/jobs/{job_id}/status"
    data = layout(queue)[path].replace('"Storing"', '"Recording"', 1).encode()
    entry = f"05-{job_id}"
    queue.tree.store.commit(
        [Set(path, data), Delete(f"/jobs/states/storing/{entry}"), Create(f"/jobs/states/recording/{entry}")]
    )
    with pytest.raises(LockLost):
        job.success()
    assert queue.load_job(job_id).status == "Recording"
    assert f"/jobs/{job_id}/lock" not in layout(queue)


def test_a_message_that_another_tool_set_stops_nobody(queue: JobQueue, job_id: str) -> None:
    """The state is the same: the holder goes on."""
    job = acquired(queue)
    path = f"/jobs/{job_id}/status"
    queue.tree.store.commit([Set(path, layout(queue)[path].encode())])
    job.success(unlock=True)
    assert queue.load_job(job_id).status == "Recording"


@pytest.mark.rule("intake.revoke")
def test_an_operator_fails_a_job_at_work(queue: JobQueue, opening: Opening, job_id: str) -> None:
    """The lock goes in the same change: who worked at it cannot go on, another may requeue it."""
    job = acquired(queue)
    opening().load_job(job_id).fail("hopeless", revoke=True)
    after = queue.load_job(job_id)
    assert (after.status, after.message) == ("Failed", "hopeless")
    assert f"/jobs/{job_id}/lock" not in layout(queue)
    with pytest.raises(LockLost):
        job.success()
    after.requeue()
    assert queue.audit() == []


@pytest.mark.rule("intake.revoke")
def test_an_operator_takes_a_lock_away(queue: JobQueue, opening: Opening, job_id: str) -> None:
    """Of a job and of a batch; it stays in its state, and can be acquired."""
    job = acquired(queue)
    batch = queue.load_batch(job.batch_id)
    assert batch.lock()
    before = layout(queue)
    other = opening()
    assert other.load_job(job_id).revoke()
    assert other.load_batch(batch.id).revoke()
    assert not other.load_batch(batch.id).revoke()
    assert layout(queue) == {path: data for path, data in before.items() if not path.endswith("/lock")}
    for change in (job.success, lambda: batch.set_status("Reporting"), lambda: batch.create_job({})):
        with pytest.raises(LockLost):
            change()
    assert acquired(other).id == job_id


def test_a_revoked_holder_does_not_unlock_the_next_one(queue: JobQueue, opening: Opening, job_id: str) -> None:
    """Nor does its success that unlocks."""
    job = acquired(queue)
    queue.load_job(job_id).revoke()
    again = acquired(queue)
    job.unlock()
    with pytest.raises(LockLost):
        job.success(unlock=True)
    assert acquired_by_nobody_else(queue, opening, job_id)
    again.success(unlock=True)


def test_a_change_that_is_refused_keeps_the_lock(queue: JobQueue, job_id: str) -> None:
    """A move that the table does not have is the caller's error: the work goes on."""
    job = acquired(queue)
    with pytest.raises(StateError, match=r"\(Storing->Completed\)"):
        job.set_status("Completed")
    job.success()


def test_batches_and_requests_have_owners_too(queue: JobQueue, opening: Opening) -> None:
    """A batch that is being reported is nobody else's."""
    started(queue, jobs=0)
    batch = queue.acquire_batch_in_processing()
    assert isinstance(batch, Batch)
    with pytest.raises(ItemLocked, match=f"/batches/{batch.id}/lock"):
        opening().load_batch(batch.id).fail("x")
    queue.create_assembly("small", {})
    request = queue.acquire_pending_assembly("small")
    assert request is not None
    with pytest.raises(ItemLocked):
        opening().load_assembly("small", request.id).set_status("Processing")
    with pytest.raises(ItemLocked):
        opening().load_assembly("small", request.id).set_token({"x": 1})
    request.set_status("Processing")


def test_a_creation_is_checked_with_the_change(queue: JobQueue) -> None:
    """The store's own word: nothing of a commit takes effect on a node that was made again."""
    store = queue.tree.store
    store.commit([Create("/locks/storage/x")])
    (node,) = store.read(["/locks/storage/x"])
    assert node is not None
    store.commit([Delete("/locks/storage/x"), Create("/locks/storage/x")])
    with pytest.raises(Conflict, match="/locks/storage/x"):
        store.commit([Check("/locks/storage/x", creation=node.creation), Create("/locks/storage/y")])
    assert layout(queue) == {"/locks/storage/x": ""}


@pytest.mark.rule("intake.revoke")
def test_who_was_revoked_can_be_given_the_job_again(queue: JobQueue, opening: Opening, job_id: str) -> None:
    """Nobody else may be there to acquire it; ZooKeeper's handle remembered the lock for good."""
    first = acquired(queue)
    opening().load_job(job_id).revoke()
    with pytest.raises(LockLost):
        first.success()
    assert acquired(queue).id == job_id
