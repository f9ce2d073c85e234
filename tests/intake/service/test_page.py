"""Admin tools that read the queue's nodes find what they expect when our consumers have written them."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import pytest

from ferryman.cli.app import start
from tests.intake.service.place import Place

DATE = "2026-11-20 21:45:38 +0000"


def only_job(place: Place) -> Any:
    (job,) = map(place.queue.load_job, place.jobs())
    return job


@pytest.mark.rule("intake.page")
@pytest.mark.parametrize(
    ("kind", "name", "becomes"),
    [
        ("file", "a.txt", "file"),
        ("object-manifest", "m.jsonl", "object-manifest"),
        ("single-file-batch-manifest", "m.jsonl", "object-manifest"),
        ("batch-manifest", "outer.csv", "object-manifest"),
    ],
)
def test_a_job_has_the_keys_of_the_page(intake: Place, kind: str, name: str, becomes: str) -> None:
    """Configuration, inventory, store: whatever the job was made of."""
    inner = intake.manifest([intake.row("a.txt", local_id="map-1")], "m.jsonl")
    intake.manifest([{"url": inner, "local_id": "map-1"}], "outer.csv")
    url = intake.put("a.txt", "content of a.txt").as_uri() if name == "a.txt" else f"{intake.folder.as_uri()}/{name}"
    intake.submit(
        payload_url=url, payload_type=kind, local_id="map-1", profile_name="maps", submissionDate=DATE, delete="no"
    )
    intake.serve()
    job = only_job(intake)
    wanted = {"profile_name": "maps", "submitter": "tests", "submissionDate": DATE, "payload_type": becomes}
    assert job.configuration.items() >= {**wanted, "local_id": "map-1"}.items()
    assert job.configuration["payload_url"] == (inner if kind == "batch-manifest" else url)
    for values in (job.inventory, job.store):
        assert (values["mode"], values["delete"]) == ("add", "no")
        assert values["manifest_url"] == job.store["url"]
    assert intake.queue.audit() == []


@pytest.mark.rule("intake.page")
def test_the_mode_is_the_submitters(intake: Place) -> None:
    """Kept as it was given, and no `delete` without one."""
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), mode="update", batch_type="single-file")
    intake.serve()
    assert only_job(intake).inventory["mode"] == "update"
    assert only_job(intake).configuration["batch_type"] == "single-file"
    assert "delete" not in only_job(intake).inventory


@pytest.mark.rule("intake.page")
def test_what_a_manifest_says_of_an_object_is_its_metadata(intake: Place) -> None:
    """Its columns take precedence over the submission."""
    rows = [intake.row("a.txt", local_id="map-1", erc_who="Anna", erc_when="1888")]
    intake.submit(manifest_url=intake.manifest(rows), erc_who="Otto", erc_where="ark:/1/2")
    intake.serve()
    assert only_job(intake).metadata == {"erc_who": "Anna", "erc_when": "1888", "erc_where": "ark:/1/2"}


@pytest.mark.rule("intake.page")
def test_submit_tells_what_the_page_has(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Who, what, when and where; and the date, which makes the same submission no other."""
    path = str(intake.put("a.txt", "a"))
    options = ["--erc-who", "Anna", "--erc-what", "A map", "--erc-when", "1888", "--erc-where", "here"]
    words = ["intake", "submit", path, "--batch-id", "b", *options, "--queue", intake.queue.url, "--json"]
    assert start(words) == 0
    told = json.loads(capsys.readouterr().out)["submission"]
    assert (told["erc_who"], told["erc_what"], told["erc_when"], told["erc_where"]) == ("Anna", "A map", "1888", "here")
    assert told["submissionDate"].startswith("20")
    batch = intake.queue.load_batch("bid0000000000")
    assert intake.queue.create_batch({**told, "submissionDate": DATE}).id == batch.id
    assert batch.submission["submissionDate"] == told["submissionDate"]
    intake.serve()
    assert only_job(intake).metadata["erc_who"] == "Anna"


@pytest.mark.rule("intake.page")
def test_submit_takes_the_fields_of_the_page(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Type, modes, response type and primary id: they are in the submission, and where the page has them in the job."""
    url = intake.put("a.txt", "a").as_uri()
    path = intake.put("m.checkm", f"#%checkm_0.7\n{url}\n#%eof\n")
    options = ["--type", "object-manifest", "--mode", "update", "--submission-mode", "interactive"]
    options += ["--response-type", "xml", "--primary-id", "ark:/1/2"]
    assert start(["intake", "submit", str(path), *options, "--queue", intake.queue.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["submission"]
    expected = {"type": "object-manifest", "mode": "update", "submission_mode": "interactive", "response_type": "xml"}
    assert told.items() >= {**expected, "primary_id": "ark:/1/2", "payload_type": "object-manifest"}.items()
    intake.serve()
    job = only_job(intake)
    assert job.status == "Completed"
    assert job.configuration.items() >= {"response_type": "xml", "submission_mode": "interactive"}.items()
    assert (job.identifiers, job.inventory["mode"]) == ({"primary_id": "ark:/1/2"}, "update")


@pytest.mark.rule("intake.page")
@pytest.mark.parametrize("kind", ["single-file-batch-manifest", "batch-manifest", "container-batch-manifest"])
def test_submit_knows_the_pages_types(intake: Place, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the names that its systems use; a submission through the API may say `type`."""
    inner = intake.manifest([intake.row("a.txt")], "m.jsonl")
    with zipfile.ZipFile(intake.files / "a.zip", "w") as container:
        container.writestr("a.txt", "a")
    rows = {"single-file-batch-manifest": intake.put("b.txt", "b").as_uri(), "batch-manifest": inner}
    url = intake.manifest([{"url": rows.get(kind, (intake.files / "a.zip").as_uri())}], "outer.csv")
    assert start(["intake", "submit", url, "--type", kind, "--queue", intake.queue.url]) == 0
    intake.submit(payload_url=url, type=kind)
    intake.serve()
    assert set(intake.jobs().values()) == {"Completed"}
    assert len(intake.jobs()) == 2


@pytest.mark.parametrize("url", ["ftp://x/", "nowhere", "http://", "file:///etc/passwd"])
def test_submit_refuses_a_response_url_that_is_none(
    intake: Place, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is submitted."""
    path = str(intake.put("a.txt", "a"))
    assert start(["intake", "submit", path, "--response-url", url, "--queue", intake.queue.url]) == 2
    assert "is not an http or https URL" in capsys.readouterr().err
    assert start(["intake", "submit", path, "--primary-id", "a\nb", "--queue", intake.queue.url]) == 2
    assert intake.queue.list_batches() == []
