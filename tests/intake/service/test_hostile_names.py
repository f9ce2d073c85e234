"""Names that no lock can have, nodes that somebody has damaged: one job's end at most, and never a serve's."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.intake import JobState
from ferryman.intake.service.manifest import (
    NAME_BYTES,
    file_name_of,
    free_name,
    group_by_object,
    last_bytes,
    parse_manifest,
)
from ferryman.intake.store.base import Set
from tests.intake.conftest import brought
from tests.intake.service.place import Place
from tests.support.tiers import sampled

ODD = ["a\x00b", "a\nb", "\x1b[2J", "..", "\ufffe", "x" * 5000, {"a": 1}]


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("key", ["local_id", "primary_id", "profile_name"])
def test_a_bad_name_fails_its_job(intake: Place, key: str) -> None:
    """With the reason; others of the same queue are completed, also while a collection is on hold."""
    assert intake.queue.locks.lock("collection", "another")
    url = intake.put("a.txt", "a").as_uri()
    for name in ODD:
        intake.submit(payload_url=url, **{key: [name] if key == "local_id" else name})
    intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")

    intake.serve()

    jobs = [intake.queue.load_job(job) for job in intake.jobs()]
    bad = [job for job in jobs if job.status == "Failed"]
    assert len(bad) == len(ODD)
    assert all(f"its {key}" in job.message for job in bad)
    assert intake.rows() == [("good/b.txt", "b")]


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("state", sampled([s for s in JobState if s not in ("Held", "Completed", "Deleted")], 3))
def test_a_bad_name_that_comes_later(intake: Place, state: str) -> None:
    """A job that somebody moved on by hand has not been checked: it stops nobody in any state."""
    batch = intake.queue.create_batch({})
    intake.queue.acquire_pending_batch()
    assert intake.queue.load_batch(batch.id).revoke()
    job = intake.queue.load_batch(batch.id).create_job({}, identifiers={"local_id": ["a\nb"], "primary_id": "a\nb"})
    if state == "Failed":
        intake.queue.load_job(job.id).fail()
    elif state != "Pending":
        brought(intake.queue, job.id, state)
    intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")

    intake.serve()

    assert intake.rows() == [("good/b.txt", "b")]
    assert intake.queue.load_job(job.id).status in ("Failed", "Completed")


@pytest.mark.parametrize("name", ["a\nb", "..", "\x1b[2J"])
def test_submit_refuses_a_bad_name(intake: Place, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """At once, and nothing is submitted."""
    path = str(intake.put("a.txt", "a"))
    for option in ("--local-id", "--collection"):
        assert start(["intake", "submit", path, option, name, "--queue", intake.queue.url]) == 2
        assert "cannot name a node" in capsys.readouterr().err
    assert intake.queue.list_batches() == []


@pytest.mark.parametrize("url", ["s3://bucket/a.zip", "ftp://host/a.zip", "sftp://host/a", "http://", "file://other/a"])
def test_submit_refuses_what_serve_cannot_fetch(intake: Place, capsys: pytest.CaptureFixture[str], url: str) -> None:
    """At once: a batch of it could only fail."""
    assert start(["intake", "submit", url, "--queue", intake.queue.url]) == 2
    assert "Nothing was submitted" in capsys.readouterr().err
    assert intake.queue.list_batches() == []


@pytest.mark.parametrize("priority", ["²", "9" * 5000, "high", -1])
def test_a_bad_priority_fails_its_batch(intake: Place, priority: Any) -> None:
    """And no other."""
    bad = intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), priority=priority)
    good = intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")
    intake.serve()
    assert [intake.queue.load_batch(one).status for one in (bad, good)] == ["Failed", "Completed"]
    assert "priority" in intake.queue.load_batch(bad).message


DAMAGED = ["/jobs/{job}/configuration", "/jobs/{job}/identifiers", "/jobs/{job}/status", "/jobs/{job}/priority"]
DAMAGED += ["/batches/{batch}/submission", "/batches/{batch}/status", "/jobs/{job}/bid"]


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("path", sampled(DAMAGED, 3))
@pytest.mark.parametrize("state", ["Pending", "Processing", "Notify"])
def test_a_damaged_node_is_named_once_and_passed_over(
    intake: Place, path: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`serve --once` ends, the rest is done, and the log has a line for it, not thousands."""
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="damaged")
    intake.queue.acquire_pending_batch()
    batch = intake.queue.load_batch("bid0000000000")
    batch.revoke()
    job = batch.create_job({"payload_url": intake.put("a.txt", "a").as_uri()}, identifiers={"local_id": ["damaged"]})
    if state != "Pending":
        brought(intake.queue, job.id, state)
    damaged = path.format(job=job.id, batch=batch.id)
    intake.queue.tree.store.commit([Set(damaged, b"\xff{")])
    intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")

    with caplog.at_level(logging.WARNING):
        intake.serve()

    assert ("good/b.txt", "b") in intake.rows()
    lines = [line for line in [*intake.said.lines, *caplog.messages] if damaged in line]
    assert len(lines) <= 3, lines


def test_many_files_of_one_name() -> None:
    """Every page of a book is called default.jpg: each is looked at a few times, however many there are."""
    lines = "".join(f"https://x/{n}/default.jpg,book\n" for n in range(300))
    rows = parse_manifest(f"url,local_id\n{lines}".encode(), "file:///m.csv")
    looks = 0

    class Counted(str):
        """A name that counts how often it is looked for."""

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    names = ["default.jpg", *(f"default-{n}.jpg" for n in range(2, 301))]
    (book,) = group_by_object(rows)
    assert [row.entry.path for row in book.rows] == names
    last: dict[str, int] = {}
    taken: set[str] = set()
    for name in names:
        assert free_name(Counted("default.jpg"), taken.__contains__, last) == name
        taken.add(name)
    assert looks < 10 * len(names)


def test_many_long_names() -> None:
    """Names that differ only in what is cut off are numbered together, and each number is tried once."""
    long = "x" * (NAME_BYTES - 8)
    names = [f"{n:04d}{long}.txt" for n in range(300)]
    looks = 0
    taken: set[str] = set(names)

    def is_taken(name: str) -> bool:
        nonlocal looks
        looks += 1
        return name in taken

    last: dict[str, int] = {}
    for name in names:
        found = free_name(name, is_taken, last)
        assert len(found.encode()) <= NAME_BYTES
        assert found.endswith(".txt")
        taken.add(found)
    assert len(taken) == 2 * len(names)
    assert looks < 10 * len(names)


@pytest.mark.parametrize("name", ["é" * 300, "a." + "b" * 300, "b" * 300 + ".txt", "日" * 90])
def test_long_names_have_places(name: str) -> None:
    """Several files of one name, each of which a file system takes."""
    lines = "".join(f"https://x/{n}/{name},book\n" for n in range(12))
    (book,) = group_by_object(parse_manifest(f"url,local_id\n{lines}".encode(), "file:///m.csv"))
    places = {row.entry.path for row in book.rows}
    assert len(places) == 12
    assert all(len(place.encode()) <= NAME_BYTES for place in places)


def test_a_very_long_url_costs_no_more_than_its_length() -> None:
    """Its name is encoded once. Character by character, 2 MB took two minutes, in which no other thread ran."""
    encoded = 0

    class Counted(str):
        def encode(self, *given: Any) -> bytes:  # type: ignore[override]
            nonlocal encoded
            encoded += 1
            return super().encode(*given)

        def __getitem__(self, at: Any) -> str:
            return Counted(super().__getitem__(at))

    assert last_bytes(Counted("x" * 2000 + ".txt"), NAME_BYTES) == "x" * (NAME_BYTES - 4) + ".txt"
    assert encoded == 1
    assert file_name_of("https://x/" + "é" * 2000 + ".txt").endswith("é.txt")


ODD_RECEIVERS = [
    "http://[::1",
    "http://a:99999/",
    "http://\x00/",
    "javascript:1",
    "file:///etc/passwd",
    ["x"],
    {"a": 1},
]


@pytest.mark.rule("intake.hostile")
def test_an_odd_receiver_stops_no_report(intake: Place) -> None:
    """Its batch fails with the reason before any work is done; the others are reported."""
    url = intake.put("a.txt", "a").as_uri()
    bad = [intake.submit(payload_url=url, response_url=odd, local_id=f"o{n}") for n, odd in enumerate(ODD_RECEIVERS)]
    good = intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")

    intake.serve()

    assert [intake.queue.load_batch(one).status for one in (*bad, good)] == ["Failed"] * len(bad) + ["Completed"]
    for one in bad:
        batch = intake.queue.load_batch(one)
        assert batch.message.startswith("the response_url")
        assert batch.failed_jobs == []


@pytest.mark.rule("intake.hostile")
def test_a_fault_in_a_report_stops_no_other(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody anticipated it: its batch is closed, and its message says why nothing was sent."""
    from ferryman.intake.service.reports import Callback

    inner = Callback.send

    def send(self: Callback, submitted: Any, what: Any) -> bool:
        if submitted.get("submitter") == "odd" and "/report/" in what["id"]:
            raise KeyError("nobody knows")
        return inner(self, submitted, what)

    monkeypatch.setattr(Callback, "send", send)
    odd = intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), submitter="odd")
    good = intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")

    intake.serve()

    assert [intake.queue.load_batch(one).status for one in (odd, good)] == ["Completed", "Completed"]
    assert "its report could not be sent: KeyError" in intake.queue.load_batch(odd).message


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("name", ["submission", "status-report"])
def test_a_batch_damaged_before_its_report(intake: Place, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is named once and passed over; the next one is reported."""
    intake.submit(payload_url=(intake.files / "nothing.txt").as_uri())
    intake.serve()
    batch = intake.queue.load_batch("bid0000000000")
    batch.set_status("UpdateReporting")
    damaged = f"/batches/{batch.id}/{name}"
    nothing = b'{"failed_jobs": [], "successful_jobs": []}'  # was told before, so there is something new to say
    intake.queue.tree.store.commit([Set(f"/batches/{batch.id}/status-report", nothing)])
    intake.queue.tree.store.commit([Set(damaged, b"\xff{")])
    good = intake.submit(payload_url=intake.put("b.txt", "b").as_uri(), local_id="good")
    intake.said.lines.clear()

    with caplog.at_level(logging.WARNING):
        intake.serve()

    assert intake.queue.load_batch(good).status == "Completed"
    lines = [line for line in [*intake.said.lines, *caplog.messages] if damaged in line]
    assert 1 <= len(lines) <= 3, lines


def test_batches_are_made_at_the_same_time(intake: Place) -> None:
    """One whose manifest takes long does not keep the others waiting."""
    from ferryman.intake.service.fetch import Fetcher

    first = intake.submit(manifest_url=intake.manifest([intake.row("a.txt")], "slow.csv"))
    second = intake.submit(manifest_url=intake.manifest([intake.row("b.txt")], "quick.csv"))
    inner = Fetcher.fetch_content

    def content(self: Fetcher, url: str, *args: Any, **options: Any) -> bytes:
        if url.endswith("slow.csv"):
            until_made(intake, second)
        return inner(self, url, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fetcher, "fetch_content", content)
        intake.serve()
    assert {intake.queue.load_batch(one).status for one in (first, second)} == {"Completed"}


def until_made(intake: Place, batch_id: str) -> None:
    from tests.intake.service.place import until

    until(lambda: intake.queue.load_batch(batch_id).jobs_made is not None, 60)
