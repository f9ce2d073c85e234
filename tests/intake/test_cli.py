"""`ferryman intake`, as a person and a script use it."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from ferryman.intake import JobQueue
from ferryman.intake.nodes import format_time
from ferryman.intake.store.base import Create, Delete
from tests.intake.command import Run, queue, rows, run
from tests.intake.conftest import brought, started

__all__ = ["queue", "run"]


def test_submit(run: Run, place: Path) -> None:
    """A file, a URL; what it is by its name; a missing file is refused; twice is once."""
    (place / "a b.zip").write_bytes(b"x")
    made = rows(run("submit", "a b.zip", "--submitter", "me", "--collection", "maps", "--batch-id", "b-1", "--json"))
    assert format_time(time.time())[:10] >= made["submission"].pop("submissionDate")[:10] >= "2026"
    assert made["submission"] == {
        "profile_name": "maps",
        "submitter": "me",
        "payload_url": (place / "a b.zip").resolve().as_uri(),
        "payload_type": "container",
        "payload_file_name": "a b.zip",
        "batchID": "b-1",
    }
    assert run("submit", "http://x/list.csv?v=1", "--priority", "2") == (0, "bid0000000001\n", "")
    shown = rows(run("show", "bid0000000001", "--json"))
    assert shown["submission"]["payload_type"] == "manifest"
    assert shown["submission"]["priority"] == 2
    assert rows(run("submit", "a b.zip", "--type", "file", "--json"))["submission"]["payload_type"] == "file"
    code, out, err = run("submit", "nowhere.txt")
    assert (code, out) == (2, "")
    assert "nowhere.txt: there is no such file" in err
    code, _, err = run("submit", "a b.zip", "--batch-id", "b-1")
    assert code == 2
    assert "belongs to batch bid0000000000" in err
    assert [row["id"] for row in rows(run("batches", "--json"))] == ["bid0000000000", "bid0000000001", "bid0000000002"]


def test_listings(run: Run, queue: JobQueue) -> None:
    """Batches, jobs, requests: in a pipe and as JSON, filtered; a damaged one hides no other."""
    assert run("batches") == (0, "", "There are none.\n")
    started(queue, jobs=3)
    batch = queue.load_batch(started(queue, jobs=0))
    urgent = batch.create_job({"n": 1}, priority=0)
    brought(queue, "jid0000000001", "Storing")
    queue.load_job("jid0000000002").fail("no space")
    queue.create_assembly("large", {"token": "t"})
    jobs = rows(run("jobs", "--json"))
    assert jobs[0]["id"] == urgent.id
    assert {job["id"]: (job["status"], job["message"]) for job in jobs}["jid0000000002"] == ("Failed", "no space")
    assert [job["id"] for job in rows(run("jobs", "--state", "storing", "--json"))] == ["jid0000000001"]
    assert [job["id"] for job in rows(run("jobs", "--batch", batch.id, "--json"))] == [urgent.id]
    assert "jid0000000002  bid0000000000  Failed" in run("jobs")[1]
    first = rows(run("batches", "--json"))[0]
    assert (first["processing"], first["failed"]) == (2, 1)
    assert rows(run("access", "--json"))[0]["id"] == "large/qid0000000000"
    assert "last_successful_status: Processing" in run("show", "jid0000000001")[1]
    assert "token: {'token': 't'}" in run("show", "large/qid0000000000")[1]
    queue.tree.store.commit([Delete("/jobs/jid0000000003/bid")])
    assert len(rows(run("jobs", "--json"))) == 4
    assert run("show", "jid0000000003")[0] == 1
    assert run("show", "x")[0] == 2
    assert run("jobs", "--state", "Lost")[0] == 2


def test_hold_release_requeue_delete(run: Run, queue: JobQueue) -> None:
    """One by one; what cannot be is named, the rest is done, and the command ends with 1."""
    batch_id = started(queue, jobs=3)
    one, two, three = queue.list_jobs()
    assert run("hold", one, two)[1] == f"{one}: Held\n{two}: Held\n"
    code, out, err = run("release", one, one, two)
    assert (code, out) == (1, f"{one}: Pending\n{two}: Pending\n")
    assert err == f"error: {one}: State change (Pending->Pending) is not allowed\n"

    queue.load_job(three).fail("x")
    assert run("requeue", batch_id, "--priority", "1")[1] == f"{three}: Estimating\n"
    assert (queue.load_job(three).priority, queue.load_job(three).retry_count) == (1, 1)
    code, out, err = run("requeue", one, "--message", "again")
    assert (code, out) == (1, "")
    assert f"{one}: State change (Pending->Estimating) is not allowed" in err
    queue.load_job(three).fail("x")
    assert run("delete", three)[1] == f"{three}: Deleted\n"
    assert run("delete", three, one) == (
        1,
        f"{three}: removed\n",
        f"error: {one}: State change (Pending->Deleted) is not allowed\n",
    )
    assert queue.list_jobs() == [one, two]
    assert run("hold")[0] == 2


def test_a_collection(run: Run, queue: JobQueue) -> None:
    """Held, and released with all its held jobs, and no other's."""
    batch = queue.load_batch(started(queue, jobs=0, submission={"profile_name": "maps"}))
    mine, other = batch.create_job({}), batch.create_job({"profile_name": "coins"})
    assert run("hold", "--collection", "maps")[1] == "collection maps: on hold\n"
    assert run("hold", "--collection", "maps")[1] == "collection maps: is on hold already\n"
    job = queue.acquire_job("Pending")
    assert job is not None
    assert job.id == other.id
    job.set_status("Held")
    job.unlock()
    out = run("release", "--collection", "maps")[1]
    assert out == f"collection maps: not on hold, 1 held job\n{mine.id}: Pending\n"
    assert queue.list_jobs("Held") == [other.id]


def test_pause_and_locks(run: Run, queue: JobQueue) -> None:
    """Set and taken away."""
    assert run("pause")[1] == "ingest: paused\n"
    assert run("pause", "--access", "small")[1] == "access-small: paused\n"
    assert run("pause", "--access", "huge")[0] == 2
    assert queue.acquire_job("Pending") is None
    assert rows(run("lock", "--json")) == [
        {"kind": "ingest", "name": "ingest"},
        {"kind": "access-small", "name": "access-small"},
    ]
    assert run("resume")[1] == "ingest: resumed\n"
    assert run("resume")[1] == "ingest: was not paused\n"
    assert run("lock", "storage", "ark:/1/2")[1] == "storage ark:/1/2: locked\n"
    assert run("lock", "storage", "ark:/1/2")[0] == 1
    assert run("unlock", "storage", "ark:/1/2")[1] == "storage ark:/1/2: unlocked\n"
    assert run("lock", "localid", "x")[0] == 2
    assert queue.locks.lock("localid", "x")
    assert run("lock", "door")[0] == 2


def test_report_and_cleanup(run: Run, queue: JobQueue) -> None:
    """A failed batch is reported anew on a person's word; what is done with is removed."""
    batch = queue.load_batch(started(queue))
    batch.set_status("Failed")
    assert run("report", batch.id)[1] == f"{batch.id}: UpdateReporting\n"
    assert run("cleanup") == (0, "", "There was nothing to remove.\n")
    batch.success()
    assert rows(run("cleanup", "--json")) == {"removed": [batch.id], "passed_over": {}}
    damaged = queue.load_batch(started(queue))
    damaged.set_status("Reporting")
    damaged.success()
    queue.tree.store.commit([Delete(f"/jobs/{damaged.processing_jobs[0]}/status")])
    code, _, err = run("cleanup")
    assert code == 1
    assert f"{damaged.id} stays: /jobs/" in err


def test_audit(run: Run, queue: JobQueue) -> None:
    """Findings a row; young ones are warnings, and end with 0."""
    assert run("audit") == (0, "", "Every node is as it should be.\n")
    started(queue)
    queue.tree.store.commit([Create("/jobs/states/held/05-jid0000000001")])
    (found,) = rows(run("audit", "--json"))
    assert (found["path"], found["rule"], found["level"]) == ("/jobs/jid0000000001", "job state", "WARN")
    assert "Repaired." in run("audit", "--repair")[1]
    assert run("audit", "--json")[1] == "[]\n"


def test_dump_and_restore(run: Run, queue: JobQueue, place: Path) -> None:
    """Through a file or stdout; a file that is none is refused."""
    started(queue, jobs=2)
    assert run("dump", "d.json")[0] == 0
    assert json.loads((place / "d.json").read_text())["nodes"] == rows(run("dump"))["nodes"]
    assert run("restore", "d.json", "--queue", f"sqlite:///{place}/new.db")[0] == 0
    assert len(rows(run("jobs", "--json", "--queue", f"sqlite:///{place}/new.db"))) == 2
    queue.create_batch({})
    code, _, err = run("restore", "d.json")
    assert code == 2
    assert "the queue is not empty" in err
    (place / "bad.json").write_text("{")
    assert run("restore", "bad.json")[0] == 2
    assert run("restore", "nowhere.json")[0] == 1


def test_import_legacy(run: Run, place: Path) -> None:
    """What could not be read is named, and the command ends with 1."""
    (place / "old").mkdir()
    good, bad = "mrtQ-05100000000001", "mrtQ-05100000000002"
    (place / "old" / good).write_bytes(struct.pack(">Bq", 5, 1_700_000_000) + b"batchID=b\n")
    (place / "old" / bad).write_bytes(b"x")
    code, out, err = run("import-legacy", "old")
    assert (code, out) == (1, f"{good}: jid0000000001\n")
    assert "1 imported, 0 were already there, 1 skipped" in err
    assert f"error: {bad}: 1 bytes are too few" in err
    assert run("import-legacy", "old")[1] == ""


def test_a_queue_that_cannot_be_opened(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says which one, and what to give; FERRYMAN_QUEUE names one."""
    (place / "other.db").write_bytes(b"no database, but long enough to be taken for the head of one" * 20)
    for url, code in (
        (f"sqlite:///{place}/nowhere/q.db", 2),
        (f"sqlite:///{place}/other.db", 2),
        ("memory:", 2),
        ("redis://x", 2),
        ("zookeeper:///x", 2),
    ):
        got, _, err = run("batches", "--queue", url)
        assert got == code, err
        assert err.startswith("error: ")
        assert "Traceback" not in err
    monkeypatch.setenv("FERRYMAN_QUEUE", f"sqlite:///{place}/mine.db")
    assert run("submit", "http://x/y")[0] == 0
    assert (place / "mine.db").exists()
