"""What others on this machine, and readers over an operator's shoulder, do not see."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ferryman.intake import JobQueue
from ferryman.intake.audit import without_secrets
from ferryman.intake.service.workspace import Workspace
from tests.intake.command import Run, queue, run
from tests.intake.conftest import started

__all__ = ["queue", "run"]

URL = "https://user:hunter2@files.example.org/a.zip?token=hunter2"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.rule("intake.secrets")
def test_files_are_their_owners_alone(run: Run, place: Path) -> None:
    """The database with its log, a dump, the working space: whatever the umask says."""
    with JobQueue.open(f"sqlite:///{place}/queue.db") as queue:
        queue.create_batch({})
        assert {mode(path) for path in place.glob("queue.db*")} == {0o600}
        assert len(list(place.glob("queue.db*"))) == 3
        assert run("dump", "d.json", "--queue", queue.url)[0] == 0
    assert mode(place / "d.json") == 0o600
    Workspace(place / "work")
    assert {mode(path) for path in [place / "work", *(place / "work").iterdir()]} == {0o700}


@pytest.mark.rule("intake.secrets")
@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_lists_show_no_secrets(run: Run, queue: JobQueue, json_option: list[str]) -> None:
    """Neither in a submission, nor in a job, nor in a message."""
    batch = queue.load_batch(started(queue, jobs=0, submission={"payload_url": URL, "response_url": URL}))
    job = batch.create_job({"payload_url": URL, "more": [{"deep": URL}]})
    queue.load_job(job.id).fail(f"{URL}: answered 404")
    queue.create_assembly("small", {"url": URL})
    for words in (
        ["show", batch.id],
        ["show", job.id],
        ["show", "small/qid0000000000"],
        ["jobs"],
        ["batches"],
        ["access"],
    ):
        code, out, err = run(*words, *json_option)
        assert code == 0
        assert "hunter2" not in out + err
    assert "https://files.example.org/a.zip" in run("show", job.id)[1]


@pytest.mark.rule("intake.secrets")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://me:hunter2@h/x?token=hunter2", "http://h/x?…"),
        ("http://me:hun'hunter2@h/x", "http://h/x"),
        ("http://me:hun hunter2@h/x?token=a hunter2", "http://h/x?…"),
        ("http://me:hun/hunter2@h/x", "http://h/x"),
        ("http://me:hun?hunter2@h/x", "http://h/x"),
        ("http://me:hun#hunter2@h/x", "http://h/x"),
        ('http://h/x?token="hunter2', "http://h/x?…"),
        ("//me:hunter2@h/x", "//h/x"),
        ("http:me:hunter2@h/x", "http:h/x"),
        ("http://h/x and http://me:hunter2@h/x", "http://h/x and http://h/x"),
        ("see http://me:'hunter2@h/x?token=hunter2 there", "see http://h/x?… there"),
        ("https://h:8080/@me/x", "https://h:8080/@me/x"),
        ("file:///a/b@c", "file:///a/b@c"),
        ("mailto:me@example.org", "mailto:me@example.org"),
        ("Letters: to me@example.org", "Letters: to me@example.org"),
    ],
)
def test_a_url_that_is_not_well_formed_shows_none_either(url: str, said: str) -> None:
    """A password with a blank, a quote or a slash is one all the same; what is not secret stays."""
    assert without_secrets({"payload_url": url}) == {"payload_url": said}


def test_a_message_keeps_its_words() -> None:
    """It may begin with a URL, and is not one."""
    message = {"message": "http://me:hunter2@h/x?t=1: answered 404, asked by me@example.org"}
    assert without_secrets(message) == {"message": "http://h/x?… answered 404, asked by me@example.org"}


@pytest.mark.rule("intake.secrets")
def test_a_dump_has_no_secrets_unless_they_are_asked_for(run: Run, queue: JobQueue) -> None:
    """Everything else of it is as it was."""
    started(queue, jobs=0, submission={"payload_url": URL, "note": "Größe?"})
    dumped, whole = json.loads(run("dump")[1]), json.loads(run("dump", "--with-secrets")[1])
    path = "/batches/bid0000000000/submission"
    assert json.loads(dumped["nodes"][path]) == {"payload_url": "https://files.example.org/a.zip?…", "note": "Größe?"}
    assert json.loads(whole["nodes"][path])["payload_url"] == URL
    assert dumped["nodes"].keys() == whole["nodes"].keys()
    assert {name for name in whole["nodes"] if whole["nodes"][name] != dumped["nodes"][name]} == {path}


@pytest.mark.rule("intake.secrets")
def test_names_cannot_hide_what_they_are(run: Run, queue: JobQueue) -> None:
    """Bidirectional and zero-width characters are shown as what they are."""
    batch = queue.load_batch(started(queue, jobs=0, submission={"profile_name": "maps\u202egnp.exe\u200b"}))
    job = batch.create_job({}, identifiers={"local_id": ["a\u2066b\ufeff"]})
    queue.load_job(job.id).fail("it is \u202ebad")
    assert r"maps\u202egnp.exe\u200b" in run("show", batch.id)[1]
    assert r"a\u2066b\ufeff" in run("show", job.id)[1]
    assert r"it is \u202ebad" in run("jobs")[1]
    assert queue.locks.lock("collection", "maps\u200b")
    assert r"maps\u200b" in run("lock")[1]
