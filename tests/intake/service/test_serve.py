"""From a submission to a report that is true; what is stopped, paused, taken up again."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.errors import UsageError
from ferryman.intake import JobQueue
from ferryman.intake.service import stages
from ferryman.intake.service.stages import SpaceBudget
from ferryman.intake.service.workspace import DiskSpace, Workspace
from tests.intake.service.place import Place, until
from tests.intake.service.receiver import FileServer, Receiver


def done(place: Place) -> dict[str, str]:
    """Job -> its message, of those that failed."""
    return {job: place.queue.load_job(job).message for job in place.queue.list_jobs("Failed")}


@pytest.mark.rule("intake.manifest")
@pytest.mark.parametrize("name", ["manifest.csv", "manifest.jsonl"])
def test_a_manifest_is_delivered(intake: Place, name: str) -> None:
    """Lines with one local id are one job; each file is a document; batch and jobs are Completed."""
    rows = [intake.row(f"{o}/{f}.txt", local_id=f"object {o}", title="T") for o in range(3) for f in range(2)]
    batch = intake.queue.load_batch(intake.submit(manifest_url=intake.manifest(rows, name)))

    intake.serve()

    assert list(intake.jobs().values()) == ["Completed"] * 3
    assert (batch.status, batch.message) == ("Completed", "3 jobs completed")
    assert intake.rows() == [(f"object {o}/{f}.txt", f"content of {o}/{f}.txt") for o in range(3) for f in range(2)]
    assert account.status(intake.root, intake.plan)["balanced"]
    assert not list((intake.serving.work / "jobs").iterdir()), "nothing is left in the working space"


def test_the_kinds_of_payload(intake: Place) -> None:
    """A file; a container; a manifest of one object; manifests of manifests and of containers."""
    packed = intake.files / "c.zip"
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("deep/x.txt", "in the zip")
    inner = intake.manifest([intake.row("i1.txt"), intake.row("i2.txt")], "inner.jsonl")
    outer = intake.manifest([{"url": inner, "local_id": "many"}], "outer.csv")
    packs = intake.manifest([{"url": packed.as_uri(), "local_id": "packed"}], "packs.csv")
    intake.submit(payload_url=intake.put("one.txt", "alone").as_uri(), local_id="file")
    intake.submit(payload_url=packed.as_uri(), local_id=["zip"], payload_type="container")
    intake.submit(payload_url=inner, payload_type="object-manifest", local_id="object")
    intake.submit(payload_url=outer, payload_type="manifest-of-manifests")
    intake.submit(payload_url=packs, payload_type="manifest-of-containers")

    intake.serve()

    assert done(intake) == {}
    assert intake.rows() == [
        ("file/one.txt", "alone"),
        ("many/i1.txt", "content of i1.txt"),
        ("many/i2.txt", "content of i2.txt"),
        ("object/i1.txt", "content of i1.txt"),
        ("object/i2.txt", "content of i2.txt"),
        ("packed/deep/x.txt", "in the zip"),
        ("zip/deep/x.txt", "in the zip"),
    ]


@pytest.mark.rule("intake.corrupt")
def test_what_is_corrupt(intake: Place) -> None:
    """A corrupt manifest of a batch fails the batch; of a job, the job straight from Pending; a wrong digest, a broken
    container and a document that is bad fail the job, each with its reason, and nobody else."""
    bad = intake.put("bad.csv", "url,size\nhttp://x/a\n").as_uri()
    good = intake.manifest([intake.row("good.txt")], "good.jsonl")
    refused = intake.queue.load_batch(intake.submit(manifest_url=bad))
    intake.submit(manifest_url=good, payload_type="object-manifest", digest="md5:" + "0" * 32, local_id="digest")
    intake.submit(payload_url=bad, payload_type="object-manifest", local_id="lines")
    intake.submit(payload_url=intake.put("c.zip", "no zip").as_uri(), local_id="container")
    rows = [intake.row("a.txt", local_id="document"), intake.row("b.txt", b"\xff", local_id="document")]
    intake.submit(manifest_url=intake.manifest([*rows, {**intake.row("c.txt"), "size": 1, "local_id": "size"}]))

    intake.serve()

    assert refused.status == "Failed"
    assert "line 2 of the manifest has 1 columns" in refused.message
    jobs = {job.identifiers["local_id"][0]: job for job in map(intake.queue.load_job, intake.jobs())}
    assert {job.status for job in jobs.values()} == {"Failed"}
    assert [jobs[name].last_successful_status for name in ("digest", "lines")] == [None, None]
    assert "its submitter says md5:000" in jobs["digest"].message
    assert "line 2 of the manifest has 1 columns" in jobs["lines"].message
    assert "container c.zip: it is neither zip nor tar" in jobs["container"].message
    assert "has more bytes than the 1 that its submitter says" in jobs["size"].message
    assert jobs["document"].last_successful_status == "Downloading"
    assert jobs["document"].message.startswith("document/b.txt: ")
    assert intake.rows() == [("document/a.txt", "content of a.txt")]


@pytest.mark.rule("intake.again")
def test_a_failed_job_is_taken_up_again(intake: Place) -> None:
    """Requeued, it goes on after what succeeded; its bad documents are tried again; the update names what changed."""
    with Receiver() as receiver:
        rows = [intake.row("a.txt", "good", local_id="o"), intake.row("b.txt", b"bad \0", local_id="o")]
        batch = intake.queue.load_batch(
            intake.submit(manifest_url=intake.manifest(rows), batchID="mine", response_url=receiver.url)
        )
        intake.serve()
        (failed,) = intake.queue.list_jobs("Failed")
        assert intake.rows() == [("o/a.txt", "good")]
        reason = "o/b.txt: holds a zero byte"
        assert [job["why"] for job in receiver.told[-1]["failed_jobs"]] == [reason]

        intake.queue.load_job(failed).requeue()
        intake.serve()
        assert intake.queue.load_job(failed).message == reason, "tried again, and as bad as before"
        assert intake.queue.load_job(failed).retry_count == 1

        held = intake.serving.work / "jobs" / failed / "files" / "b.txt"
        held.write_bytes(b"mended")
        job = intake.queue.load_job(failed)
        job.set_status("Downloading")
        (intake.files / "b.txt").write_bytes(b"mended")
        listed = intake.serving.work / "jobs" / failed / "list.jsonl"
        listed.write_text(listed.read_text().replace('"digest"', '"fields":{},"was"').replace('"size":5', '"size":6'))
        intake.serve()
        assert job.status == "Completed"
        assert batch.status == "Failed", "jobs that are resumed change nothing in the batch"
        assert intake.rows() == [("o/a.txt", "good"), ("o/b.txt", "mended")]

        batch.set_status("UpdateReporting")
        intake.serve()
        assert batch.status == "Completed"
        update = receiver.told[-1]
        assert (update["update"], [job["job"] for job in update["completed_jobs"]]) == (True, [failed])
        assert update["failed_jobs"] == []


def test_an_update_without_news_is_not_sent(intake: Place) -> None:
    """Nothing changed: nothing is sent."""
    with Receiver() as receiver:
        row = {**intake.row("a.txt"), "digest": "md5:" + "0" * 32}
        batch = intake.queue.load_batch(intake.submit(manifest_url=intake.manifest([row]), response_url=receiver.url))
        intake.serve()
        assert len(receiver.told) == 1
        batch.set_status("UpdateReporting")
        intake.serve()
        assert (batch.status, len(receiver.told)) == ("Failed", 1)


def test_an_object_that_is_submitted_again(intake: Place) -> None:
    """It replaces what it was; what did not change is not delivered twice. Both at once: one after the other."""
    for text in ("first", "second"):
        rows = [intake.row(f"{text}/a.txt", text, local_id="o", file_name="a.txt"), intake.row("b.txt", local_id="o")]
        intake.submit(manifest_url=intake.manifest(rows, f"{text}.csv"))
    intake.serve()
    assert list(intake.jobs().values()) == ["Completed", "Completed"]
    assert intake.rows() == [("o/a.txt", "first"), ("o/a.txt", "second"), ("o/b.txt", "content of b.txt")]


@pytest.mark.rule("intake.pause")
def test_a_paused_queue(intake: Place) -> None:
    """Nothing new is acquired within a second of the pause, in any state; resumed, all goes on."""
    for n in range(30):
        intake.submit(payload_url=intake.put(f"{n}.txt", f"{n}").as_uri(), local_id=f"{n}")
    stop = threading.Event()
    served = threading.Thread(target=intake.serve, args=(stop,), kwargs={"once": False})
    served.start()
    until(lambda: len(intake.queue.list_jobs()) > 3)
    intake.queue.locks.lock("ingest")
    time.sleep(1.0)  # the promise is about this second
    before = intake.jobs()
    assert set(before.values()) != {"Completed"}
    time.sleep(1.0)
    assert intake.jobs() == before
    intake.queue.locks.unlock("ingest")
    until(lambda: list(intake.jobs().values()) == ["Completed"] * 30)
    stop.set()
    served.join()
    assert len(intake.rows()) == 30


def test_a_graceful_stop(intake: Place) -> None:
    """Stopped while files come slowly: what was at work is given back in its state, and goes on where it was."""
    with FileServer({"/slow": bytes(8 << 20)}) as server:
        waits = threading.Event()
        sends = threading.Event()
        contents = server.contents

        class Slow(dict[str, bytes]):
            def get(self, path: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
                sends.set()
                waits.wait(300)
                return contents.get(path, default)

        server.contents = Slow()
        row = {"url": server.url("/slow"), "local_id": "slow", "size": 8 << 20}
        intake.submit(manifest_url=intake.manifest([row]))
        stop = threading.Event()
        served = threading.Thread(target=intake.serve, args=(stop,), kwargs={"once": False})
        served.start()
        assert sends.wait(300)
        stop.set()
        waits.set()
        served.join(300)
        assert not served.is_alive()
        assert list(intake.jobs().values()) == ["Downloading"]
        (job,) = map(intake.queue.load_job, intake.jobs())
        assert job.lock(), "nobody holds it"
        job.unlock()
        server.contents = contents
        intake.serve()
        assert list(intake.jobs().values()) == ["Failed"], "eight megabytes of zero bytes are a bad document"


def test_lost_locks(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose session ended under its work changes nothing; the work is done again."""
    from ferryman.intake.service import stages

    inner = stages.Estimating.work
    lost = []

    def work(self: stages.Estimating, job: stages.Job) -> stages.StageResult:
        if not lost:
            lost.append(job.id)
            store = intake.queue.tree.store
            store._end_session_for_test()  # type: ignore[attr-defined]
        return inner(self, job)

    def end(self: object) -> None:
        session = self._lease.end()  # type: ignore[attr-defined]
        with self._lock, self._write_transaction():  # type: ignore[attr-defined]
            self._remove_session(session)  # type: ignore[attr-defined]

    monkeypatch.setattr(type(intake.queue.tree.store), "_end_session_for_test", end, raising=False)
    monkeypatch.setattr(stages.Estimating, "work", work)
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="a")
    intake.serve()
    assert list(intake.jobs().values()) == ["Completed"]
    assert any("lock was lost" in line for line in intake.said.lines)
    assert intake.rows() == [("a/a.txt", "a")]


def test_sizes_nobody_knows(intake: Place) -> None:
    """They lower the priority by 10, once, and never fail a job."""
    with FileServer({"/a": b"a"}, sizes=False) as server:
        intake.submit(payload_url=server.url("/a"), local_id="a", priority=7)
        intake.serve()
    (job,) = map(intake.queue.load_job, intake.jobs())
    assert (job.status, job.priority) == ("Completed", 17)


@pytest.mark.rule("intake.space")
def test_working_space(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not fit waits, and holds nobody up; who never will fails; over the threshold all wait."""
    space = DiskSpace(1000, 700)
    monkeypatch.setattr(Workspace, "space", lambda self: space)
    for name, size in (("large", 200), ("huge", 900), ("small", 50)):
        intake.submit(payload_url=intake.put(name, "x" * size).as_uri(), local_id=name)
    stop = threading.Event()
    served = threading.Thread(target=intake.serve, args=(stop,), kwargs={"once": False})
    served.start()

    def states() -> dict[str, str]:
        jobs = map(intake.queue.load_job, intake.jobs())
        return {job.identifiers["local_id"][0]: job.status for job in jobs}

    until(lambda: states() == {"large": "Provisioning", "huge": "Failed", "small": "Completed"})
    space = DiskSpace(1000, 100)
    until(lambda: states()["large"] == "Completed")
    stop.set()
    served.join()
    assert "it needs 900 bytes of working space" in next(iter(done(intake).values()))


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("kind", ["a file of unknown size", "a container"])
def test_a_job_that_is_larger_than_was_known(intake: Place, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It cannot fill the disk: over the threshold it fails, and nothing of it stays; below, its size is its own."""
    used = 100
    monkeypatch.setattr(Workspace, "space", lambda self: DiskSpace(1_000_000, used))

    def written(self: SpaceBudget, size: int) -> None:
        nonlocal used
        used += size
        take(self, size)

    take = SpaceBudget.reserve
    monkeypatch.setattr(SpaceBudget, "reserve", written)
    content = os.urandom(200_000).hex().encode()
    packed = intake.folder / "x.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for n in range(3):
            out.writestr(f"{n}.txt", content)
    with FileServer({"/a": content * 3, "/x.zip": packed.read_bytes()}, sizes=False) as server:
        intake.submit(payload_url=server.url("/x.zip" if kind == "a container" else "/a"), local_id="large")
        intake.serve()
        (why,) = done(intake).values()
        assert "bytes that were known of" in why
        (job,) = intake.queue.list_jobs("Failed")
        assert not (intake.serving.work / "jobs" / job).exists()
        used = -10_000_000
        intake.queue.load_job(job).requeue()
        intake.serve()
        assert intake.queue.load_job(job).status == "Completed"


def test_what_was_promised_is_not_counted_all_the_time(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that takes long, because thousands of jobs wait for a slow host, others go on in between."""
    clock, counted = [0.0], list[float]()

    def count(tree: Any, ids: Any) -> int:
        clock[0] += 5.0
        counted.append(clock[0])
        return 0

    monkeypatch.setattr(stages.overview, "space_needed", count)
    monkeypatch.setattr(stages.time, "monotonic", lambda: clock[0])
    provisioning = stages.Provisioning(intake.queue, Workspace(intake.folder / "work"), lambda text: None)
    for _ in range(55):
        provisioning._granted_bytes()
        clock[0] += 1.0
    assert counted == [5.0, 60.0]


def test_a_submitter_who_does_not_answer(intake: Place) -> None:
    """Told a bounded number of times; the job fails in Notify, its documents stay, and it is resumed there."""
    with Receiver(503, 503, 503) as receiver:
        intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="a", response_url=receiver.url)
        intake.serve()
        (job,) = map(intake.queue.load_job, intake.jobs())
        assert (job.status, job.last_successful_status) == ("Failed", "Recording")
        assert "answered 503" in job.message
        assert intake.rows() == [("a/a.txt", "a")]
        job.requeue()
        assert job.status == "Notify"
        intake.serve()
        assert job.status == "Completed"
        assert [told["status"] for told in receiver.told] == ["Failed", "Completed"]


def test_a_locked_object_waits_in_storing(intake: Place) -> None:
    """A person's lock on an object keeps it from being stored; others go on."""
    rows = [intake.row(f"{n}.txt", local_id=n, primary_id=f"ark:/9/{n}") for n in ("a", "b")]
    intake.queue.locks.lock("storage", "ark:/9/a")
    intake.submit(manifest_url=intake.manifest(rows))
    stop = threading.Event()
    served = threading.Thread(target=intake.serve, args=(stop,), kwargs={"once": False})
    served.start()
    until(lambda: sorted(intake.jobs().values()) == ["Completed", "Storing"])
    intake.queue.locks.unlock("storage", "ark:/9/a")
    until(lambda: sorted(intake.jobs().values()) == ["Completed", "Completed"])
    stop.set()
    served.join()


def test_two_processes_serve_one_plan(intake: Place, tmp_path: Path) -> None:
    """The second does all but the plan, and takes it over when the first ends."""
    first_stop, second_stop = threading.Event(), threading.Event()
    first = threading.Thread(target=intake.serve, args=(first_stop,), kwargs={"once": False})
    first.start()
    until((intake.root / "state.json").exists)
    second_place = Place(intake.folder)
    second = threading.Thread(target=second_place.serve, args=(second_stop,), kwargs={"once": False})
    second.start()
    until(lambda: any("another process runs it" in line for line in second_place.said.lines))
    first_stop.set()
    first.join()
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="a")
    until(lambda: list(intake.jobs().values()) == ["Completed"])
    second_stop.set()
    second.join()
    second_place.queue.close()


def test_a_plan_without_jobs(intake: Place) -> None:
    """It cannot serve a queue, and says what it lacks; nor can one that names another queue."""
    from ferryman import Plan
    from ferryman.destinations import Null
    from ferryman.sources import Jobs, Memory

    plan = Plan("none")
    plan.source("list", Memory([])).destination("out", Null())
    intake.plan = plan
    with pytest.raises(UsageError, match=r"takes no jobs: give it a source of jobs"):
        intake.serve()
    other = Plan("other")
    with JobQueue.open(f"sqlite:///{intake.folder / 'other.db'}") as queue:
        other.source("jobs", Jobs(queue)).destination("out", Null())
        intake.plan = other
        with pytest.raises(UsageError, match=r"other.db, but sqlite:.*queue.db is served"):
            intake.serve()
