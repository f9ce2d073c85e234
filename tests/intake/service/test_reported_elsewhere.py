"""What users of other ingest systems reported, tried here: each test names the report."""

from __future__ import annotations

import io
import time
import zipfile
from urllib.parse import urlsplit

import pytest

from ferryman.cli.app import start
from ferryman.intake.nodes import encode_node
from ferryman.intake.service.access import request_bundle
from ferryman.intake.store.base import Set
from tests.intake.service.place import Place
from tests.intake.service.receiver import FileServer

URLS = {
    "/a b/Book Coll.txt": "Book Coll.txt",
    "/v.txt?raw=true": "v.txt",
    "/ü.txt": "%C3%BC.txt",
    "/x.txt#page=2": "x.txt",
    "/p%23q.txt": "p%23q.txt",
    "/download": "download",
    "/100%25.txt": "100%25.txt",
}
"""URL as a spreadsheet has it -> end of the document's id (islandora_workbench 260, 615)."""

NAMES = ["a b#?%.txt", "u\u0308.txt", "'q\".txt", "-rf.txt", "*.txt", " lead.txt", "😀.txt", "$(x).txt", "[1].txt"]
"""Names of members of a container (DSpace 10736, 9754)."""


def zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as container:
        for name, data in members.items():
            container.writestr(name, data)
    return content.getvalue()


@pytest.mark.rule("intake.unusual")
def test_unusual_names_and_files(intake: Place) -> None:
    """Odd URLs and names, long names (Archivematica 1027), slashes in names (Archivematica 1642), empty files
    (dlp-curate 1220), and zips that the macOS Finder made (isic-challenge-scoring 15): all are delivered, and found
    again in a bundle."""
    finder = {"s/a.txt": b"a", "__MACOSX/s/._a.txt": b"\x00\x05\x16\x07", "s/.DS_Store": b"\x00\x00\x00\x01Bud1"}
    long = "é" * 1024
    contents = {"/a%20b/Book%20Coll.txt": b"", "/%C3%BC.txt": b"", "/x.txt": b"", "/v.txt?raw=true": b"raw"}
    with FileServer({**dict.fromkeys(URLS, b""), **contents}) as server:
        rows = "".join(f"{server.url(url)},{number}\n" for number, url in enumerate(URLS))
        intake.submit(manifest_url=intake.put("m.csv", f"\ufeffurl,local_id\r\n{rows}").as_uri())
        names = intake.put("names.zip", zipped({name: name.encode() for name in NAMES}))
        intake.submit(payload_url=names.as_uri(), local_id="names")
        intake.submit(payload_url=intake.put("finder.zip", zipped(finder)).as_uri(), local_id="finder")
        intake.submit(payload_url=intake.put("e.txt", "").as_uri(), local_id=long, profile_name="a/b/c")
        intake.serve()
    assert set(intake.jobs().values()) == {"Completed"}
    delivered = dict(intake.rows())
    assert [id for id in sorted(delivered) if id[0].isdigit()] == [f"{n}/{end}" for n, end in enumerate(URLS.values())]
    assert delivered["1/v.txt"] == "raw"
    assert sorted(text for id, text in delivered.items() if id.startswith("names/")) == sorted(NAMES)
    assert [id for id in delivered if id.startswith("finder/")] == ["finder/s/a.txt"]
    assert len(delivered) == len(URLS) + len(NAMES) + 2
    request = request_bundle(intake.queue, ["names", long], time.time())
    intake.serve()
    with zipfile.ZipFile(urlsplit(request.token["url"]).path) as bundle:
        found = [name.partition("/")[2] for name in bundle.namelist()]
    assert sorted(found) == sorted([*NAMES, "e.txt"])


@pytest.mark.rule("intake.unusual")
def test_a_zip_of_the_finder_alone_has_no_files(intake: Place) -> None:
    """What is left out is counted in the job's message; nothing but such files is an empty container."""
    intake.submit(payload_url=intake.put("z.zip", zipped({"__MACOSX/._a": b"x"})).as_uri(), local_id="none")
    intake.serve()
    (job,) = intake.jobs()
    assert "there are no files in it" in intake.queue.load_job(job).message


def test_a_corrected_manifest_under_an_old_batch_id(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not submitted again, and `submit` says so, and what became of the batch (bulkrax 234)."""
    words = ["intake", "submit", str(intake.put("m.csv", "link\nx\n")), "--batch-id", "b", "--queue", intake.queue.url]
    assert start(words) == 0
    assert "before" not in capsys.readouterr().err
    batch = intake.queue.acquire_pending_batch()
    assert batch is not None
    batch.set_status("Failed", "line 1 of the manifest has no column url.")
    intake.queue.tree.store.commit(
        [Set(f"{batch.path}/submission", encode_node("", {**batch.submission, "submissionDate": "earlier"}))]
    )
    assert start(words) == 0
    told = capsys.readouterr()
    assert told.out == f"{batch.id}\n"
    assert f"{batch.id} was submitted before, and is Failed: line 1 of the manifest has no column url. Noth" in told.err
    assert "--batch-id" in told.err
