"""Identifiers are minted, and failed jobs corrected, by processes that are killed at each step: nothing differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman.crash import EDITED, INTAKE, MINTED
from tests.intake.service.child import CHILD
from tests.intake.service.place import Place
from tests.intake.service.receiver import Receiver
from tests.support.zygote import Zygote

MINTING = (
    *("minted.noted", "minted.noted:2", "deliver.sent", "deliver.done", "settle.closed"),
    *("job.waved", "job.judged", "job.judged:2", "minted.moved", "job.kept", "job.told"),
)
"""In the order in which the jobs come by."""

EDITION = (*(point for point in INTAKE if point.startswith("job.")), "settle.closed", "batch.told")
"""What a corrected job passes on its way from Pending: its batch has no more jobs to make."""

IDENTIFIERS = {
    "map-1": {"primary_id": "ark:/9/map-1", "local_id": ["map-1", "alias", "m-1"]},
    "map-2": {"primary_id": "ark:/9/map-2", "local_id": ["map-2"]},
}


def killed(zygote: Zygote, *points: str, **job: Any) -> None:
    """Once at each point; then to the end."""
    for point in (*points, ""):
        code, said = zygote.run(arm=point, **job)
        assert code == (-9 if point else 0), f"{point}: {said}"


def minted(there: Place, zygote: Zygote, *points: str) -> None:
    """Two jobs: their identifiers, those of the report, and each document once."""
    rows = [there.row("a.txt", "plain", local_id="map-1"), there.row("b.txt", "alias m-1", local_id="map-1")]
    rows.append(there.row("c.txt", "plain", local_id="map-2"))
    with Receiver() as receiver:
        there.submit(manifest_url=there.manifest(rows), response_url=receiver.url)
        killed(zygote, *points, folder=str(there.folder), mints=True)
        (report,) = {told["id"]: told for told in receiver.told if "failed_jobs" in told}.values()
    jobs = [there.queue.load_job(job) for job in there.queue.list_jobs("Completed")]
    assert {job.identifiers["local_id"][0]: job.identifiers for job in jobs} == IDENTIFIERS
    assert {job["primary_id"] for job in report["completed_jobs"]} == {"ark:/9/map-1", "ark:/9/map-2"}
    assert there.rows() == [("map-1/a.txt", "plain"), ("map-1/b.txt", "alias m-1"), ("map-2/c.txt", "plain")]
    assert there.queue.audit() == []
    there.queue.close()


@pytest.mark.rule("intake.minted")
def test_killed_while_it_mints(place: Path) -> None:
    """At each step of it, one after the other."""
    with Zygote(place, CHILD) as zygote:
        minted(Place(place, session_timeout_s=1.5), zygote, *MINTED)


@pytest.mark.slow
@pytest.mark.parametrize("point", MINTING)
def test_killed_at_each_step_of_minting(place: Path, point: str) -> None:
    """And at those of the wave and of the job around them."""
    with Zygote(place, CHILD) as zygote:
        minted(Place(place, session_timeout_s=1.5), zygote, point)


def corrected(there: Place, zygote: Zygote, requeue: tuple[str, ...], serve: tuple[str, ...]) -> None:
    """A job of two files, one with a wrong digest, gets another manifest: that of one of the two and of another."""
    rows = [there.row("a.txt", "old a", local_id="map-1"), there.row("b.txt", "old b", local_id="map-1")]
    rows[1]["digest"] = "md5:" + "0" * 32
    with Receiver() as receiver:
        batch = there.submit(manifest_url=there.manifest(rows), response_url=receiver.url)
        killed(zygote, folder=str(there.folder))
        (job,) = (there.queue.load_job(one) for one in there.queue.list_jobs("Failed"))
        there.manifest([there.row("new/a.txt", "new a"), there.row("c.txt", "new c")], "new.csv")
        words = ["intake", "requeue", job.id, "--manifest", str(there.folder / "new.csv"), "--priority", "2"]
        command = [*words, "--queue", there.queue.url]
        for point in requeue:
            code, said = zygote.run(folder=str(there.folder), command=command, arm=point)
            assert code == -9, said
            assert (job.status, job.retry_count, job.priority, job.configuration.get("edition")) == (
                ("Failed", 0, 5, None) if point == "requeue.checked" else ("Pending", 1, 2, 1)
            )
        if requeue[-1:] != ("requeue.moved",):
            killed(zygote, folder=str(there.folder), command=command)
        told = tuple(point for point in serve if point == "batch.told")
        killed(zygote, *(point for point in serve if point not in told), folder=str(there.folder))
        there.queue.load_batch(batch).set_status("UpdateReporting")
        killed(zygote, *told, folder=str(there.folder))
        assert "map-1" in str(receiver.told[-1]["completed_jobs"])
    assert (job.status, job.retry_count, job.priority, job.inventory["files"]) == ("Completed", 1, 2, 2)
    assert there.rows() == [("map-1/a.txt", "new a"), ("map-1/c.txt", "new c")]
    assert there.queue.load_batch(batch).status == "Completed"
    assert there.queue.audit() == []
    there.queue.close()


@pytest.mark.rule("intake.edited")
def test_killed_over_a_correction(place: Path) -> None:
    """The job is as it was, or wholly corrected; then the new files alone are delivered, once."""
    with Zygote(place, CHILD) as zygote:
        corrected(Place(place, session_timeout_s=1.5), zygote, tuple(EDITED), ("job.fetched:2", "job.inventory"))


@pytest.mark.slow
@pytest.mark.parametrize("point", EDITION)
def test_killed_at_each_step_of_a_corrected_job(place: Path, point: str) -> None:
    """Whatever the old edition has left behind."""
    with Zygote(place, CHILD) as zygote:
        corrected(Place(place, session_timeout_s=1.5), zygote, (), (point,))


def test_every_point_is_tried() -> None:
    """No step of either is left out."""
    assert {point.partition(":")[0] for point in MINTING} >= MINTED.keys()
