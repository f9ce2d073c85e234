"""While a queue is served, no batch of bad files stops a step for other batches; a bug that all of them meet does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import Jobs
from tests.intake.service.child import CHILD
from tests.intake.service.place import ODD, Place, until
from tests.support.recorder import Recorder
from tests.support.zygote import Zygote


def submitted(place: Place, name: str, content: str, files: int) -> str:
    """The id of a batch of one object of this name."""
    rows = [place.row(f"{name}/{i}.txt", f"{content} {i}", local_id=name) for i in range(files)]
    return place.submit(manifest_url=place.manifest(rows, f"{name}.csv"))


class Served:
    """Serves in a thread until the block ends."""

    def __init__(self, place: Place) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=place.serve, args=(self._stop,), kwargs={"once": False})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def statuses(place: Place, *batches: str) -> list[str]:
    return [place.queue.load_batch(batch).status for batch in batches]


def failure(place: Place, batch: str) -> str:
    """Why the batch's only job has failed."""
    (job,) = place.queue.load_batch(batch).failed_jobs
    return place.queue.load_job(job).message


@pytest.mark.rule("brake.batches")
def test_a_batch_of_bad_files_and_a_good_one(intake: Place) -> None:
    """The bad one is alone in a wave; the good one is delivered at once, and each bad file ends as failed."""
    bad = submitted(intake, "bad", ODD, 60)
    with Served(intake):
        until(lambda: any((intake.root / "ledger").rglob("*.parquet")))
        good = submitted(intake, "good", "fine", 2)
        until(lambda: statuses(intake, bad, good) == ["Failed", "Completed"])
    assert intake.rows() == [("good/0.txt", "fine 0"), ("good/1.txt", "fine 1")]
    assert "bad/0.txt: index: step text: KeyError: 'no such field' (" in failure(intake, bad)
    assert "and 55 more" in failure(intake, bad)
    assert not [line for line in intake.said.lines if "stays pending" in line]


def buggy(doc: Document) -> Document:
    return doc["no such field"]  # type: ignore[no-any-return]


def mended(doc: Document) -> Document:
    return doc


def plan_with(step: Callable[[Document], Document], out: Recorder) -> Plan:
    """Documents have attempts enough to wait for others."""
    plan = Plan("brake", version=1)
    plan.source("jobs", Jobs()).step("text", step, attempts=50).destination("out", out)
    return plan


@pytest.mark.rule("brake.batches")
def test_a_bug_that_all_batches_meet(intake: Place) -> None:
    """After three the step is stopped, which is said; served again with mended code, all of it is delivered."""
    out = Recorder(intake.folder / "out.jsonl")
    intake.plan = plan_with(buggy, out)
    batches = [submitted(intake, name, "fine", 8) for name in ("one", "two", "three")]
    with Served(intake):
        until(lambda: any("stays pending" in line for line in intake.said.lines))
        late = submitted(intake, "four", "fine", 1)
        until(lambda: statuses(intake, late) == ["Processing"])
    (line,) = [line for line in intake.said.lines if "stays pending" in line]
    assert line.startswith("warning: step text: KeyError: 'no such field' (")
    assert statuses(intake, *batches, late) == ["Processing"] * 4

    intake.plan = plan_with(mended, out)
    intake.serve()

    assert statuses(intake, *batches, late) == ["Completed"] * 4
    assert set(out.counted().values()) == {1}
    assert len(out.counted()) == 25


@pytest.mark.slow
@pytest.mark.rule("brake.batches")
def test_killed_in_the_middle(place: Path) -> None:
    """What is known of batches goes with the process: the next one counts from zero, and ends as well."""
    found = Place(place, session_timeout_s=1.5)
    bad = [submitted(found, name, ODD, 25) for name in ("a", "b")]
    with Zygote(place, CHILD) as zygote:
        for point in ("transform.done", "settle.closed", "job.waved"):
            code, said = zygote.run(folder=str(place), arm=point)
            assert code == -9, f"{point} was not passed: {said}"
        good = submitted(found, "good", "fine", 2)
        code, said = zygote.run(folder=str(place))
        assert code == 0, said
    assert statuses(found, *bad, good) == ["Failed", "Failed", "Completed"]
    assert [id for id, _ in found.rows()] == ["good/0.txt", "good/1.txt"]
    assert all("(attempt 3, the last)" in failure(found, batch) for batch in bad)
    found.queue.close()
