"""Every rule of the layout is looked at; what is safe to mend is mended, and nothing else is touched."""

from __future__ import annotations

import pytest

from ferryman.intake import JobQueue
from ferryman.intake.store.base import Create, Delete, Op, Set
from tests.intake.conftest import brought, layout, started
from tests.support.tiers import sampled

B, J = "/batches/bid0000000000", "/jobs/jid0000000001"
OLD_S = 3 * 3600.0

MENDED: dict[str, tuple[list[Op], str, str]] = {
    "no folder": ([Delete("/locks/inventory")], "/locks/inventory", "folder"),
    "no uuid": ([Delete("/batch-uuids/b-1")], "/batch-uuids/b-1", "batch uuid"),
    "uuid of nothing": ([Create("/batch-uuids/b-2", b"bid0000000099")], "/batch-uuids/b-2", "uuid batch"),
    "in no state": ([Delete("/jobs/states/pending/05-jid0000000001")], J, "job state"),
    "in two states": ([Create("/jobs/states/storing/05-jid0000000001")], J, "job state"),
    "twice in a state": ([Create("/jobs/states/pending/07-jid0000000001")], J, "job state"),
    "in another state": (
        [Delete("/jobs/states/pending/05-jid0000000001"), Create("/jobs/states/held/05-jid0000000001")],
        J,
        "job state",
    ),
    "in no list": ([Delete(f"{B}/states/batch-processing/jid0000000001")], J, "job batch list"),
    "in two lists": (
        [Create(f"{B}/states/batch-failed"), Create(f"{B}/states/batch-failed/jid0000000001")],
        J,
        "job batch list",
    ),
    "no list": (
        [Delete(f"{B}/states/batch-processing/jid0000000001"), Delete(f"{B}/states/batch-processing")],
        J,
        "job batch list",
    ),
    "list without job": (
        [Create(f"{B}/states/batch-processing/jid0000000044")],
        f"{B}/states/batch-processing/jid0000000044",
        "list without job",
    ),
    "state without job": (
        [Create("/jobs/states/notify/05-jid0000000044")],
        "/jobs/states/notify/05-jid0000000044",
        "list without job",
    ),
}

LEFT: dict[str, tuple[list[Op], str, str]] = {
    "unknown node": ([Create("/jobs/notes")], "/jobs/notes", "unknown node"),
    "no submission": ([Delete(f"{B}/submission")], f"{B}/submission", "batch submission"),
    "bad batch status": ([Set(f"{B}/status", b"{}")], f"{B}/status", "status"),
    "uuid of another": ([Set("/batch-uuids/b-1", b"bid0000000001")], "/batch-uuids/b-1", "batch uuid"),
    "no job status": ([Delete(f"{J}/status")], f"{J}/status", "status"),
    "bad job status": ([Set(f"{J}/status", b'{"status":"Lost"}')], f"{J}/status", "status"),
    "no bid": ([Delete(f"{J}/bid")], f"{J}/bid", "job bid"),
    "bid of nothing": ([Set(f"{J}/bid", b"bid0000000099")], f"{J}/bid", "job batch"),
    "bad priority": ([Set(f"{J}/priority", b"five")], f"{J}/priority", "job priority"),
    "bad space": ([Set(f"{J}/space_needed", b"")], f"{J}/space_needed", "job space_needed"),
    "bad configuration": ([Set(f"{J}/configuration", b"x")], f"{J}/configuration", "job configuration"),
    "bad token": (
        [Set("/access/small/qid0000000000/token", b"")],
        "/access/small/qid0000000000/token",
        "access token",
    ),
    "lock of another name": ([Create("/locks/storage/ark_1", b"ark:/2")], "/locks/storage/ark_1", "lock name"),
    "lock that stays": ([Create(f"{J}/lock")], f"{J}/lock", "stale lock"),
}


@pytest.fixture
def healthy(queue: JobQueue) -> JobQueue:
    """Two batches, a request, some locks: no finding."""
    started(queue, jobs=2, submission={"batchID": "b-1"})
    brought(queue, "jid0000000002", "Completed")
    started(queue)
    queue.create_assembly("small", {"token": "t"})
    queue.locks.lock("storage", "ark:/9/9")
    queue.locks.lock("localid", "x_y")
    assert queue.load_batch("bid0000000001").lock()
    assert queue.audit() == []
    return queue


@pytest.mark.rule("intake.audit")
@pytest.mark.parametrize("name", sampled([*MENDED, *LEFT], 3))
def test_damage_is_found(healthy: JobQueue, name: str) -> None:
    """By its rule, at its node; a repair mends what is safe, and leaves the rest as it is."""
    before = layout(healthy)
    ops, path, rule = (MENDED | LEFT)[name]
    healthy.tree.store.commit(ops)
    damaged = layout(healthy)

    findings = healthy.audit()

    assert (path, rule) in {(one.path, one.rule) for one in findings}
    assert {one.level for one in findings} <= {"WARN", "FAIL"}
    assert layout(healthy) == damaged
    repaired = healthy.audit(repair=True)
    assert [one.path for one in repaired] == [one.path for one in findings]
    if name in MENDED:
        assert all(one.text.endswith("Repaired.") for one in repaired)
        assert healthy.audit() == []
        if "batch-failed" not in str(ops):  # folders stay
            assert layout(healthy) == before
    else:
        assert layout(healthy) == damaged
        assert healthy.audit() == findings or name == "bid of nothing"


def test_what_is_older_than_an_hour_fails() -> None:
    """Younger, it may be somebody's work of this moment; a stale lock is taken away only then."""
    now = 1_000_000.0
    queue = JobQueue.open("memory:", clock=lambda: now)
    started(queue)
    queue.tree.store.commit([Create(f"{J}/lock")])
    (found,) = queue.audit(repair=True)
    assert (found.level, found.age_s, f"{J}/lock" in layout(queue)) == ("WARN", 0.0, True)
    now += OLD_S
    (found,) = queue.audit()
    assert (found.path, found.rule, found.level, found.age_s) == (f"{J}/lock", "stale lock", "FAIL", OLD_S)
    (found,) = queue.audit(repair=True)
    assert found.text.endswith("Repaired.")
    assert f"{J}/lock" not in layout(queue)
    assert queue.audit() == []


def test_a_queue_in_use_has_no_findings(queue: JobQueue) -> None:
    """However much moves while it is read."""
    import threading

    started(queue, jobs=20)
    stop = threading.Event()

    def moving() -> None:
        while not stop.is_set():
            for job in queue.list_jobs():
                one = queue.load_job(job)
                one.set_status("Failed" if one.status != "Failed" else "Pending", priority=3)

    threads = [threading.Thread(target=moving)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert queue.audit(repair=True) == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
