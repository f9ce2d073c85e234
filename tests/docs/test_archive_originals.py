"""docs/how-to/archive-originals.md: its commands are run against an FTP server and one that speaks S3."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import urlopen

import pytest

from ferryman.destinations import Directory, Sql
from ferryman.destinations.files import path_of_id
from ferryman.plan import Plan
from ferryman.sources import Files
from tests.destinations.elsewhere import ODD, place_on
from tests.support.page import HOW_TO, QuickShell
from tests.support.plan_world import run_plan

NAMES = [name for name in ODD if not name.startswith("../")] + ["a/b/c.txt", "e f/ü+&=.txt", "100%"]


def test_the_page_is_true(server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that the page shows is a line of its output; the file server has what the page says."""
    monkeypatch.setenv("QUICK_FERRYMAN_FORKS", "no")  # the driver asks obstore, whose threads no fork has
    s3, ftp = server("s3"), server("ftp")
    settings = {"ENDPOINT_URL": s3.url, "ACCESS_KEY_ID": s3.options["key"], "SECRET_ACCESS_KEY": s3.options["secret"]}
    for name, value in {**settings, "REGION": "us-east-1", "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name, value in ftp.login.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="archive")
    with QuickShell(place, {"ftp://files.example.org": ftp.url}) as shell:
        said = shell.follow(HOW_TO / "archive-originals.md")
    assert not any(ftp.login["FTP_PASSWORD"] in line for line in said)
    assert (ftp.files / "archive" / "2024" / "heart.txt").read_text() == "On the motion of the heart\n"
    assert not (ftp.files / "archive" / "2024" / "species #1.txt").exists()
    keys = [each["Key"] for each in s3.client().list_objects_v2(Bucket="archive")["Contents"]]
    assert len([key for key in keys if key.startswith("originals/sha256/")]) == 1
    assert len([key for key in keys if key.startswith("log/") and key.endswith(".jsonl")]) == 1


def test_the_address_of_each_original_leads_to_it(
    server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server in front of the folder answers each ``uri`` of the index with the bytes of the original. Names that
    not every file system holds are others in the folder, as the page says: those are reached by what they are there."""
    where = place_on("ftp", server, monkeypatch)
    corpus = place / "papers"
    wanted = {name: f"the bytes of {name!r}".encode() + b"\0\xff" for name in NAMES}
    for name, content in wanted.items():
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_bytes(content)
    handler = partial(SimpleHTTPRequestHandler, directory=str(where.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        plan = Plan("papers", version=1)
        papers = plan.source("papers", Files(corpus, base_url=f"http://127.0.0.1:{web.server_port}"))
        papers = papers.tee("originals", Directory(where.url))
        papers.destination("index", Sql(f"sqlite:///{place}/index.db", columns={"uri": "uri"}))
        assert run_plan(plan, place / "state").exit == 0
        with closing(sqlite3.connect(place / "index.db")) as db:
            uris = dict(db.execute("SELECT id, uri FROM documents").fetchall())
        assert {unquote(id) for id in uris} == set(wanted)
        moved = set()
        for id, uri in uris.items():
            name = unquote(id)
            if (there := path_of_id(id)) != name:
                moved.add(name)
                assert there is not None
                uri = f"http://127.0.0.1:{web.server_port}/{quote(there)}"
            with urlopen(uri) as answer:
                assert answer.read() == wanted[name], name
        web.shutdown()
    assert moved == {name for name in NAMES if re.search(r"""[%\x00-\x1f<>:"|?*\\~]|[. ]$""", name)}
