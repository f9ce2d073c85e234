"""Records of the older queue, made by hand byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import UsageError
from ferryman.intake import Batch, Job, JobQueue
from ferryman.intake.legacy import (
    IMPORTING,
    STATUSES,
    import_legacy,
    locate_payload,
    parse_record,
    read_records,
    to_job_nodes,
)
from ferryman.intake.service.payload import check_configuration
from tests.intake.conftest import layout

SECONDS, MILLISECONDS = 1_700_000_000, 1_700_000_000_000
URL = "https://example.org/1.pdf"
JSON = (
    b'{"batchID":"b-1","jobID":"j-1","submitter":"me","profile_name":"maps","local_id":"a;b","priority":"x",'
    b'"payload_url":"https://example.org/1.pdf"}'
)
PROPERTIES = (
    b"#Mon Nov 20\nbatchID=b-1\njobID : j\\u002d2\nsubmitter=me\ncreator=long \\\n   name\nempty=\n"
    b"payload_url=https\\://example.org/1.pdf\n"
)
XML = (
    b'<?xml version="1.0"?><q:job xmlns:q="http://q"><q:batchID>b-1</q:batchID><jobID>j-3</jobID><id>1</id><id>2</id>'
    b"<manifestURL>https://example.org/m</manifestURL></q:job>"
)
ENTRIES = (
    b'<properties><comment/><entry key="batchID">b-1</entry><entry key="jobID">j-4</entry>'
    b'<entry key="filename">https://example.org/1.pdf</entry></properties>'
)
ENCODED = b"""<?xml version="1.0" encoding="UTF-8"?>
<java version="17.0.15" class="java.beans.XMLDecoder">
 <object class="java.util.Properties">
  <void method="put">
   <string>note</string>
   <string>a&lt;b&gt; \xc3\xbc</string>
  </void>
  <void method="put">
   <string>manifestURL</string>
   <string>https://example.org/manifest/910/ark%3A%2F1?a=1&amp;b=2</string>
  </void>
 </object>
</java>
"""
"""A record of inventory: ``Properties`` as Java 17's ``XMLEncoder`` wrote them."""


def record(status: int, payload: bytes, time: int = MILLISECONDS) -> bytes:
    return struct.pack(">Bq", status, time) + payload


def name(priority: int = 5, sequence: int = 1) -> str:
    return f"mrtQ-{priority:02d}01{sequence:010d}"


@pytest.mark.rule("intake.legacy")
@pytest.mark.parametrize(
    ("status", "state"), [(0, "Pending"), (1, "Pending"), (2, "Deleted"), (3, "Failed"), (4, "Completed"), (5, "Held")]
)
@pytest.mark.parametrize("time", [SECONDS, MILLISECONDS])
@pytest.mark.parametrize("payload", [JSON, PROPERTIES, XML, ENTRIES])
def test_a_record_becomes_a_job(status: int, state: str, time: int, payload: bytes) -> None:
    """In its state, of its batch, with its payload, in the list where that state belongs."""
    queue = JobQueue.open("memory:")
    done = import_legacy(queue, [(name(2), record(status, payload, time))])
    ((_, job_id),) = done.jobs
    assert not done.skipped
    job = queue.load_job(job_id)
    assert (job.status, job.priority) == (state, 2)
    assert job.message == "imported: 2023-11-14 22:13:20 +0000"
    assert job.configuration["jobID"].startswith("j-")
    assert job.configuration["legacy_record"] == name(2)
    batch = queue.find_batch_by_uuid("b-1")
    assert batch is not None
    assert (batch.id, batch.status) == (job.batch_id, "Processing")
    assert queue.audit() == []
    assert STATUSES[status].value == state


def test_all_six_states_in_one_batch(queue: JobQueue) -> None:
    """On every store; what can be done is acquired by priority; typed again, nothing is imported twice."""
    records = [(name(10 - status, status), record(status, JSON)) for status in range(6)]
    done = import_legacy(queue, records)
    assert [queue.load_job(job).status for _, job in sorted(done.jobs, reverse=True)] == [
        "Pending", "Pending", "Deleted", "Failed", "Completed", "Held",
    ]  # fmt: skip
    first = queue.acquire_job("Pending")
    assert first is not None
    assert first.priority == 9
    assert first.identifiers == {"local_id": ["a", "b"]}
    before = layout(queue)
    again = import_legacy(queue, records)
    assert (again.jobs, again.known) == ([], sorted(one for one, _ in records))
    assert layout(queue) == before
    assert queue.audit() == []


def test_payloads_are_read_as_they_are() -> None:
    """What Java wrote, with its escapes; what comes twice in XML is a list."""
    assert parse_record(name(), record(0, PROPERTIES)).payload == {
        "batchID": "b-1", "jobID": "j-2", "submitter": "me", "creator": "long name", "empty": "", "payload_url": URL,
    }  # fmt: skip
    assert parse_record(name(), record(0, XML)).payload == {
        "batchID": "b-1", "jobID": "j-3", "id": ["1", "2"], "manifestURL": "https://example.org/m",
    }  # fmt: skip
    assert parse_record(name(), record(0, ENCODED)).payload == {
        "note": "a<b> ü", "manifestURL": "https://example.org/manifest/910/ark%3A%2F1?a=1&b=2",
    }  # fmt: skip
    assert parse_record(name(), record(0, rb"a\=b\:c=d\te" + b"\n!x\n k  v=w")).payload == {"a=b:c": "d\te", "k": "v=w"}


@pytest.mark.rule("intake.legacy")
@pytest.mark.parametrize("payload", [XML, ENCODED])
def test_a_manifest_of_inventory_is_the_jobs_manifest(payload: bytes) -> None:
    """As an object's manifest, whatever XML the record is."""
    queue = JobQueue.open("memory:")
    ((_, job_id),) = import_legacy(queue, [(name(), record(0, payload))], check=check_configuration).jobs
    job = queue.load_job(job_id)
    assert job.status == "Pending"
    assert job.configuration["payload_type"] == "object-manifest"
    assert job.configuration["payload_url"] == job.configuration["manifest_url"]
    assert job.configuration["payload_url"].startswith("https://example.org/m")


UNSERVABLE = {
    b"batchID=b-1\n": "names no file",
    b"batchID=b-1\nfilename=a.zip\n": "give it with --files",
    b"batchID=b-1\nfilename=/nowhere/a.zip\n": "is not below /",
    b"batchID=b-1\nfilename=a\\u0000.zip\n": "--files",
    b"batchID=b-1\nfilename=ftp\\://x/a.zip\n": "is not one of http",
    b"batchID=b-1\nfilename=http\\://x/a\ntype=batch-manifest\n": "payload_type",
    b"batchID=b-1\nfilename=http\\://x/a\ntype=unheard-of\n": "'unheard-of' is not known",
    b"batchID=b-1\nfilename=http\\://x/a\ndigestType=adler32\ndigestValue=11e60398\n": "the digest",
}


@pytest.mark.rule("intake.legacy")
@pytest.mark.parametrize("status", [0, 1, 5])
@pytest.mark.parametrize("payload", UNSERVABLE)
def test_what_cannot_be_served_is_failed_at_the_import(payload: bytes, status: int) -> None:
    """With the reason, in the result and in the job; what needs no more work is imported as it is."""
    queue = JobQueue.open("memory:")
    done = import_legacy(queue, [(name(), record(status, payload))], check=check_configuration)
    ((one, why),) = done.cannot_be_served
    ((_, job_id),) = done.jobs
    job = queue.load_job(job_id)
    assert (one, job.status) == (name(), "Failed")
    assert UNSERVABLE[payload] in why
    assert why in job.message
    assert queue.audit() == []
    again = import_legacy(queue, [(name(), record(status, payload))], check=check_configuration)
    assert (again.jobs, again.known, again.cannot_be_served) == ([], [name()], done.cannot_be_served)
    finished = JobQueue.open("memory:")
    assert import_legacy(finished, [(name(), record(4, payload))], check=check_configuration).cannot_be_served == []


@pytest.mark.rule("intake.legacy")
@pytest.mark.parametrize("place_in_folder", ["b-1/j-1/a.zip", "b-1/a.zip", "j-1/a.zip", "a.zip"])
def test_files_are_found_in_the_older_folder(tmp_path: Path, place_in_folder: str) -> None:
    """Imported without the folder first, the job gets its file when the import is repeated with it."""
    queue = JobQueue.open("memory:")
    records = [(name(), record(0, b"batchID=b-1\njobID=j-1\nfilename=a.zip\ntype=container\n"))]
    ((_, job_id),) = import_legacy(queue, records).jobs
    assert queue.load_job(job_id).status == "Failed"
    path = tmp_path / place_in_folder
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert import_legacy(queue, records, files=tmp_path, check=check_configuration).jobs == [(name(), job_id)]
    job = queue.load_job(job_id)
    assert (job.status, job.configuration["payload_url"]) == ("Pending", path.as_uri())
    assert job.configuration["payload_file_name"] == "a.zip"
    assert import_legacy(queue, records, files=tmp_path).known == [name()]


@pytest.mark.parametrize("ids", [("..", "."), ("b-1", "../.."), ("/etc", "x")])
def test_no_record_leads_out_of_the_older_folder(tmp_path: Path, ids: tuple[str, str]) -> None:
    """Wherever its ids and its file name lead."""
    (tmp_path / "queue" / "b-1").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"x")
    queue = JobQueue.open("memory:")
    payload = f"batchID={ids[0]}\njobID={ids[1]}\nfilename=../secret\n".encode()
    found = parse_record(name(), record(0, payload))
    with pytest.raises(UsageError, match="is not below"):
        locate_payload(found, to_job_nodes(found.payload).configuration, tmp_path / "queue")
    assert queue.list_jobs() == []


@pytest.mark.rule("intake.legacy")
@pytest.mark.parametrize("states", [(3,), (4,), (2,), (2, 3, 4)])
def test_a_batch_without_work_is_reported_and_closed(queue: JobQueue, states: tuple[int, ...]) -> None:
    """On every store: it is due for its report at once, and can be removed after it."""
    import_legacy(queue, [(name(5, status), record(status, JSON)) for status in states])
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    assert (batch.status, batch.processing_jobs) == ("Reporting", [])
    batch.fail() if batch.failed_jobs else batch.success()
    if batch.status == "Failed":
        batch.set_status("Deleted")
    batch.unlock()
    assert queue.cleanup().removed == [batch.id]
    assert queue.list_jobs() == []


@pytest.mark.rule("intake.legacy")
def test_no_batch_is_reported_before_its_import_is_finished(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, it stays Held with the reason; typed again, the import goes on and lets it go."""
    records = [(name(5, number), record(4, JSON)) for number in range(3)]
    create = Batch.create_job_in_state
    made = 0

    def create_two(self: Batch, *args: Any) -> Job:
        nonlocal made
        made += 1
        if made == 3:
            raise KeyboardInterrupt
        return create(self, *args)

    monkeypatch.setattr(Batch, "create_job_in_state", create_two)
    with pytest.raises(KeyboardInterrupt):
        import_legacy(queue, records)
    monkeypatch.undo()
    (batch_id,) = queue.list_batches("Held")
    assert queue.load_batch(batch_id).message == IMPORTING
    assert queue.acquire_batch_for_reporting() is None
    assert queue.acquire_pending_batch() is None
    done = import_legacy(queue, records)
    assert (len(done.jobs), len(done.known)) == (1, 2)
    batch = queue.acquire_batch_for_reporting()
    assert batch is not None
    assert len(batch.completed_jobs) == 3


MALFORMED = {
    "mrtQ-0501000000000": record(0, JSON),
    "lock": record(0, JSON),
    name(sequence=1): b"",
    name(sequence=2): record(0, JSON)[:8],
    name(sequence=3): record(6, JSON),
    name(sequence=4): record(0, JSON, -1),
    name(sequence=5): record(0, JSON, 2**62),
    name(sequence=6): record(0, b""),
    name(sequence=7): record(0, b'{"batchID":'),
    name(sequence=8): record(0, b"<a><b></a>"),
    name(sequence=9): record(0, b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'),
    name(sequence=10): record(0, b"\xff\xfe\x00"),
    name(sequence=11): record(0, b"no key here"),
    name(sequence=12): b"\x00" * 9,
    name(sequence=13): bytes(range(256)),
}


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_record_is_named(malformed: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(UsageError, match=malformed):
        parse_record(malformed, MALFORMED[malformed])


@pytest.mark.rule("intake.legacy")
def test_malformed_records_are_skipped() -> None:
    """The others are imported."""
    queue = JobQueue.open("memory:")
    good = name(sequence=99)
    done = import_legacy(queue, [*MALFORMED.items(), (good, record(0, JSON))])
    assert [one for one, _ in done.jobs] == [good]
    assert sorted(one for one, _ in done.skipped) == sorted(MALFORMED)
    assert all(one in why for one, why in done.skipped)
    assert queue.audit() == []


def test_records_of_a_folder(tmp_path: Path) -> None:
    """A file a record."""
    (tmp_path / name()).write_bytes(record(0, JSON))
    (tmp_path / "sub").mkdir()
    assert list(read_records(str(tmp_path))) == [(name(), record(0, JSON))]
    with pytest.raises(UsageError, match="no such folder"):
        list(read_records(str(tmp_path / "nowhere")))


def test_records_of_a_live_server(server: object) -> None:
    """Beside nodes of other things, which are left alone."""
    from ferryman.intake.store.base import Create
    from ferryman.intake.store.zookeeper import ZooKeeperStore

    assert callable(server)
    url = f"{server('zookeeper').url}/ingest"
    store = ZooKeeperStore(url)
    store.commit([Create(f"/{name()}", record(3, XML)), Create("/other", b"x")])
    store.close()
    assert list(read_records(url)) == [(name(), record(3, XML))]
