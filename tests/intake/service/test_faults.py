"""What nobody foresaw is one job's end at most: values that are nested deep, URLs that are none, errors in a turn."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Sql
from ferryman.engine.run import Run
from ferryman.errors import PermanentError, UsageError
from ferryman.intake import JobQueue
from ferryman.intake import job as inventory
from ferryman.intake import source as jobs
from ferryman.intake.errors import QueueRefused
from ferryman.intake.nodes import decode_node, encode_node
from ferryman.intake.service import processing
from ferryman.plan import Plan
from ferryman.sources import Jobs
from tests.intake.service.place import Place, to_text
from tests.intake.service.receiver import Redirecting
from tests.intake.service.test_fetch import fetcher

DEEP = "[" * 600 + "]" * 600
NO_URL = "http://[::1/x?token=s3cret"
GOOD = [f"good{n}" for n in range(6)]


def submit_good(place: Place) -> None:
    for name in GOOD:
        place.submit(payload_url=place.put(f"{name}.txt", name).as_uri(), local_id=name)


def delivered(place: Place) -> list[str]:
    return [text for _, text in place.rows()]


def failed(place: Place) -> dict[str, str]:
    """Job -> why it has failed."""
    jobs = map(place.queue.load_job, place.queue.list_jobs())
    return {job.id: job.message for job in jobs if job.status == "Failed"}


def several(docs: list[Any]) -> list[Any]:
    return docs


# -- values that are nested deep ---------------------------------------------------------------------------------------


@pytest.mark.rule("intake.fault")
@pytest.mark.parametrize("kind", ["manifest", "object-manifest"])
def test_a_column_that_is_nested_deep(intake: Place, kind: str) -> None:
    """It fails its batch or job, and says which line and how deep is too deep; with steps that take copies, too."""
    intake.plan = Plan("intake", version=1)
    steps = intake.plan.source("jobs", Jobs()).step("text", to_text).step("embed", several, batch=8)
    steps.destination("index", Sql(f"sqlite:///{intake.folder}/index.db", table="documents", mode="append"))
    bad = intake.put("bad.txt", "bad").as_uri()
    path = intake.put("m.jsonl", f'{{"url": "{bad}", "local_id": "bad", "x": {DEEP}}}\n')
    batch = intake.submit(manifest_url=path.as_uri(), payload_type=kind)
    submit_good(intake)
    intake.serve()
    assert delivered(intake) == GOOD
    why = f"line 1 of the manifest is not JSON: it is nested more than {limits.NESTED} deep"
    job = next(iter(failed(intake).values()), "")
    assert why in (intake.queue.load_batch(batch).message if kind == "manifest" else job)


@pytest.mark.rule("intake.fault")
def test_what_was_taken_in_before_there_was_a_limit(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of files in the working space that says too much of one of them fails its job, each time it is served."""
    write = inventory.write_inventory

    def deep(folder: Any, held: Any, **options: Any) -> Any:
        value: Any = []
        for _ in range(600):
            value = [value]
        there = [inventory.StoredFile(f.path, f.size, f.sha256, f.url, {"x": value}) for f in held]
        return write(folder, there if "bad" in there[0].path else held, **options)

    monkeypatch.setattr(inventory, "write_inventory", deep)
    intake.submit(payload_url=intake.put("bad.txt", "bad").as_uri(), local_id="bad")
    submit_good(intake)
    intake.serve()
    assert delivered(intake) == GOOD
    [why] = failed(intake).values()
    assert f"bad.txt is nested more than {limits.NESTED} deep" in why


@pytest.mark.rule("intake.fault")
def test_a_node_that_is_nested_deep() -> None:
    """It is not written, and not read."""
    value: Any = "x"
    for _ in range(600):
        value = {"x": value}
    with pytest.raises(UsageError, match=r"jobs/1/metadata: this is nested more than"):
        encode_node("jobs/1/metadata", {"erc_who": value})
    with pytest.raises(Exception, match=r"is not JSON \(it is nested more than"):
        decode_node("jobs/1/metadata", f'{{"erc_who": {DEEP}}}'.encode())


# -- URLs that are none ------------------------------------------------------------------------------------------------


@pytest.mark.rule("intake.fault")
def test_urls_that_are_none(intake: Place) -> None:
    """At every door: the error names the URL, without what may be secret in it; others go on."""
    batches = [
        intake.submit(payload_url=NO_URL, local_id="payload"),
        intake.submit(manifest_url=NO_URL),
        intake.submit(payload_url=NO_URL, payload_type="object-manifest", local_id="object"),
        intake.submit(manifest_url=intake.put("m.csv", f"url\n{NO_URL}\n").as_uri()),
    ]
    told = intake.submit(payload_url=intake.put("told.txt", "told").as_uri(), local_id="told", response_url=NO_URL)
    submit_good(intake)
    intake.serve()
    assert delivered(intake) == GOOD
    said = {batch: intake.queue.load_batch(batch).message for batch in [*batches, told]}
    words = [*said.values(), *failed(intake).values()]
    assert all("http://[::1/x" in text for text in words if "jobs failed" not in text), words
    assert not [text for text in words if "s3cret" in text or "ValueError" in text]


@pytest.mark.rule("intake.fault")
def test_redirects_to_what_is_no_url(intake: Place) -> None:
    """The size is not known, and the job fails when it is downloaded, with both URLs."""
    with Redirecting() as server:
        server.target = "http://[::1/"
        url = server.url("/x")
        assert fetcher().ask_size(url) is None
        with pytest.raises(PermanentError, match=r"127.0.0.1:[0-9]+/x: its server redirects: the url http://\[::1/ is"):
            fetcher().fetch_content(url, 100)
        intake.submit(payload_url=url, local_id="payload")
        submit_good(intake)
        intake.serve()
    assert delivered(intake) == GOOD
    assert [line for line in intake.said.lines if "failed in Downloading" in line and "redirects" in line]


def test_a_queue_at_no_url() -> None:
    with pytest.raises(QueueRefused, match=r"zookeeper://\[::1/x is not a URL"):
        JobQueue.open("zookeeper://[::1/x")


# -- errors in a turn --------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ends a turn where a job of such a name is in it: ``faulty("bad")``."""
    turn = Run.turn

    def ends(begins: str) -> None:
        def ending(self: Any, *, scan: bool) -> bool:
            source = self._state.plan.nodes[0].source
            for job in (source._served_jobs or {}).values():
                name = job.identifiers["local_id"][0]
                if name.startswith(begins):
                    raise RuntimeError(f"nobody has thought of {name}")
            return turn(self, scan=scan)

        monkeypatch.setattr(Run, "turn", ending)

    return ends


@pytest.mark.rule("intake.fault")
def test_a_job_that_ends_its_turn(intake: Place, faulty: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It fails with the error, whose traceback is logged; those that shared the turn are delivered once."""
    faulty("bad")
    for name in ("bad1", *GOOD, "bad2"):
        intake.submit(payload_url=intake.put(f"{name}.txt", name).as_uri(), local_id=name)
    with caplog.at_level(logging.ERROR, "ferryman.intake"):
        intake.serve()
    assert delivered(intake) == GOOD
    assert sorted(failed(intake).values()) == [f"RuntimeError: nobody has thought of bad{n}" for n in (1, 2)]
    assert "in ending" in caplog.text, "no traceback"


@pytest.mark.rule("intake.fault")
def test_where_every_job_ends_its_turn(intake: Place, faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no job's fault: after a few in a row ``serve`` ends with the error, and the others stay as they are."""
    monkeypatch.setattr(processing, "FAULTS_IN_A_ROW", 2)
    faulty("good")
    submit_good(intake)
    with pytest.raises(RuntimeError, match="nobody has thought of"):
        intake.serve()
    assert len(failed(intake)) == 1


@pytest.mark.rule("intake.fault")
@pytest.mark.parametrize("name", ["partition_of", "fingerprint_of"])
def test_a_job_that_cannot_be_looked_at(intake: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever looking at it raises: it fails, and the others of the turn are delivered."""
    real = getattr(jobs, name)

    def looked(of: Any, *given: Any) -> Any:
        if "bad" in (of.path if name == "fingerprint_of" else of.identifiers["local_id"][0]):
            raise RuntimeError("nobody has thought of it")
        return real(of, *given)

    monkeypatch.setattr(jobs, name, looked)
    if name == "partition_of":
        monkeypatch.setattr(processing, name, looked)
    intake.submit(payload_url=intake.put("bad.txt", "bad").as_uri(), local_id="bad")
    submit_good(intake)
    intake.serve()
    assert delivered(intake) == GOOD
    [why] = failed(intake).values()
    assert "nobody has thought of it" in why
