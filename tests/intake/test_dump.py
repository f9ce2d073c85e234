"""A queue as one JSON value, and back: on any store, from any store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue
from ferryman.intake.store.base import Set
from tests.intake.conftest import brought, layout, started


@pytest.fixture
def full() -> JobQueue:
    """With a bit of everything, ids that were given and are gone, and data that are no text."""
    queue = JobQueue.open("memory:")
    gone = queue.load_batch(started(queue, jobs=5))
    gone.set_status("Reporting")
    gone.success()
    gone.delete()
    started(queue, jobs=3, submission={"batchID": "b-1", "erc_who": "Ünï ☃"})
    brought(queue, queue.list_jobs()[0], "Storing")
    queue.load_job(queue.list_jobs()[1]).fail("no")
    queue.create_assembly("small", {"token": "t"})
    queue.locks.lock("collection", "maps/old")
    queue.locks.lock("localid", "x")
    assert queue.acquire_job("Storing") is not None
    queue.tree.store.commit([Set("/locks/collections/maps_old", b"\xff\x00")])
    return queue


def kept(queue: JobQueue) -> dict[str, str]:
    """What stays of a queue: no locks that live with a session."""
    return {path: data for path, data in layout(queue).items() if not path.endswith("/lock") and "localid" not in path}


@pytest.mark.rule("intake.dump")
def test_a_dump_is_restored(full: JobQueue, queue: JobQueue) -> None:
    """Through JSON, node for node; what lives with a session is not in it; no id is given twice."""
    data = json.loads(json.dumps(full.dump()))
    assert not [path for path in data["nodes"] if path.endswith("/lock") or "localid/" in path]
    queue.restore(data)
    assert kept(queue) == kept(full)
    assert layout(queue) == kept(full)
    again = queue.dump()
    assert {**again, "dumped": ""} == {**data, "dumped": ""}
    assert [one.rule for one in queue.audit()] == [one.rule for one in full.audit()]
    assert queue.create_batch({}).id == full.create_batch({}).id == "bid0000000002"
    batch = queue.load_batch("bid0000000001")
    assert batch.create_job({}).id == "jid0000000009"
    assert queue.acquire_job("Storing") is not None


def test_a_restore_that_was_killed_is_done_again(
    full: JobQueue, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused in between, so that nobody starts on half a queue."""
    from ferryman.intake import audit

    data = full.dump()
    monkeypatch.setattr(audit, "COMMIT_NODES", 7)
    commits = 0
    commit = queue.tree.commit

    def killed(*args: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 4:
            raise KeyboardInterrupt
        commit(*args)

    monkeypatch.setattr(queue.tree, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        queue.restore(data)
    assert queue.locks.check("ingest")
    assert queue.acquire_job("Pending") is None
    queue.restore(data)
    assert layout(queue) == kept(full)


def test_only_an_empty_queue_is_restored(full: JobQueue, queue: JobQueue) -> None:
    """Another stays as it is."""
    started(queue)
    before = layout(queue)
    with pytest.raises(UsageError, match="is not empty"):
        queue.restore(full.dump())
    assert layout(queue) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: [],
        lambda data: {**data, "format": 2},
        lambda data: {**data, "nodes": None},
        lambda data: {**data, "nodes": {"/etc/x": ""}},
        lambda data: {**data, "nodes": {"/jobs": 5}},
        lambda data: {**data, "nodes": {"/jobs": {"base64": "?"}}},
        lambda data: {**data, "numbers": {"/jobs": "x"}},
        lambda data: {**data, "numbers": {"/locks": 5}},
    ],
)
def test_what_is_no_dump_is_refused(full: JobQueue, queue: JobQueue, damage: Any) -> None:
    """Nothing is made of it."""
    with pytest.raises(UsageError, match="dump"):
        queue.restore(damage(full.dump()))
    assert layout(queue) == {}
