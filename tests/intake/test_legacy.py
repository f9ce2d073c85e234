"""Records of the older queue, made by hand byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue
from ferryman.intake.legacy import STATUSES, import_legacy, parse_record, read_records
from tests.intake.conftest import layout

SECONDS, MILLISECONDS = 1_700_000_000, 1_700_000_000_000
JSON = b'{"batchID":"b-1","jobID":"j-1","submitter":"me","profile_name":"maps","local_id":"a;b","priority":"x"}'
PROPERTIES = b"#Mon Nov 20\nbatchID=b-1\njobID : j\\u002d2\nsubmitter=me\ncreator=long \\\n   name\nempty=\n"
XML = b'<?xml version="1.0"?><q:job xmlns:q="http://q"><q:batchID>b-1</q:batchID><jobID>j-3</jobID><id>1</id><id>2</id></q:job>'
ENTRIES = b'<properties><comment/><entry key="batchID">b-1</entry><entry key="jobID">j-4</entry></properties>'


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
        "batchID": "b-1", "jobID": "j-2", "submitter": "me", "creator": "long name", "empty": "",
    }  # fmt: skip
    assert parse_record(name(), record(0, XML)).payload == {"batchID": "b-1", "jobID": "j-3", "id": ["1", "2"]}
    assert parse_record(name(), record(0, rb"a\=b\:c=d\te" + b"\n!x\n k  v=w")).payload == {"a=b:c": "d\te", "k": "v=w"}


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
    from ferryman.intake.store import Create
    from ferryman.intake.store.zookeeper import ZooKeeperStore

    assert callable(server)
    url = f"{server('zookeeper').url}/ingest"
    store = ZooKeeperStore(url)
    store.commit([Create(f"/{name()}", record(3, XML)), Create("/other", b"x")])
    store.close()
    assert list(read_records(url)) == [(name(), record(3, XML))]
