"""What a consumer does that was stopped for longer than its session, and goes on when another one has its job."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake import Job
from ferryman.intake.service.errors import TryLater
from ferryman.intake.service.finisher import finish
from ferryman.intake.service.stages import CONTAINER_FILE, Downloading, SpaceBudget, Storing
from ferryman.intake.service.workspace import Workspace
from ferryman.limits import MIB
from tests.intake.service.place import Place


def job_in(place: Place, state: str, **configuration: Any) -> Job:
    """A job that is locked in a state."""
    batch = place.queue.create_batch({})
    batch.set_status("Processing")
    made = batch.create_job({"payload_type": "file", **configuration})
    while place.queue.load_job(made.id).status != state:
        made.advance()
    job = place.queue.acquire_job(state)
    assert job is not None
    return job


def test_a_fetch_writes_no_more(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the files to which the one writes that has the job now."""
    monkeypatch.setattr(SpaceBudget, "reserve", lambda budget, size: job.unlock())
    job = job_in(intake, "Downloading", payload_url=intake.put("large", bytes(5 * MIB)).as_uri())
    work = Workspace(intake.serving.work)
    stop = threading.Event()
    with pytest.raises(TryLater, match="lock is lost"):
        Downloading(work, intake.serving.fetcher(stop), stop).work(job)
    assert sum(path.stat().st_size for path in work.files(job.id).iterdir()) <= MIB


def test_originals_that_another_one_has_stored_stay(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped when it had seen that they are not stored yet."""
    work, stop = Workspace(intake.serving.work), threading.Event()
    job = job_in(intake, "Downloading", payload_url=intake.put("a.txt", "original").as_uri())
    result = Downloading(work, intake.serving.fetcher(stop), stop).work(job)
    finish(result.steps)
    storing, unlink, other = Storing(intake.queue, work), Path.unlink, [Storing(intake.queue, work)]

    def stop_here(path: Path, missing_ok: bool = False) -> None:
        if path.name == CONTAINER_FILE and other:
            other.pop().work(job)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stop_here)
    with pytest.raises(TryLater):
        storing.work(job)
    assert [path.read_text() for path in (work.originals(job.id) / "files").iterdir()] == ["original"]
    assert storing.work(job).message == "1 originals are kept"
    assert [path.name for path in (work.root / "originals").iterdir()] == [job.id]
