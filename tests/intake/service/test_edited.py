"""A failed job is requeued with another manifest or configuration: what was fetched for the old one is not used."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.errors import PermanentError, UsageError
from ferryman.intake import Job, StateError
from ferryman.intake.service.payload import edit_configuration
from ferryman.intake.service.stages import Notify, StageResult
from tests.intake.service.place import Place


def failing(place: Place) -> Any:
    """A job of two files, one of them damaged."""
    rows = [place.row("a.txt", "old a", local_id="map-1"), place.row("b.txt", "old b", local_id="map-1")]
    rows[1]["digest"] = "md5:" + "0" * 32
    place.submit(manifest_url=place.manifest(rows))
    place.serve()
    (job,) = map(place.queue.load_job, place.jobs())
    assert job.status == "Failed"
    return job


def test_lines_of_a_batch_are_not_half_edited(intake: Place) -> None:
    """Else one job would take all files of the batch."""
    with pytest.raises(UsageError, match="manifest of its own"):
        edit_configuration(failing(intake), {"digest": "md5:" + "0" * 32})


def requeue(place: Place, *words: str) -> int:
    return start(["intake", "requeue", *words, "--queue", place.queue.url])


@pytest.mark.rule("intake.edited")
def test_another_manifest(intake: Place) -> None:
    """Its files are those of the new one alone, read anew even where a path is the same; and again."""
    job = failing(intake)
    for edition in (1, 2):
        name = f"{edition}.csv"
        intake.manifest([{"url": intake.put(f"{edition}/a.txt", f"new {edition}").as_uri()}], name)
        bad = [{"url": intake.put(f"{edition}/a.txt", f"new {edition}").as_uri(), "digest": "md5:" + "1" * 32}]
        if edition == 1:
            intake.manifest(bad, name)
        assert requeue(intake, job.id, "--manifest", str(intake.folder / name)) == 0
        assert (job.status, job.configuration["edition"]) == ("Pending", edition)
        intake.serve()
        assert job.status == ("Failed" if edition == 1 else "Completed")
    assert intake.rows() == [("map-1/a.txt", "new 2")]
    assert (job.retry_count, job.inventory["files"]) == (2, 1)
    assert "object_list" not in job.configuration
    assert intake.queue.audit() == []


@pytest.mark.rule("intake.edited")
def test_another_value(intake: Place) -> None:
    """A right digest; a key is removed by an empty value."""
    url = intake.put("a.txt", "content").as_uri()
    intake.submit(payload_url=url, digest="md5:" + "0" * 32, size=7, payload_type="file")
    intake.serve()
    (job,) = map(intake.queue.load_job, intake.jobs())
    assert job.status == "Failed"
    assert requeue(intake, job.id, "--set", "digest=md5:9a0364b9e99bb480dd25e1f0284c8555", "--set", "size=") == 0
    assert "size" not in job.configuration
    intake.serve()
    assert job.status == "Completed"
    assert [text for _, text in intake.rows()] == ["content"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"jobID": "2"}, "jobID: cannot be set"),
        ({"object_list": "file:///etc/passwd"}, "cannot be set"),
        ({"digest": "nonsense"}, "digest"),
        ({"size": "many"}, "size"),
        ({"payload_url": "gopher://x/"}, "gopher"),
        ({"payload_url": ""}, "no url"),
        ({"payload_type": "manifest"}, "of a job it is one of"),
        ({"profile_name": "a\0b"}, "profile_name"),
    ],
)
def test_what_serve_would_refuse_is_refused(intake: Place, changes: dict[str, str], why: str) -> None:
    """Before anything is changed."""
    batch = intake.queue.create_batch({})
    batch.set_status("Processing")
    job = batch.create_job({"payload_url": "https://example.org/a", "payload_type": "file", "jobID": "1"})
    with pytest.raises(UsageError, match=why):
        edit_configuration(job, changes)


def test_only_failed_jobs_are_edited(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """One at a time, and nothing is changed where it cannot be requeued."""
    batch = intake.queue.create_batch({})
    batch.set_status("Processing")
    job = batch.create_job({"payload_url": "https://example.org/a", "payload_type": "file", "jobID": "1"})
    with pytest.raises(StateError):
        job.requeue("", {"payload_url": "https://example.org/b"})
    assert job.configuration["payload_url"].endswith("/a")
    assert requeue(intake, job.id, "--set", "size") == 2
    assert requeue(intake, job.id, batch.id, "--set", "size=1") == 2
    assert requeue(intake, batch.id, "--set", "size=1") == 2
    assert "one job" in capsys.readouterr().err


@pytest.mark.rule("intake.edited")
def test_the_kept_originals_are_those_of_the_new_manifest(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the job has failed after those of the old one were kept."""

    def refuse(stage: Notify, job: Job) -> StageResult:
        raise PermanentError("its submitter refuses the notification")

    intake.submit(manifest_url=intake.manifest([intake.row("a.txt", "old", local_id="map-1")]))
    with monkeypatch.context() as patched:
        patched.setattr(Notify, "work", refuse)
        intake.serve()
    (job,) = map(intake.queue.load_job, intake.jobs())
    assert (job.status, job.last_successful_status) == ("Failed", "Recording")
    intake.manifest([intake.row("a.txt", "new one"), intake.row("b.txt", "another")], "new.csv")
    assert requeue(intake, job.id, "--manifest", str(intake.folder / "new.csv")) == 0
    intake.serve()
    assert (job.status, job.store["files"], job.store["bytes"]) == ("Completed", 2, len("new oneanother"))
    originals = intake.serving.work / "originals" / job.id / "files"
    assert {path.name: path.read_text() for path in originals.iterdir()} == {"a.txt": "new one", "b.txt": "another"}
