"""`ferryman intake` for operators: what they do to jobs that wait, and to jobs that are at work."""

from __future__ import annotations

import pytest

from ferryman.intake import JobQueue, LockLost
from ferryman.intake.store.base import Delete, Set
from tests.intake.command import Run, queue, rows, run
from tests.intake.conftest import brought, started

__all__ = ["queue", "run"]


@pytest.mark.rule("intake.revoke")
@pytest.mark.parametrize("words", [["unlock"], ["unlock", "job"]])
def test_unlock_a_job(run: Run, queue: JobQueue, words: list[str]) -> None:
    """Its holder cannot go on, another may acquire it."""
    started(queue)
    job = queue.acquire_job("Pending")
    assert job is not None
    assert run(*words, job.id) == (0, f"{job.id}: unlocked\n", "")
    assert run(*words, job.id) == (0, f"{job.id}: was not locked\n", "")
    with pytest.raises(LockLost):
        job.set_status("Estimating")
    assert queue.acquire_job("Pending") is not None


def test_unlock_a_batch_and_a_request(run: Run, queue: JobQueue) -> None:
    """By their ids."""
    queue.create_batch({})
    queue.create_assembly("small", {})
    batch, request = queue.acquire_pending_batch(), queue.acquire_pending_assembly("small")
    assert batch is not None
    assert request is not None
    assert run("unlock", batch.id)[1] == f"{batch.id}: unlocked\n"
    assert run("unlock", "access", f"small/{request.id}")[1] == f"small/{request.id}: unlocked\n"
    for held in (batch, request):
        with pytest.raises(LockLost):
            held.fail("x")


@pytest.mark.parametrize("kind", ["inventory", "localid"])
def test_unlock_what_lives_with_a_process(run: Run, queue: JobQueue, kind: str) -> None:
    """Also while the process lives: an operator knows that it hangs."""
    assert queue.locks.lock(kind, "ark:/1/2")
    assert run("unlock", kind, "ark:/1/2")[1] == f"{kind} ark:/1/2: unlocked\n"
    assert run("unlock", kind, "ark:/1/2")[1] == f"{kind} ark:/1/2: was not locked\n"
    assert not queue.locks.check(kind, "ark:/1/2")


@pytest.mark.rule("intake.revoke")
def test_fail_a_job_at_work(run: Run, queue: JobQueue) -> None:
    """It is Failed with the reason, and can be requeued and deleted; who worked at it has lost it."""
    started(queue, jobs=2)
    one, two = queue.list_jobs()
    brought(queue, one, "Processing")
    held = queue.acquire_job("Processing")
    assert held is not None
    assert run("fail", one, two, "--message", "it hangs")[1] == f"{one}: Failed\n{two}: Failed\n"
    with pytest.raises(LockLost):
        held.success()
    assert queue.load_job(one).message == "it hangs"
    assert run("requeue", one)[1] == f"{one}: Processing\n"
    assert run("delete", two)[1] == f"{two}: Deleted\n"
    code, _, err = run("fail", two)
    assert (code, err) == (1, f"error: {two}: State change (Deleted->fail) is not allowed\n")
    assert queue.audit() == []


def test_what_somebody_works_at_is_left_alone(run: Run, queue: JobQueue) -> None:
    """By the verbs that do not take the lock away: they say so."""
    started(queue)
    job = queue.acquire_job("Pending")
    assert job is not None
    for words in (["hold", job.id], ["prioritize", job.id, "--priority", "0"]):
        code, out, err = run(*words)
        assert (code, out) == (1, "")
        assert "another process is working on it" in err
    job.set_status("Estimating")


def test_prioritize(run: Run, queue: JobQueue) -> None:
    """One job, or all that wait of a batch; status and message stay."""
    batch_id = started(queue, jobs=3)
    one, two, three = queue.list_jobs()
    queue.load_job(two).set_status("Held", "why not")
    assert run("prioritize", three, "--priority", "1")[1] == f"{three}: priority 1\n"
    assert queue.list_jobs("Pending") == [three, one]
    assert run("prioritize", batch_id, "--priority", "7")[0] == 0
    assert {queue.load_job(job).priority for job in (one, two, three)} == {7}
    assert (queue.load_job(two).status, queue.load_job(two).message) == ("Held", "why not")
    assert queue.audit() == []


def test_count(run: Run, queue: JobQueue) -> None:
    """Jobs and batches by state."""
    started(queue, jobs=3)
    queue.create_batch({})
    brought(queue, queue.list_jobs()[0], "Storing")
    assert [line.split() for line in run("count")[1].splitlines()] == [
        ["state", "jobs", "batches"],
        ["Pending", "2", "1"],
        ["Processing", "0", "1"],
        ["Storing", "1", "0"],
    ]
    counted = {row["state"]: (row["jobs"], row["batches"]) for row in rows(run("count", "--json"))}
    assert counted["Storing"] == (1, 0)
    assert counted["Failed"] == (0, 0)


@pytest.mark.parametrize("verb", ["show", "hold", "release", "requeue", "delete", "fail", "unlock"])
@pytest.mark.parametrize(
    ("name", "what"), [("bid0000000077", "batch"), ("jid0000000077", "job"), ("small/qid0000000077", "access request")]
)
def test_a_mistyped_id(run: Run, queue: JobQueue, verb: str, name: str, what: str) -> None:
    """It is an error of who typed it, not damage."""
    if verb == "requeue" and what == "access request":
        what = "job (jid…)"
    code, out, err = run(verb, name)
    assert (code, out) == (2, "")
    assert f"no such {what}" in err or f"give a {what}" in err
    assert "audit" not in err


def test_a_mistyped_id_stops_no_other(run: Run, queue: JobQueue) -> None:
    """What can be done is done."""
    started(queue)
    (job,) = queue.list_jobs()
    assert run("hold", "jid0000000077", job)[:2] == (2, f"{job}: Held\n")
    assert run("report", "bid0000000077")[0] == 2
    assert run("jobs", "--batch", "bid0000000077")[0] == 2
    assert run("prioritize", "bid0000000077", "--priority", "1")[0] == 2


DAMAGES = {
    "not JSON": ("status", b"\xff{"),
    "no object": ("status", b"[1]"),
    "no state": ("status", b'{"status": "Unheard-of", "retry_count": 3}'),
    "a list as state": ("status", b'{"status": ["Failed"], "last_successful_status": ["x"]}'),
    "no status": ("status", None),
    "no priority": ("priority", None),
    "a word as priority": ("priority", b"high"),
    "no batch": ("bid", None),
    "no text as batch": ("bid", b"\xff"),
}


def damage(queue: JobQueue, path: str, data: bytes | None) -> None:
    queue.tree.store.commit([Delete(path) if data is None else Set(path, data)])


@pytest.mark.rule("intake.rewrite")
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("state", ["Pending", "Processing", "Failed"])
def test_a_damaged_job_is_failed_and_deleted(run: Run, queue: JobQueue, how: str, state: str) -> None:
    """By `fail` or `delete`, in whatever state it was, also while somebody works at it; then its batch goes on."""
    batch_id = started(queue, jobs=2)
    held = queue.acquire_job("Pending")
    assert held is not None
    one, other = queue.list_jobs()
    assert held.id == one
    if state != "Pending":
        held.set_status("Estimating")
    if state == "Failed":
        held.fail("why", unlock=True)
    name, data = DAMAGES[how]
    damage(queue, f"/jobs/{one}/{name}", data)
    told = [finding.text for finding in queue.audit(repair=True) if finding.path == f"/jobs/{one}/{name}"]
    assert len(told) == 1
    assert name == "bid" or f"`ferryman intake fail {one}`" in told[0]

    if state != "Failed" or name == "status":
        assert run("fail", one, "--message", "given up") == (0, f"{one}: Failed\n", "")
        assert queue.load_job(one).message == "given up"
        assert queue.load_batch(batch_id).failed_jobs == [one]
        assert queue.audit() == []
        assert run("requeue", one)[0] == 0
        assert run("fail", one)[0] == 0
    assert run("delete", one) == (0, f"{one}: Deleted\n", "")
    assert queue.load_batch(batch_id).deleted_jobs == [one]
    assert queue.audit() == []
    queue.load_job(other).fail("x")
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    batch.fail("x")
    batch.set_status("Deleted")
    batch.unlock()
    assert queue.cleanup().removed == [batch_id]


@pytest.mark.rule("intake.rewrite")
def test_delete_rewrites_a_damaged_job_too(run: Run, queue: JobQueue) -> None:
    """Without a `fail` before; a job whose configuration is damaged is given up as any other."""
    batch_id = started(queue, jobs=2)
    one, two = queue.list_jobs()
    damage(queue, f"/jobs/{one}/status", b"")
    assert run("delete", one) == (0, f"{one}: Deleted\n", "")
    damage(queue, f"/jobs/{two}/configuration", b"{")
    assert run("fail", two) == (0, f"{two}: Failed\n", "")
    assert run("delete", two) == (0, f"{two}: Deleted\n", "")
    assert sorted(queue.load_batch(batch_id).deleted_jobs) == [one, two]
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    batch.success(unlock=True)
    assert queue.cleanup() == ([batch_id], [])


@pytest.mark.rule("intake.rewrite")
@pytest.mark.parametrize("data", [b"", b"[]", None])
def test_a_damaged_batch_and_a_damaged_request(run: Run, queue: JobQueue, data: bytes | None) -> None:
    """Given up and removed in the same way, also without a readable submission."""
    batch = queue.create_batch({"batchID": "b"})
    request = queue.create_assembly("small", {"objects": []})
    for name, path in ((batch.id, batch.path), (f"small/{request.id}", request.path)):
        damage(queue, f"{path}/status", data)
        (finding,) = queue.audit(repair=True)
        assert f"`ferryman intake delete {name}`" in finding.text
        assert run("fail", name) == (0, f"{name}: Failed\n", "")
        damage(queue, f"{path}/status", data)
        assert run("delete", name) == (0, f"{name}: Deleted\n", "")
        assert queue.audit() == []
        damage(queue, f"{path}/{'submission' if name == batch.id else 'token'}", b"{")
        assert run("delete", name) == (0, f"{name}: removed\n", "")
    assert queue.find_batch_by_uuid("b") is None
    assert queue.audit() == []
    assert run("delete", batch.id)[0] == 2


@pytest.mark.rule("intake.rewrite")
def test_an_item_in_order_is_not_rewritten(run: Run, queue: JobQueue) -> None:
    """Moves that the table does not have stay refused."""
    batch_id = started(queue)
    (job,) = queue.list_jobs()
    brought(queue, job, "Completed")
    for words in (["fail", job], ["delete", batch_id], ["fail", f"{job}/status"]):
        code, out, err = run(*words)
        assert (code > 0, out) == (True, "")
        assert "not allowed" in err or "no such" in err


def test_a_damaged_job_keeps_no_other_on_hold(run: Run, queue: JobQueue) -> None:
    """The others of its collection are released, and it is named."""
    batch = queue.create_batch({"profile_name": "maps"})
    batch.set_status("Processing")
    damaged, whole = [batch.create_job({"jobID": str(n)}) for n in range(2)]
    for job in (damaged, whole):
        job.set_status("Held")
    assert queue.locks.lock("collection", "maps")
    queue.tree.store.commit([Set(f"{damaged.path}/configuration", b"{")])
    code, out, err = run("release", "--collection", "maps")
    assert (code, out) == (1, f"collection maps: not on hold, 1 held job\n{whole.id}: Pending\n")
    assert err.startswith(f"error: {damaged.id}: ")
    assert not queue.locks.check("collection", "maps")
