"""Identifiers that a plan mints come back to their jobs, and appear in reports."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import JobIdentifiers
from ferryman.destinations.base import Delivery, DestinationContext, Guarantee
from ferryman.errors import Misconfigured
from tests.intake.service.minting import minting_into
from tests.intake.service.place import Place
from tests.intake.service.receiver import Receiver


@pytest.fixture
def minting(intake: Place) -> Place:
    intake.plan = minting_into(intake.folder / "index.db")
    return intake


def served(place: Place, **options: Any) -> dict[str, Any]:
    """Job -> (its status, its identifiers)."""
    place.serve(**options)
    jobs = {job: place.queue.load_job(job) for job in place.queue.list_jobs()}
    return {id: (job.status, job.identifiers) for id, job in jobs.items()}


@pytest.mark.rule("intake.minted")
def test_a_job_gets_what_was_minted_for_its_documents(minting: Place) -> None:
    """Its primary id, and further local ids; a later job of the same files gets the same, though no step runs."""
    rows = [minting.row("a.txt", "plain", local_id="map-1"), minting.row("b.txt", "alias m-1", local_id="map-1")]
    url = minting.manifest(rows)
    minting.submit(manifest_url=url)
    first = {"primary_id": "ark:/9/map-1", "local_id": ["map-1", "alias", "m-1"]}
    assert served(minting) == {"jid0000000001": ("Completed", first)}
    minting.submit(manifest_url=url)
    assert served(minting)["jid0000000002"] == ("Completed", first)
    assert minting.queue.audit() == []


@pytest.mark.rule("intake.minted")
def test_reports_name_them(minting: Place) -> None:
    """Of the job, and of the batch."""
    with Receiver() as receiver:
        minting.submit(payload_url=minting.put("a.txt", "a").as_uri(), local_id="map-1", response_url=receiver.url)
        served(minting)
        job, batch = receiver.told
    assert (job["primary_id"], batch["completed_jobs"][0]["primary_id"]) == ("ark:/9/map-1", "ark:/9/map-1")


@pytest.mark.rule("intake.minted")
def test_documents_that_disagree_fail_their_job(minting: Place) -> None:
    """With the ids; so does one that contradicts the submitter, and an identifier that is none."""
    rows = [minting.row(f"{n}.txt", "two ids", local_id="map-1") for n in range(2)]
    minting.submit(manifest_url=minting.manifest(rows))
    minting.submit(payload_url=minting.put("x.txt", "two ids").as_uri(), local_id="x", primary_id="ark:/9/mine")
    minting.submit(payload_url=minting.put("bad.txt", "bad").as_uri(), local_id="y")
    minting.submit(payload_url=minting.put("ok.txt", "fine").as_uri(), local_id="z", primary_id="ark:/9/given")
    assert {status for status, _ in served(minting).values()} == {"Failed", "Completed"}
    messages = {job.identifiers["local_id"][0]: job.message for job in map(minting.queue.load_job, minting.jobs())}
    assert "several primary ids (ark:/9/0.txt, ark:/9/1.txt)" in messages["map-1"]
    assert "several primary ids (ark:/9/mine, ark:/9/x.txt)" in messages["x"]
    assert "bad.txt: ids: " in messages["y"]
    assert messages["z"] == ""


def test_it_works_in_serve_alone() -> None:
    """Another run says so, and waits."""
    with pytest.raises(Misconfigured, match="ferryman intake serve"):
        JobIdentifiers().check()


def delivery(sequence: int, operation: Any = "upsert", **fields: Any) -> Delivery:
    return Delivery("a", f"{sequence:032x}", sequence, operation, fields, source="jobs")


def test_the_newest_note_counts(tmp_path: Path) -> None:
    """A repeated delivery changes nothing, an older one is stale, a delete withdraws; bad values are refused."""
    noting = JobIdentifiers()
    noting.serve(tmp_path)
    noting = pickle.loads(pickle.dumps(noting))
    noting.check()
    noting.open(DestinationContext("p", 1, "ids", 1, Guarantee.AT_LEAST_ONCE))
    newest = delivery(2, primary_id="p", local_id="l")
    kinds = [noting.write([each])[0].kind for each in (delivery(1, primary_id="old"), newest, newest, delivery(1))]
    assert kinds == ["ok", "ok", "ok", "stale"]
    assert [(note.primary_id, note.local_id) for note in noting.notes_of("jobs", "a")] == [("p", ("l",))]
    assert noting.notes_of("other", "a") == []
    noting.write([delivery(3, "delete")])
    assert [(note.primary_id, note.local_id) for note in noting.notes_of("jobs", "a")] == [("", ())]
    for bad in (5, "x" * 1025, "a\0b", ["a"] * 101, {"a": 1}):
        assert noting.write([delivery(4, local_id=bad)])[0].kind == "permanent"
