"""The whole of it: 200 files in 20 jobs, some of them bad, served by consumers that are killed again and again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ferryman.crash import INTAKE
from tests.intake.service.child import CHILD
from tests.intake.service.place import Place
from tests.intake.service.receiver import Receiver
from tests.support.zygote import Zygote

JOBS, FILES = 20, 10
BAD = {"object 03": "digest", "object 07": "zero byte", "object 12": "No such file"}
"""Objects with a corrupt file -> a word of the reason."""
COLLECTIONS = ("letters", "maps", "books")
PRIORITIES = (1, 5, 50)
HELD = "maps"

SHORT = (
    "batch.planned",
    "batch.job:3",
    "batch.made",
    "job.fetched:5",
    "job.inventory",
    "jobs.moved:2",
    "wave.synced",
    "job.waved",
    "job.judged:2",
    "job.kept:2",
    "job.told:2",
)
"""Eleven kills, in the order in which the batch comes by."""

ELSEWHERE = {"access.bundled": "test_access", "batch.told": "after the hold was released, below"}
"""Points that this batch does not pass before its hold is released -> where they are tried."""

_POINTS = [point for point in INTAKE if point not in ELSEWHERE]
_AT = _POINTS.index("job.waved")
WHOLE = (*_POINTS[:_AT], "transform.done", "commit.ready", "deliver.sent", "settle.closed", *_POINTS[_AT:])
"""Every point, and some of a wave's own, in the order in which the batch comes by."""


def objects() -> list[tuple[str, str, int]]:
    """(local id, collection, priority)"""
    return [(f"object {n:02d}", COLLECTIONS[n % 3], PRIORITIES[n // 2 % 3]) for n in range(JOBS)]


def submitted(place: Place, response_url: str) -> str:
    """The id of the batch."""
    rows = []
    for name, collection, priority in objects():
        for n in range(FILES):
            path = f"{name}/{n}.txt"
            row = place.row(path, local_id=name, profile_name=collection, priority=priority, file_name=f"{n}.txt")
            if n == 4 and name in BAD:
                row = bad(place, row, path, BAD[name])
            rows.append(row)
    return place.submit(manifest_url=place.manifest(rows), batchID="200", response_url=response_url)


def bad(place: Place, row: dict[str, object], path: str, how: str) -> dict[str, object]:
    if how == "digest":
        return {**row, "digest": "sha256:" + "0" * 64}
    if how == "zero byte":
        return {**row, **place.row(path, b"good until here\0")}
    place.files.joinpath(path).unlink()
    return row


def expected() -> list[tuple[str, str]]:
    """(document, text) of all that can be delivered."""
    found = []
    for name, collection, _ in objects():
        if BAD.get(name) in ("digest", "No such file"):
            continue  # such a job does not come as far as its documents
        for n in range(FILES):
            if name not in BAD or n != 4:
                found.append((f"{collection}/{name}/{n}.txt", f"content of {name}/{n}.txt"))
    return sorted(found)


def carried(place: Place, zygote: Zygote, kills: tuple[str, ...], random_kills: int, seed: int) -> None:
    """Submit, kill, hold, release, report; then all is as it should be."""
    with Receiver() as receiver:
        batch_id = submitted(place, receiver.url)
        place.queue.locks.lock("collection", HELD)
        for point in kills:
            code, said = zygote.run(folder=str(place.folder), arm=point)
            assert code == -9, f"{point} was not passed: {said}"
        dice = random.Random(seed)
        for _ in range(random_kills):
            code, said = zygote.run(folder=str(place.folder), kill_after_s=dice.uniform(0.05, 1.5))
            assert code in (-9, 0), said
        code, said = zygote.run(folder=str(place.folder))
        assert code == 0, said

        batch = place.queue.load_batch(batch_id)
        held = place.queue.list_jobs("Held")
        assert len(held) == sum(collection == HELD for _, collection, _ in objects())
        assert batch.status == "Processing", "a batch is reported when its last job is done, not before"
        assert not any("failed_jobs" in told for told in receiver.told)

        place.queue.locks.unlock("collection", HELD)
        for job in held:
            place.queue.load_job(job).set_status("Pending")
        code, said = zygote.run(folder=str(place.folder), arm="batch.told")
        assert code == -9, said
        code, said = zygote.run(folder=str(place.folder))
        assert code == 0, said

        report = [told for told in receiver.told if "failed_jobs" in told][-1]
        told_twice = [told for told in receiver.told if "failed_jobs" in told]
    assert {told["id"] for told in told_twice} == {report["id"]}, "what is told again has the same id"
    assert_true(place, batch_id, report)


def assert_true(place: Place, batch_id: str, report: dict[str, list[dict[str, object]]]) -> None:
    """The report names exactly the bad objects, everything else is delivered exactly once."""
    batch = place.queue.load_batch(batch_id)
    assert (batch.status, batch.message) == ("Failed", f"{len(BAD)} of {JOBS} jobs failed"), report["failed_jobs"]
    failed = {job["local_id"][0]: job["why"] for job in report["failed_jobs"]}  # type: ignore[index]
    assert failed.keys() == BAD.keys()
    for name, why in failed.items():
        assert BAD[str(name)] in str(why)
    done = [job["local_id"][0] for job in report["completed_jobs"]]  # type: ignore[index]
    assert sorted(done) == [name for name, _, _ in objects() if name not in BAD]  # type: ignore[type-var]
    assert batch.kept_report is not None
    assert len(batch.kept_report["failed_jobs"]) == len(BAD)
    assert len(place.jobs()) == JOBS, "a kill made a job twice"
    assert place.rows() == expected()
    assert place.queue.audit() == []


@pytest.mark.rule("intake.kill")
def test_killed_again_and_again(place: Path) -> None:
    """Kill -9 at eleven places: the report names exactly the bad ones, everything else is delivered exactly once."""
    with Zygote(place, CHILD) as zygote:
        carried(Place(place, session_timeout_s=1.5), zygote, SHORT, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_everywhere(place: Path) -> None:
    """Kill -9 at every crash point."""
    with Zygote(place, CHILD) as zygote:
        carried(Place(place, session_timeout_s=1.5), zygote, WHOLE, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random(place: Path, seed: int) -> None:
    """Kill -9 at twenty random moments."""
    with Zygote(place, CHILD) as zygote:
        carried(Place(place, session_timeout_s=1.5), zygote, (), 20, seed)


def test_every_point_is_tried() -> None:
    """No crash point of the consumers is left out."""
    assert {*WHOLE, *ELSEWHERE} >= INTAKE.keys()
